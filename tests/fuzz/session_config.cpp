#include "session_config.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "passes/pass.h"
#include "session/generated/session_config.h"

namespace ortrain::fuzz {

namespace {

bool names_folder(const std::string& key) {
  return std::any_of(std::begin(kConfigEntries), std::end(kConfigEntries), [&](const auto& known) {
    return known.kind == ConfigKind::kFolder && known.key == key;
  });
}

}  // namespace

SessionOptions small_session() {
  SessionOptions options;
  options.intra_op_threads = 1;
  options.config = {{"session.max_nodes", "1000"},
                    {"session.max_nesting", "16"},
                    {"session.max_elements", "1000000"},
                    {"session.max_bytes", "16M"}};
  return options;
}

SessionOptions session_options(const Config& config) {
  SessionOptions options = small_session();
  for (const ConfigEntry& entry : config) {
    if (names_folder(entry.key())) continue;  // it would be written to
    check_config_entry(entry.key(), entry.value());
    options.config[entry.key()] = entry.value();
  }
  return options;
}

const RunOptions& short_run() {
  using Clock = std::chrono::steady_clock;
  static RunOptions options;
  static std::atomic<Clock::rep> begin{0};
  static const bool watched = [] {
    std::thread([] {
      while (true) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        if (Clock::now() - Clock::time_point(Clock::duration(begin)) > std::chrono::seconds(2))
          options.terminate = true;
      }
    }).detach();
    return true;
  }();
  (void)watched;
  begin = Clock::now().time_since_epoch().count();
  options.terminate = false;
  return options;
}

void mutate_config(Config& config, Random& random) {
  if (config.size() > 0 && below(random, 3) == 0) {
    config.RemoveLast();
    return;
  }
  const auto& known = kConfigEntries[below(random, std::size(kConfigEntries))];
  if (known.kind == ConfigKind::kFolder) return;
  std::string key(known.key), value = "100";
  if (!known.values.empty()) {
    std::istringstream words{std::string(known.values)};
    std::vector<std::string> values;
    while (words >> value) values.push_back(value);
    value = values[below(random, values.size())];
  }
  if (known.kind == ConfigKind::kPass) {
    const auto passes = pass_names(PassPhase::kSession);
    key += passes[below(random, passes.size())];
  }
  ConfigEntry& entry = *config.Add();
  entry.set_key(key);
  entry.set_value(value);
}

}  // namespace ortrain::fuzz
