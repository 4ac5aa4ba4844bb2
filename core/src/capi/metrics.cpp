// Metrics: how good predictions are, computed batch by batch.
#include <cstring>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {

namespace {

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

}  // namespace ortrain::capi
