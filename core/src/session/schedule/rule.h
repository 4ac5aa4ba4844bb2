// What a learning rate schedule is: a declaration, registered under a name.
//
// A file in rules/ declares a schedule: its settings and the factor of the learning rate after a number of
// optimizer steps. The names in every language, the command line and the table of the documentation follow
// from the declaration. Warmup, the first step and the interval are settings of every schedule, and no
// concern of a rule: schedule.h applies them.
#pragma once

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/registry.h"

namespace ortrain {

enum class ScheduleValue { kNumber, kWhole, kFlag, kList };

// The default of a setting that has to be given.
inline constexpr double kRequired = std::numeric_limits<double>::quiet_NaN();

struct ScheduleSetting {
  const char* name;
  double value;  // unless another is given
  const char* meaning;
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  ScheduleValue kind = ScheduleValue::kNumber;
};

// The values of settings by name. A list has its numbers, all others have one.
using ScheduleSettings = std::map<std::string, std::vector<double>, std::less<>>;
// Numbers that a schedule keeps from step to step, by name.
using ScheduleScalars = std::map<std::string, double, std::less<>>;

// What a factor depends on. Steps are counted in intervals, from the end of the warmup.
struct ScheduleStep {
  double step, total;  // total: 0 if it is not known
  double warmup;       // steps of the warmup before
  const ScheduleSettings& settings;
  const ScheduleScalars& scalars;

  double operator[](std::string_view name) const { return settings.find(name)->second.front(); }
  const std::vector<double>& list(std::string_view name) const { return settings.find(name)->second; }
  double scalar(std::string_view name) const { return scalars.find(name)->second; }
};

struct ScheduleRule {
  std::string name;     // in programs, checkpoints and on the command line: "cosine"
  std::string formula;  // of the factor f after t steps
  std::string source;
  bool needs_total = false;  // whether total_steps has to be given
  std::vector<ScheduleSetting> settings = {};
  ScheduleScalars scalars = {};  // before the first step
  double (*factor)(const ScheduleStep& step);
  // Takes a value that the schedule follows into account. Null: it follows none.
  void (*report)(double value, const ScheduleSettings& settings, ScheduleScalars& scalars) = nullptr;
};

// By name; null if there is none.
const ScheduleRule* find_schedule(std::string_view name);
// All of them, sorted by name.
std::vector<const ScheduleRule*> all_schedules();
// The settings that every schedule has.
const std::vector<ScheduleSetting>& common_schedule_settings();
// The settings of the rule, followed by those that every schedule has.
std::vector<ScheduleSetting> settings_of(const ScheduleRule& rule);

bool register_schedule(ScheduleRule rule, SourcePlace where);

// ORTRAIN_SCHEDULE(Cosine, {.name = "cosine", ...})
#define ORTRAIN_SCHEDULE(Title, ...)               \
  [[maybe_unused]] const bool kRegistered##Title = \
      ::ortrain::register_schedule(::ortrain::ScheduleRule __VA_ARGS__, ::ortrain::SourcePlace::here())

}  // namespace ortrain
