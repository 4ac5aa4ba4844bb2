// The list of learning rate schedules.
#include <string>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "capi/json.h"
#include "session/schedule/rule.h"

namespace ortrain::capi {

namespace {

std::string kind_of(const ScheduleSetting& setting) {
  switch (setting.kind) {
    case ScheduleValue::kWhole:
      return "whole";
    case ScheduleValue::kFlag:
      return "flag";
    case ScheduleValue::kList:
      return "list";
    default:
      return "number";
  }
}

std::string described(const ScheduleSetting& s) {
  return concat("{\"name\": ", json_text(s.name), ", \"default\": ", json_number(s.value),
                ", \"at_least\": ", json_number(s.least), ", \"at_most\": ", json_number(s.most),
                ", \"kind\": ", json_text(kind_of(s)), ", \"meaning\": ", json_text(s.meaning), "}");
}

std::string described(const ScheduleRule& rule) {
  return concat("{\"name\": ", json_text(rule.name), ", \"formula\": ", json_text(rule.formula),
                ", \"source\": ", json_text(rule.source),
                ", \"needs_total\": ", rule.needs_total ? "true" : "false",
                ", \"reads_value\": ", rule.report != nullptr ? "true" : "false", ", \"settings\": ",
                json_list(settings_of(rule), [](const ScheduleSetting& s) { return described(s); }), "}");
}

}  // namespace

void ListSchedules(OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator,
                   json_list(all_schedules(), [](const ScheduleRule* rule) { return described(*rule); }));
}

}  // namespace ortrain::capi
