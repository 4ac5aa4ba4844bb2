// Forward sessions.
#include <algorithm>
#include <functional>
#include <memory>

#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "op/signature.h"

namespace ortrain::capi {
namespace {

// What a run stores in an array of the caller: new values where the array has none.
void give(std::vector<Value>& results, OrtValue** outputs) {
  for (size_t i = 0; i < results.size(); ++i)
    if (outputs[i] == nullptr) outputs[i] = new OrtValue{std::move(results[i])};
}

std::vector<Value> values_of(const OrtValue* const* values, size_t count) {
  std::vector<Value> out(count);
  for (size_t i = 0; i < count; ++i)
    if (values[i] != nullptr) out[i] = values[i]->value;
  return out;
}

void fill_memory_infos(const std::vector<ValueInfo>& values, const OrtMemoryInfo** infos, size_t count,
                       const char* what) {
  require(count == values.size(), ErrorCode::kInvalidArgument, "the model has ", values.size(), " ", what,
          ", found room for ", count);
  std::fill(infos, infos + count, &cpu_memory());
}

}  // namespace

void CreateSession(const OrtEnv* env, const ORTCHAR_T* model_path, const OrtSessionOptions* options,
                   OrtSession** out) {
  SessionOptions settings = options_of(*env, options);
  ModelNotes notes;
  Model model =
      load_model(std::filesystem::path(model_path),
                 {.limits = model_limits(settings), .given = settings.initializers, .notes = &notes});
  *out = new OrtSession{InferenceSession(std::move(settings), std::move(model), std::move(notes)), {}};
}

void CreateSessionFromArray(const OrtEnv* env, const void* model_data, size_t model_data_length,
                            const OrtSessionOptions* options, OrtSession** out) {
  SessionOptions settings = options_of(*env, options);
  ModelNotes notes;
  Model model =
      load_model(model_data, model_data_length, "model in memory",
                 {.limits = model_limits(settings), .given = settings.initializers, .notes = &notes});
  *out = new OrtSession{InferenceSession(std::move(settings), std::move(model), std::move(notes)), {}};
}

void CreatePrepackedWeightsContainer(OrtPrepackedWeightsContainer** out) {
  *out = new OrtPrepackedWeightsContainer;
}

void CreateSessionWithPrepackedWeightsContainer(const OrtEnv* env, const ORTCHAR_T* model_path,
                                                const OrtSessionOptions* options,
                                                OrtPrepackedWeightsContainer*, OrtSession** out) {
  CreateSession(env, model_path, options, out);
}

void CreateSessionFromArrayWithPrepackedWeightsContainer(const OrtEnv* env, const void* model_data,
                                                         size_t model_data_length,
                                                         const OrtSessionOptions* options,
                                                         OrtPrepackedWeightsContainer*, OrtSession** out) {
  CreateSessionFromArray(env, model_data, model_data_length, options, out);
}

void Run(OrtSession* session, const OrtRunOptions* run_options, const char* const* input_names,
         const OrtValue* const* inputs, size_t input_len, const char* const* output_names,
         size_t output_names_len, OrtValue** outputs) {
  require(output_names_len > 0, ErrorCode::kInvalidArgument,
          "output_names_len is 0, expected the name of at least one output");
  std::vector<Value> results = values_of(outputs, output_names_len);
  session->session.run(texts(input_names, input_len), values_of(inputs, input_len),
                       texts(output_names, output_names_len), results, core_of(run_options));
  give(results, outputs);
}

void RunAsync(OrtSession* session, const OrtRunOptions* run_options, const char* const* input_names,
              const OrtValue* const* input, size_t input_len, const char* const* output_names,
              size_t output_names_len, OrtValue** output, RunAsyncCallbackFn run_async_callback,
              void* user_data) {
  require(output_names_len > 0, ErrorCode::kInvalidArgument,
          "output_names_len is 0, expected the name of at least one output");
  session->background.add([session, options = core_of(run_options), names = texts(input_names, input_len),
                           inputs = values_of(input, input_len),
                           wanted = texts(output_names, output_names_len), output, run_async_callback,
                           user_data](bool abandoned) {
    OrtStatus* status = guarded("RunAsync", [&] {
      require(!abandoned, ErrorCode::kFail, "the session was released before the run began");
      std::vector<Value> results = values_of(output, wanted.size());
      session->session.run(names, inputs, wanted, results, options);
      give(results, output);
    });
    run_async_callback(user_data, output, wanted.size(), status);
  });
}

void SessionGetProfilingStartTimeNs(const OrtSession* session, uint64_t* out) {
  *out = session->session.profiling_start();
}

void SessionEndProfiling(OrtSession* session, OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator, session->session.end_profiling());
}

void SessionGetInputCount(const OrtSession* session, size_t* out) { *out = session->session.inputs().size(); }
void SessionGetOutputCount(const OrtSession* session, size_t* out) {
  *out = session->session.outputs().size();
}
void SessionGetOverridableInitializerCount(const OrtSession* session, size_t* out) {
  *out = session->session.overridable_initializers().size();
}

void SessionGetMemoryInfoForInputs(const OrtSession* session, const OrtMemoryInfo** inputs_memory_info,
                                   size_t num_inputs) {
  fill_memory_infos(session->session.inputs(), inputs_memory_info, num_inputs, "inputs");
}
void SessionGetMemoryInfoForOutputs(const OrtSession* session, const OrtMemoryInfo** outputs_memory_info,
                                    size_t num_outputs) {
  fill_memory_infos(session->session.outputs(), outputs_memory_info, num_outputs, "outputs");
}

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

void SessionGetOverridableInitializerTypeInfo(const OrtSession* session, size_t index,
                                              OrtTypeInfo** type_info) {
  *type_info = new OrtTypeInfo(
      type_of(item(session->session.overridable_initializers(), index, "overridable initializer")));
}
void SessionGetOverridableInitializerName(const OrtSession* session, size_t index, OrtAllocator* allocator,
                                          char** value) {
  *value = copy_text(
      allocator, item(session->session.overridable_initializers(), index, "overridable initializer").name);
}

}  // namespace ortrain::capi
