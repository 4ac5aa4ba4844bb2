#include "session/schedule/rule.h"

#include <utility>

#include "runtime/error.h"
#include "runtime/registry.h"

namespace ortrain {

namespace {

Registry<std::string, ScheduleRule>& registry() {
  static Registry<std::string, ScheduleRule> all;
  return all;
}

}  // namespace

bool register_schedule(ScheduleRule rule, SourcePlace where) {
  std::string name = rule.name;
  registry().add(name, std::move(rule), concat("schedule '", name, "'"), where);
  return true;
}

const ScheduleRule* find_schedule(std::string_view name) { return registry().find(std::string(name)); }

std::vector<const ScheduleRule*> all_schedules() {
  std::vector<const ScheduleRule*> all;
  registry().each([&](const ScheduleRule& rule) { all.push_back(&rule); });
  return all;
}

const std::vector<ScheduleSetting>& common_schedule_settings() {
  using enum ScheduleValue;
  static const std::vector<ScheduleSetting> common = {
      {"total_steps", 0, "optimizer steps of the training, including the warmup; 0 if not known", 0, 1e15,
       kWhole},
      {"warmup_steps", 0, "steps in which the factor rises linearly", 0, 1e15, kWhole},
      {"warmup_factor", 0, "the factor before the first of these steps", 0},
      {"interval", 1, "optimizer steps that count as one step of the schedule, such as the steps of an epoch",
       1, 1e15, kWhole},
      {"first_step", 0, "optimizer steps that were taken before the schedule begins", 0, 1e15, kWhole}};
  return common;
}

std::vector<ScheduleSetting> settings_of(const ScheduleRule& rule) {
  std::vector<ScheduleSetting> all = rule.settings;
  const std::vector<ScheduleSetting>& common = common_schedule_settings();
  all.insert(all.end(), common.begin(), common.end());
  return all;
}

}  // namespace ortrain
