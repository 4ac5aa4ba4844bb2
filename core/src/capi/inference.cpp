// Forward sessions.
#include <chrono>

#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "op/signature.h"

namespace ortrain::capi {
namespace {

const std::vector<ValueInfo> kOverridable;  // initializers are constants

}  // namespace

void CreateSession(const OrtEnv* env, const ORTCHAR_T* model_path, const OrtSessionOptions* options,
                   OrtSession** out) {
  const SessionOptions settings = options_of(*env, options);
  *out = new OrtSession{
      InferenceSession(settings, load_model(std::filesystem::path(model_path), model_limits(settings)))};
}

void CreateSessionFromArray(const OrtEnv* env, const void* model_data, size_t model_data_length,
                            const OrtSessionOptions* options, OrtSession** out) {
  const SessionOptions settings = options_of(*env, options);
  *out = new OrtSession{InferenceSession(
      settings, load_model(model_data, model_data_length, "model in memory", model_limits(settings)))};
}

void Run(OrtSession* session, const OrtRunOptions* run_options, const char* const* input_names,
         const OrtValue* const* inputs, size_t input_len, const char* const* output_names,
         size_t output_names_len, OrtValue** outputs) {
  require(output_names_len > 0, ErrorCode::kInvalidArgument,
          "output_names_len is 0, expected the name of at least one output");
  std::vector<Value> given, results(output_names_len);
  for (size_t i = 0; i < input_len; ++i) given.push_back(inputs[i]->value);
  for (size_t i = 0; i < output_names_len; ++i)
    if (outputs[i] != nullptr) results[i] = outputs[i]->value;
  session->session.run(texts(input_names, input_len), given, texts(output_names, output_names_len), results,
                       core_of(run_options));
  for (size_t i = 0; i < output_names_len; ++i)
    if (outputs[i] == nullptr) outputs[i] = new OrtValue{std::move(results[i])};
}

void SessionGetProfilingStartTimeNs(const OrtSession* session, uint64_t* out) {
  const auto since_epoch = session->made.time_since_epoch();
  *out = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(since_epoch).count());
}

void SessionGetInputCount(const OrtSession* session, size_t* out) { *out = session->session.inputs().size(); }
void SessionGetOutputCount(const OrtSession* session, size_t* out) {
  *out = session->session.outputs().size();
}
void SessionGetOverridableInitializerCount(const OrtSession*, size_t* out) { *out = kOverridable.size(); }

void SessionGetInputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(type_of(item(session->session.inputs(), index, "input")));
}
void SessionGetOutputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(type_of(item(session->session.outputs(), index, "output")));
}
void SessionGetInputName(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, item(session->session.inputs(), index, "input").name);
}
void SessionGetOutputName(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, item(session->session.outputs(), index, "output").name);
}

void SessionGetOverridableInitializerTypeInfo(const OrtSession*, size_t index, OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(type_of(item(kOverridable, index, "overridable initializer")));
}
void SessionGetOverridableInitializerName(const OrtSession*, size_t index, OrtAllocator* allocator,
                                          char** value) {
  *value = copy_text(allocator, item(kOverridable, index, "overridable initializer").name);
}

}  // namespace ortrain::capi
