#include "session/options.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "passes/pass.h"
#include "program/recompute.h"
#include "runtime/error.h"
#include "runtime/path.h"
#include "runtime/text.h"
#include "session/generated/session_config.h"

namespace ortrain {

namespace {

constexpr std::string_view kOwnPrefix = "ortrain.";

std::vector<std::string> choices(const ConfigEntry& entry) {
  std::vector<std::string> values;
  for (std::string_view rest = entry.values; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    values.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return values;
}

// Throws if the entry does not accept the value.
void check_choice(const ConfigEntry& entry, const std::string& key, const std::string& value) {
  const std::vector<std::string> known = choices(entry);
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  std::string list;
  for (const std::string& choice : known) list += concat(list.empty() ? "'" : ", '", choice, "'");
  fail(ErrorCode::kInvalidArgument, "session config entry ", key, ": expected one of ", list, ", found '",
       value, "'");
}

// A positive number of bytes, optionally followed by K, M or G. `or_else` names other values that the entry
// takes.
size_t read_bytes(const std::string& key, const std::string& text, std::string_view or_else = "") {
  std::string_view digits = text;
  uint64_t unit = 1;
  for (const auto& [suffix, bytes] :
       {std::pair('K', uint64_t{1} << 10), {'M', uint64_t{1} << 20}, {'G', uint64_t{1} << 30}})
    if (!digits.empty() && digits.back() == suffix) {
      unit = bytes;
      digits.remove_suffix(1);
      break;
    }
  uint64_t count = 0, total = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  require(error == std::errc{} && end == digits.data() + digits.size() && count > 0 &&
              !__builtin_mul_overflow(count, unit, &total) && total <= SIZE_MAX,
          ErrorCode::kInvalidArgument, "session config entry ", key,
          ": expected a number of bytes above 0 such as 64M (suffixes K, M and G)",
          or_else.empty() ? "" : " or ", or_else, ", found \"", text, "\"");
  return static_cast<size_t>(total);
}

uint64_t read_count(const std::string& key, const std::string& text, uint64_t least) {
  uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  require(error == std::errc{} && end == text.data() + text.size() && count >= least,
          ErrorCode::kInvalidArgument, "session config entry ", key, ": expected a number ",
          least == 0 ? "of 0 or more" : "above 0", ", found \"", text, "\"");
  return count;
}

// The number in an entry of kind kLimit or kBytes, or the default from the spec; 0 if there is neither.
uint64_t config_number(const SessionOptions& options, const std::string& key) {
  const auto entry = std::find_if(std::begin(kConfigEntries), std::end(kConfigEntries),
                                  [&](const ConfigEntry& known) { return known.key == key; });
  require(entry != std::end(kConfigEntries), ErrorCode::kFail, "there is no session config entry ", key);
  const auto given = options.config.find(key);
  const std::string text = given == options.config.end() ? std::string(entry->fallback) : given->second;
  if (text.empty() && given == options.config.end()) return 0;
  return entry->kind == ConfigKind::kBytes ? read_bytes(key, text) : read_count(key, text, 1);
}

// The limit as a size; SIZE_MAX if the limit exceeds the addresses of the system.
size_t addressable(uint64_t limit) { return static_cast<size_t>(std::min<uint64_t>(limit, SIZE_MAX)); }

// The names that may follow the key prefix of passes.
std::vector<std::string> switchable() {
  std::vector<std::string> names = {std::string(kFoldFrozenParameters.name),
                                    std::string(kKeepConvolutionWeights.name)};
  for (const Pass& pass : passes_of(PassPhase::kSession)) {
    names.emplace_back(pass.name);
    if (!pass.former.empty()) names.emplace_back(pass.former);
  }
  return names;
}

// Every key with the prefix "ortrain.".
std::vector<std::string> own_keys() {
  std::vector<std::string> keys;
  for (const ConfigEntry& entry : kConfigEntries) {
    if (!entry.key.starts_with(kOwnPrefix)) continue;
    if (entry.kind != ConfigKind::kPass)
      keys.emplace_back(entry.key);
    else
      for (const std::string& name : switchable()) keys.push_back(concat(entry.key, name));
  }
  return keys;
}

[[noreturn]] void reject_key(const std::string& key) {
  for (const ConfigEntry& entry : kConfigEntries) {
    if (entry.kind != ConfigKind::kPass || !key.starts_with(entry.key)) continue;
    const std::string name = key.substr(entry.key.size());
    const std::vector<std::string_view> others = pass_names(PassPhase::kArtifact);
    if (std::find(others.begin(), others.end(), name) != others.end())
      fail(ErrorCode::kInvalidArgument, "session config entry '", key, "': the pass ", name,
           " runs when artifacts are generated, not in a session; switch it off with disabled_passes of "
           "generate_artifacts");
  }
  const std::string near = suggestion(key, own_keys());
  std::string known;
  for (const ConfigEntry& entry : kConfigEntries)
    if (entry.key.starts_with(kOwnPrefix))
      known += concat(known.empty() ? "" : ", ", entry.key, entry.kind == ConfigKind::kPass ? "NAME" : "");
  fail(ErrorCode::kInvalidArgument, "unknown session config entry '", key, "'",
       near.empty() ? "; the known entries are " + known : near);
}

}  // namespace

void fix_dimensions(Model& model, const ModelNotes& notes, const SessionOptions& options) {
  std::map<std::string, int64_t> dims = options.dimensions;
  for (ValueInfo& input : model.graph.inputs) {
    const auto denotations = notes.denotations.find(input.name);
    if (!input.dims || denotations == notes.denotations.end()) continue;
    for (size_t i = 0; i < input.dims->size(); ++i) {
      const auto fixed = options.denoted_dimensions.find(denotations->second[i]);
      Dim& dim = (*input.dims)[i];
      if (fixed == options.denoted_dimensions.end() || dim.known()) continue;
      if (dim.symbol.empty())
        dim.value = fixed->second;
      else
        dims.insert_or_assign(dim.symbol, fixed->second);
    }
  }
  if (dims.empty()) return;
  const auto fix = [&](ValueInfo& info) {
    if (!info.dims) return;
    for (Dim& dim : *info.dims) {
      const auto fixed = dims.find(dim.symbol);
      if (fixed != dims.end() && !dim.known()) dim = Dim{fixed->second, ""};
    }
  };
  for (ValueInfo& input : model.graph.inputs) fix(input);
  for (ValueInfo& output : model.graph.outputs) fix(output);
  for (auto& [name, inner] : model.graph.value_info) fix(inner);
}

void check_config_entry(const std::string& key, const std::string& value) {
  for (const ConfigEntry& entry : kConfigEntries) {
    switch (entry.kind) {
      case ConfigKind::kPass: {
        if (!key.starts_with(entry.key)) continue;
        const std::vector<std::string> names = switchable();
        if (std::find(names.begin(), names.end(), key.substr(entry.key.size())) == names.end()) continue;
        return check_choice(entry, key, value);
      }
      case ConfigKind::kChoice:
        if (key != entry.key || !key.starts_with(kOwnPrefix)) continue;
        return check_choice(entry, key, value);
      case ConfigKind::kBytes:
        if (key != entry.key) continue;
        if (value.empty() || value != entry.values) read_bytes(key, value, entry.values);
        return;
      case ConfigKind::kCount:
        if (key != entry.key) continue;
        read_count(key, value, 0);
        return;
      case ConfigKind::kLimit:
        if (key != entry.key) continue;
        read_count(key, value, 1);
        return;
      case ConfigKind::kFolder:
        if (key != entry.key) continue;
        require(!value.empty(), ErrorCode::kInvalidArgument, "session config entry ", key,
                ": expected the name of a folder, found \"\"");
        return;
    }
  }
  if (key.starts_with(kOwnPrefix)) reject_key(key);
}

std::string config_choice(const SessionOptions& options, const std::string& key) {
  const auto entry = std::find_if(std::begin(kConfigEntries), std::end(kConfigEntries),
                                  [&](const ConfigEntry& known) { return known.key == key; });
  require(entry != std::end(kConfigEntries), ErrorCode::kFail, "there is no session config entry ", key);
  const auto given = options.config.find(key);
  if (given == options.config.end()) return std::string(entry->fallback);
  check_choice(*entry, key, given->second);
  return given->second;
}

bool is_on(const SessionRewrite& rewrite, const SessionOptions& options) {
  if (options.graph_optimization_level < rewrite.level) return false;
  const auto off = options.config.find(concat(kDisablePass, rewrite.name));
  return off == options.config.end() || off->second != "1";
}

size_t memory_budget(const SessionOptions& options) {
  const std::string key = "ortrain.memory_budget";
  const auto given = options.config.find(key);
  if (given != options.config.end() && given->second == "auto") return kAutomaticBudget;
  return std::min(addressable(config_number(options, key)), kAutomaticBudget - 1);
}

ModelLimits model_limits(const SessionOptions& options) {
  return {addressable(config_number(options, "session.max_nodes")),
          addressable(config_number(options, "session.max_nesting"))};
}

ProgramLimits program_limits(const SessionOptions& options) {
  ProgramLimits limits;
  limits.elements = config_number(options, "session.max_elements");
  if (const size_t bytes = addressable(config_number(options, "session.max_bytes")); bytes > 0)
    limits.bytes = bytes;
  return limits;
}

ReadOptions read_options(const SessionOptions& options) {
  const std::string format = config_choice(options, "session.load_model_format");
  ReadOptions how;
  if (!format.empty()) how.format = format == "ORT" ? ModelFormat::kOrt : ModelFormat::kOnnx;
  how.limits = model_limits(options);
  how.given = options.initializers;
  const auto folder = options.config.find("session.model_external_initializers_file_folder_path");
  if (folder != options.config.end()) how.directory = from_utf8(folder->second);
  return how;
}

void write_optimized(const Model& model, const SessionOptions& options) {
  if (options.optimized_model_path.empty()) return;
  const std::filesystem::path path = from_utf8(options.optimized_model_path);
  const std::string format = config_choice(options, "session.save_model_format");
  write_rewritten(model, path, format == "ORT" || (format.empty() && path.extension() == ".ort"));
}

bool flush_denormals(const SessionOptions& options) {
  const auto entry = options.config.find(kDenormalsKey);
  if (entry == options.config.end()) return false;
  require(entry->second == "0" || entry->second == "1", ErrorCode::kInvalidArgument, "session config entry ",
          kDenormalsKey, ": expected \"0\" or \"1\", found \"", entry->second, "\"");
  return entry->second == "1";
}

uint64_t first_run(const SessionOptions& options) {
  constexpr const char* kKey = "ortrain.first_run";
  const auto entry = options.config.find(kKey);
  return entry == options.config.end() ? 0 : read_count(kKey, entry->second, 0);
}

bool check_finite(const SessionOptions& options) {
  return config_choice(options, "ortrain.check_finite") == "1";
}

NonfiniteGradients nonfinite_gradients(const SessionOptions& options) {
  const std::string choice = config_choice(options, "ortrain.nonfinite_gradients");
  if (choice == "skip") return NonfiniteGradients::kSkip;
  return choice == "apply" ? NonfiniteGradients::kApply : NonfiniteGradients::kError;
}

}  // namespace ortrain
