#include "session/schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>
#include <vector>

#include "runtime/error.h"
#include "runtime/text.h"

namespace ortrain {

namespace {

const ScheduleRule& rule_named(const std::string& name) {
  const ScheduleRule* rule = find_schedule(name);
  if (rule != nullptr) return *rule;
  std::vector<std::string> known;
  for (const ScheduleRule* each : all_schedules()) known.push_back(each->name);
  fail(ErrorCode::kInvalidArgument, "there is no learning-rate schedule \"", name, "\"; expected one of ",
       quoted_list(known, known.size()));
}

// The values that a setting accepts, for messages.
std::string expected(const ScheduleSetting& setting) {
  std::string text = setting.kind == ScheduleValue::kWhole  ? "a whole number"
                     : setting.kind == ScheduleValue::kFlag ? "0 or 1"
                     : setting.kind == ScheduleValue::kList ? "rising numbers separated by colons, each"
                                                            : "a finite number";
  if (setting.kind != ScheduleValue::kFlag && std::isfinite(setting.least))
    text += concat(" of at least ", setting.least);
  if (setting.kind == ScheduleValue::kNumber && std::isfinite(setting.most))
    text += concat(" and at most ", setting.most);
  return text;
}

bool fits(const ScheduleSetting& setting, double value) {
  const bool whole = setting.kind == ScheduleValue::kWhole || setting.kind == ScheduleValue::kFlag ||
                     setting.kind == ScheduleValue::kList;
  return std::isfinite(value) && value >= setting.least && value <= setting.most &&
         (!whole || value == std::floor(value));
}

std::vector<double> numbers_in(const ScheduleSetting& setting, const std::string& text,
                               const std::string& schedule) {
  const auto reject = [&]() {
    fail(ErrorCode::kInvalidArgument, "schedule ", schedule, ": ", setting.name, " should be ",
         expected(setting), ", found \"", text, "\"");
  };
  std::vector<double> numbers;
  std::istringstream parts(text);
  parts.imbue(std::locale::classic());
  for (std::string part; std::getline(parts, part, ':');) {
    std::istringstream digits(part);
    digits.imbue(std::locale::classic());
    double number = 0;
    if (!(digits >> number) || !digits.eof() || !fits(setting, number)) reject();
    if (!numbers.empty() && number <= numbers.back()) reject();
    numbers.push_back(number);
  }
  if (numbers.empty() || (numbers.size() > 1 && setting.kind != ScheduleValue::kList)) reject();
  return numbers;
}

// A number that reads as the same double.
std::string exact(double value) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.precision(17);
  text << value;
  return text.str();
}

}  // namespace

Schedule::Schedule(const ScheduleRule& rule) : rule_(&rule), scalars_(rule.scalars) {
  for (const ScheduleSetting& setting : settings_of(rule)) settings_[setting.name] = {setting.value};
}

Schedule::Schedule(const std::string& name, const std::string& settings) : Schedule(rule_named(name)) {
  const std::vector<ScheduleSetting> known = settings_of(*rule_);
  std::string text = settings;
  std::replace(text.begin(), text.end(), ',', ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    require(equals != std::string::npos, ErrorCode::kInvalidArgument, "schedule ", name,
            ": expected settings such as total_steps=1000, separated by commas or spaces, found \"", word,
            "\"");
    const std::string key = word.substr(0, equals);
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const ScheduleSetting& setting) { return key == setting.name; });
    if (found == known.end()) {
      std::vector<std::string> names;
      for (const ScheduleSetting& setting : known) names.emplace_back(setting.name);
      fail(ErrorCode::kInvalidArgument, "schedule ", name, ": there is no setting \"", key,
           "\"; expected one of ", quoted_list(names, names.size()));
    }
    settings_[key] = numbers_in(*found, word.substr(equals + 1), name);
  }
  for (const ScheduleSetting& setting : known)
    require(!std::isnan(value(setting.name)), ErrorCode::kInvalidArgument, "schedule ", name, ": ",
            setting.name, " (", setting.meaning, ") should be ", expected(setting), ", it was not given");
  require(!rule_->needs_total || value("total_steps") > value("warmup_steps"), ErrorCode::kInvalidArgument,
          "schedule ", name, ": expected total_steps greater than warmup_steps, found total_steps ",
          value("total_steps"), " and warmup_steps ", value("warmup_steps"));
}

Schedule Schedule::linear(int64_t warmup_steps, int64_t total_steps) {
  Schedule made(rule_named("linear"));
  made.settings_["warmup_steps"] = {static_cast<double>(warmup_steps)};
  made.settings_["total_steps"] = {static_cast<double>(total_steps)};
  return made;
}

float Schedule::rate(float initial, int64_t step) const {
  const double warmup = value("warmup_steps"), interval = value("interval");
  const double t = std::max(0.0, static_cast<double>(step) - value("first_step"));
  const double after = std::floor(std::max(0.0, t - warmup) / interval);
  const double total = std::max(0.0, value("total_steps") - warmup) / interval;
  // Programs for onnxruntime may state fewer steps than the warmup takes. The schedule is then the warmup
  // only.
  const bool only_warmup = t < warmup && rule_->needs_total && total == 0;
  double factor = only_warmup ? 1 : rule_->factor({after, total, warmup, settings_, scalars_});
  if (t < warmup) {
    const double first = value("warmup_factor");
    factor *= first + (1 - first) * (t / warmup);
  }
  return static_cast<float>(static_cast<double>(initial) * factor);
}

void Schedule::report(double value) {
  if (rule_->report != nullptr) rule_->report(value, settings_, scalars_);
}

bool Schedule::is_constant() const { return rule_->name == "constant" && value("warmup_steps") == 0; }

ScheduleState Schedule::state() const {
  std::string text;
  for (const ScheduleSetting& setting : settings_of(*rule_)) {
    const std::vector<double>& numbers = settings_.find(setting.name)->second;
    if (numbers.size() == 1 && numbers.front() == setting.value) continue;
    text += concat(text.empty() ? "" : " ", setting.name, "=");
    for (size_t i = 0; i < numbers.size(); ++i) text += concat(i == 0 ? "" : ":", exact(numbers[i]));
  }
  return {rule_->name, text, {scalars_.begin(), scalars_.end()}};
}

void Schedule::continue_from(const ScheduleState& earlier) {
  if (earlier.name != rule_->name) return;
  if (Schedule(earlier.name, earlier.settings).value("first_step") != value("first_step")) return;
  for (auto& [name, number] : scalars_)
    if (const auto kept = earlier.values.find(name); kept != earlier.values.end()) number = kept->second;
}

}  // namespace ortrain
