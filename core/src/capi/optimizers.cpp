// The list of optimizers.
#include <string>

#include "backend/cpu/optimizer/rule.h"
#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "capi/json.h"

namespace ortrain::capi {

namespace {

std::string described(const OptimizerRule& rule) {
  const auto setting = [](const OptimizerSetting& s) {
    return concat("{\"name\": ", json_text(s.name), ", \"default\": ", json_number(s.value),
                  ", \"at_least\": ", json_number(s.least), ", \"less_than\": ", json_number(s.below),
                  ", \"flag\": ", s.is_flag ? "true" : "false", ", \"meaning\": ", json_text(s.meaning), "}");
  };
  const auto state = [](const StateDeclaration& s) {
    return concat("{\"name\": ", json_text(s.name), ", \"meaning\": ", json_text(s.meaning),
                  ", \"when\": ", s.when == nullptr ? "null" : json_text(s.when), "}");
  };
  return concat("{\"name\": ", json_text(rule.name), ", \"title\": ", json_text(rule.title),
                ", \"node\": ", json_text(rule.node), ", \"formula\": ", json_text(rule.formula),
                ", \"source\": ", json_text(rule.source),
                ", \"settings\": ", json_list(rule.settings, setting),
                ", \"states\": ", json_list(rule.states, state), "}");
}

}  // namespace

void ListOptimizers(OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator,
                   json_list(all_optimizers(), [](const OptimizerRule* rule) { return described(*rule); }));
}

}  // namespace ortrain::capi
