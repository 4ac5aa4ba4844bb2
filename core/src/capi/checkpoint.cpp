// Checkpoint states: properties, parameters by name, gradients, and listing.
#include <cstring>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {
namespace {

// A copy in memory from the caller's allocator.
OrtValue* copy_value(OrtAllocator* allocator, const Tensor& source) {
  Tensor copy = allocate_tensor(allocator, source.dtype(), source.shape());
  copy.copy_from(source);
  return new OrtValue{std::move(copy)};
}

OrtPropertyType type_of(const Property& property) { return static_cast<OrtPropertyType>(property.index()); }
static_assert(std::is_same_v<std::variant_alternative_t<OrtIntProperty, Property>, int64_t>);
static_assert(std::is_same_v<std::variant_alternative_t<OrtFloatProperty, Property>, float>);
static_assert(std::is_same_v<std::variant_alternative_t<OrtStringProperty, Property>, std::string>);

template <typename T>
void* copy_number(OrtAllocator* allocator, T value) {
  return std::memcpy(allocate(allocator, sizeof value), &value, sizeof value);
}

}  // namespace

void AddProperty(OrtCheckpointState* checkpoint_state, const char* property_name,
                 OrtPropertyType property_type, void* property_value) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  auto& properties = checkpoint_state->state->properties();
  switch (property_type) {
    case OrtIntProperty:
      properties[property_name] = *static_cast<const int64_t*>(property_value);
      return;
    case OrtFloatProperty:
      properties[property_name] = *static_cast<const float*>(property_value);
      return;
    case OrtStringProperty:
      properties[property_name] = std::string(static_cast<const char*>(property_value));
      return;
  }
  fail(ErrorCode::kInvalidArgument, "property '", property_name, "' has type ",
       static_cast<int>(property_type), ", expected 0 (int), 1 (float) or 2 (string)");
}

void GetProperty(const OrtCheckpointState* checkpoint_state, const char* property_name,
                 OrtAllocator* allocator, OrtPropertyType* property_type, void** property_value) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  const Property& property = checkpoint_state->state->property(property_name);
  if (const auto* number = std::get_if<int64_t>(&property)) *property_value = copy_number(allocator, *number);
  if (const auto* number = std::get_if<float>(&property)) *property_value = copy_number(allocator, *number);
  if (const auto* text = std::get_if<std::string>(&property)) *property_value = copy_text(allocator, *text);
  *property_type = type_of(property);
}

void GetParameterTypeAndShape(const OrtCheckpointState* checkpoint_state, const char* parameter_name,
                              OrtTensorTypeAndShapeInfo** parameter_type_and_shape) {
  *parameter_type_and_shape =
      new OrtTensorTypeAndShapeInfo(describe(core_of(*checkpoint_state).parameter(parameter_name).data));
}

void UpdateParameter(OrtCheckpointState* checkpoint_state, const char* parameter_name, OrtValue* parameter) {
  core_of(*checkpoint_state).update_parameter(parameter_name, tensor_of(*parameter));
}

void GetParameter(const OrtCheckpointState* checkpoint_state, const char* parameter_name,
                  OrtAllocator* allocator, OrtValue** parameter) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  const CheckpointState& state = core_of(*checkpoint_state);
  const Parameter& found = state.parameter(parameter_name);
  state.require_values(concat("getting the parameter \"", parameter_name, "\""), "the parameter states");
  *parameter = copy_value(allocator, found.row_major(found.data));
}

void CheckpointGetParameterCount(const OrtCheckpointState* checkpoint_state, size_t* out) {
  *out = core_of(*checkpoint_state).parameters().size();
}

void CheckpointGetParameterName(const OrtCheckpointState* checkpoint_state, size_t index,
                                OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator, item(core_of(*checkpoint_state).parameters(), index, "parameter").name);
}

void CheckpointIsParameterTrainable(const OrtCheckpointState* checkpoint_state, const char* parameter_name,
                                    int* out) {
  *out = core_of(*checkpoint_state).parameter(parameter_name).trainable;
}

void CheckpointGetParameterGradient(const OrtCheckpointState* checkpoint_state, const char* parameter_name,
                                    OrtAllocator* allocator, OrtValue** gradient) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  const CheckpointState& state = core_of(*checkpoint_state);
  const Parameter& parameter = state.parameter(parameter_name);
  require(parameter.trainable, ErrorCode::kInvalidArgument, "the parameter '", parameter_name,
          "' is frozen and has no gradient, expected a trainable one");
  if (state.has_zero_gradients()) {
    Tensor zeros = allocate_tensor(allocator, parameter.data.dtype(), parameter.data.shape());
    std::memset(zeros.raw(), 0, zeros.bytes());
    *gradient = new OrtValue{std::move(zeros)};
    return;
  }
  require(state.has_gradients() && parameter.gradient.defined(), ErrorCode::kRuntimeException,
          "the parameter '", parameter_name,
          "' has no gradient: no session was created with the state, or its last train step failed; run a "
          "train step first");
  *gradient = copy_value(allocator, parameter.row_major(parameter.gradient));
}

void CheckpointSetParameterGradient(OrtCheckpointState* checkpoint_state, const char* parameter_name,
                                    const OrtValue* gradient) {
  core_of(*checkpoint_state).set_gradient(parameter_name, tensor_of(*gradient));
}

void CheckpointGetPropertyCount(const OrtCheckpointState* checkpoint_state, size_t* out) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  *out = core_of(*checkpoint_state).properties().size();
}

void CheckpointGetPropertyName(const OrtCheckpointState* checkpoint_state, size_t index,
                               OrtAllocator* allocator, char** out) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  const auto& properties = core_of(*checkpoint_state).properties();
  require(index < properties.size(), ErrorCode::kInvalidArgument, "there is no property with index ", index,
          ", expected an index below ", properties.size());
  *out = copy_text(allocator, std::next(properties.begin(), static_cast<std::ptrdiff_t>(index))->first);
}

void CheckpointGetPropertyType(const OrtCheckpointState* checkpoint_state, const char* property_name,
                               OrtPropertyType* out) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  *out = type_of(checkpoint_state->state->property(property_name));
}

void CheckpointIsNominal(const OrtCheckpointState* checkpoint_state, int* out) {
  *out = core_of(*checkpoint_state).is_nominal();
}

void CheckpointGetOptimizerStepCount(const OrtCheckpointState* checkpoint_state, int64_t* out) {
  const TurnLock::Turn turn = core_of(*checkpoint_state).hold();
  const CheckpointState& state = core_of(*checkpoint_state);
  *out = state.has_optimizer_state() ? state.optimizer().step : 0;
}

void CreateCheckpoint(const char* const* names, const OrtValue* const* values, const bool* trainable,
                      size_t count, bool nominal, OrtCheckpointState** checkpoint_state) {
  auto state = std::make_shared<CheckpointState>();
  for (size_t i = 0; i < count; ++i) state->add_parameter(names[i], trainable[i], tensor_of(*values[i]));
  state->set_nominal(nominal);
  *checkpoint_state = wrap(std::move(state));
}

void CheckpointAddParameter(OrtCheckpointState* checkpoint_state, const char* parameter_name,
                            const OrtValue* value, bool trainable) {
  CheckpointState& state = core_of(*checkpoint_state);
  const TurnLock::Turn turn = state.hold();
  state.add_parameter(parameter_name, trainable, tensor_of(*value));
}

void CheckpointAssign(OrtCheckpointState* checkpoint_state, const OrtCheckpointState* source) {
  core_of(*checkpoint_state).assign(core_of(*source));
}

}  // namespace ortrain::capi
