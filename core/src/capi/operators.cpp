// The lists of operators and metrics.
#include <string>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "capi/json.h"
#include "op/operator.h"
#include "op/session_domain.h"

namespace ortrain::capi {

namespace {

[[maybe_unused]] std::string described(const MetricOption& option) {
  const bool is_choice = !option.choices.empty();
  const auto place = static_cast<size_t>(is_choice ? option.value : 0);
  return concat("{\"name\": ", json_text(option.name),
                ", \"default\": ", is_choice ? json_text(option.choices[place]) : json_number(option.value),
                ", \"at_least\": ", json_number(option.least), ", \"at_most\": ", json_number(option.most),
                ", \"choices\": ", json_list(option.choices, json_text),
                ", \"meaning\": ", json_text(option.meaning), "}");
}

[[maybe_unused]] std::string described(const MetricRule& rule) {
  return concat("{\"name\": ", json_text(rule.name), ", \"formula\": ", json_text(rule.formula),
                ", \"source\": ", json_text(rule.source),
                ", \"reads_prediction\": ", rule.reads_prediction ? "true" : "false", ", \"options\": ",
                json_list(rule.options, [](const MetricOption& option) { return described(option); }), "}");
}

}  // namespace

void ListOperators(OrtAllocator* allocator, char** out) {
  std::string lines;
  for (const Operator* op : all_operators()) {
    if (op->domain == kSessionDomain) continue;  // no model has it
    const Differentiable kind = op->differentiable();
    lines += concat(op->domain, ",", op->type, ",",
                    kind == Differentiable::kYes    ? "yes"
                    : kind == Differentiable::kStop ? "stop"
                    : op->rules.decompose           ? "decomposed"
                                                    : "no",
                    "\n");
  }
  *out = copy_text(allocator, lines);
}

void ListMetrics(OrtAllocator* allocator, char** out) {
  if constexpr (!kMetricsPart.is_built) {
    *out = copy_text(allocator, "[]");
  } else {
    *out = copy_text(allocator,
                     json_list(all_metrics(), [](const MetricRule* rule) { return described(*rule); }));
  }
}

}  // namespace ortrain::capi
