// Metrics: what a model is worth, counted batch by batch.
#include <cstring>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "capi/json.h"

namespace ortrain::capi {

namespace {

std::string described(const MetricOption& option) {
  const bool is_choice = !option.choices.empty();
  const auto place = static_cast<size_t>(is_choice ? option.value : 0);
  return concat("{\"name\": ", json_text(option.name),
                ", \"default\": ", is_choice ? json_text(option.choices[place]) : json_number(option.value),
                ", \"at_least\": ", json_number(option.least), ", \"at_most\": ", json_number(option.most),
                ", \"choices\": ", json_list(option.choices, json_text),
                ", \"meaning\": ", json_text(option.meaning), "}");
}

std::string described(const MetricRule& rule) {
  return concat("{\"name\": ", json_text(rule.name), ", \"formula\": ", json_text(rule.formula),
                ", \"source\": ", json_text(rule.source),
                ", \"reads_prediction\": ", rule.reads_prediction ? "true" : "false", ", \"options\": ",
                json_list(rule.options, [](const MetricOption& option) { return described(option); }), "}");
}

const Tensor* tensor_or_none(const OrtValue* value) {
  return value == nullptr ? nullptr : &tensor_of(*value);
}

}  // namespace

void CreateMetric(const char* name, const char* options, OrtMetric** out) {
  *out = new OrtMetric{Metric(name, options)};
}

void MetricUpdate(OrtMetric* metric, const OrtValue* prediction, const OrtValue* target,
                  const OrtValue* loss) {
  metric->value.update(tensor_or_none(prediction), tensor_of(*target), tensor_or_none(loss));
}

void MetricResult(OrtMetric* metric, OrtValue** out) { *out = new OrtValue{metric->value.result()}; }

void MetricReset(OrtMetric* metric) { metric->value.reset(); }

void MetricMerge(OrtMetric* metric, const OrtMetric* other) { metric->value.merge(other->value); }

void MetricGetState(OrtMetric* metric, OrtAllocator* allocator, void** out, size_t* out_length) {
  const std::string state = metric->value.state();
  *out = std::memcpy(allocate(allocator, state.size()), state.data(), state.size());
  *out_length = state.size();
}

void MetricSetState(OrtMetric* metric, const void* state, size_t state_length) {
  metric->value.load_state(state, state_length);
}

void ListMetrics(OrtAllocator* allocator, char** out) {
  *out =
      copy_text(allocator, json_list(all_metrics(), [](const MetricRule* rule) { return described(*rule); }));
}

}  // namespace ortrain::capi
