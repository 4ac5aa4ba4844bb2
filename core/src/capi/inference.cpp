// Forward sessions.
#include <algorithm>
#include <functional>
#include <memory>

#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "op/signature.h"

const ortrain::InferenceSession& OrtSession::session() const {
  ortrain::require(running != nullptr, ortrain::ErrorCode::kFail,
                   "the session is not finalized, expected a call of FinalizeModelEditorSession first");
  return *running;
}
ortrain::InferenceSession& OrtSession::session() {
  std::as_const(*this).session();
  return *running;
}
const std::vector<ortrain::ValueInfo>& OrtSession::inputs() const {
  return draft ? draft->model.graph.inputs : running->inputs();
}
const std::vector<ortrain::ValueInfo>& OrtSession::outputs() const {
  return draft ? draft->model.graph.outputs : running->outputs();
}
const std::vector<ortrain::ValueInfo>& OrtSession::overridable_initializers() const {
  return draft ? draft->notes.overridable : running->overridable_initializers();
}

namespace ortrain::capi {
namespace {

// What a run stores in an array of the caller: new values where the array has none.
void give(const OrtSession& session, const std::vector<std::string>& names, std::vector<Value>& results,
          OrtValue** outputs) {
  for (size_t i = 0; i < results.size(); ++i) {
    if (outputs[i] != nullptr) continue;
    const auto map = session.maps.outputs.find(names[i]);
    if (map == session.maps.outputs.end())
      outputs[i] = new OrtValue{std::move(results[i])};
    else
      outputs[i] = new OrtValue{
          Nothing{}, std::make_shared<OrtMaps>(maps_of_tensor(map->second, std::get<Tensor>(results[i])))};
  }
}

// The inputs of a run, where maps have become tensors.
std::vector<Value> inputs_of(const OrtSession& session, const char* const* names,
                             const OrtValue* const* values, size_t count) {
  std::vector<Value> out(count);
  for (size_t i = 0; i < count; ++i) {
    const auto map = session.maps.inputs.find(names[i]);
    const bool is_map = map != session.maps.inputs.end();
    require(is_map == (values[i]->maps != nullptr), ErrorCode::kInvalidArgument, "input '", names[i],
            "': expected ", is_map ? "a map" : "no map", ", found ",
            values[i]->maps ? "a map" : ortrain::describe(values[i]->value));
    out[i] = is_map ? tensor_of_map(map->second, *values[i]->maps) : values[i]->value;
  }
  return out;
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

void make_session(const OrtEnv& env, const OrtSessionOptions* options, SessionOptions settings, Model model,
                  ModelNotes notes, OrtSession** out) {
  auto session = std::make_unique<OrtSession>();
  session->logger = logger_of(env, options);
  start_session(*session, std::move(settings), std::move(model), std::move(notes));
  *out = session.release();
}

ReadOptions reading(const SessionOptions& settings, ModelNotes& notes) {
  ReadOptions how = read_options(settings);
  how.notes = &notes;
  return how;
}

}  // namespace

void start_session(OrtSession& session, SessionOptions settings, Model model, ModelNotes notes) {
  const OrtLogger& logger = *session.logger;
  log(logger, ORT_LOGGING_LEVEL_VERBOSE, "CreateSession",
      concat("read a model of ", model.graph.nodes.size(), " nodes and ", model.graph.initializers.size(),
             " initializers"));
  MapPorts maps = take_maps(model, notes);
  session.running =
      std::make_unique<InferenceSession>(std::move(settings), std::move(model), std::move(notes));
  session.maps = std::move(maps);
  session.draft.reset();
  log(logger, ORT_LOGGING_LEVEL_INFO, "CreateSession",
      concat("created a session with ", session.inputs().size(), " inputs and ", session.outputs().size(),
             " outputs"));
}

void CreateSession(const OrtEnv* env, const ORTCHAR_T* model_path, const OrtSessionOptions* options,
                   OrtSession** out) {
  SessionOptions settings = options_of(*env, options);
  ModelNotes notes;
  Model model = load_model(std::filesystem::path(model_path), reading(settings, notes));
  make_session(*env, options, std::move(settings), std::move(model), std::move(notes), out);
}

void CreateSessionFromArray(const OrtEnv* env, const void* model_data, size_t model_data_length,
                            const OrtSessionOptions* options, OrtSession** out) {
  SessionOptions settings = options_of(*env, options);
  ModelNotes notes;
  Model model = load_model(model_data, model_data_length, "model in memory", reading(settings, notes));
  make_session(*env, options, std::move(settings), std::move(model), std::move(notes), out);
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
  if (session->logger->level <= ORT_LOGGING_LEVEL_VERBOSE)
    log(*session->logger, ORT_LOGGING_LEVEL_VERBOSE, "Run",
        concat("a run with ", input_len, " inputs and ", output_names_len, " outputs begins"));
  std::vector<Value> results = values_of(outputs, output_names_len);
  const std::vector<std::string> wanted = texts(output_names, output_names_len);
  session->session().run(texts(input_names, input_len), inputs_of(*session, input_names, inputs, input_len),
                         wanted, results, core_of(run_options));
  give(*session, wanted, results, outputs);
}

void RunAsync(OrtSession* session, const OrtRunOptions* run_options, const char* const* input_names,
              const OrtValue* const* input, size_t input_len, const char* const* output_names,
              size_t output_names_len, OrtValue** output, RunAsyncCallbackFn run_async_callback,
              void* user_data) {
  require(output_names_len > 0, ErrorCode::kInvalidArgument,
          "output_names_len is 0, expected the name of at least one output");
  session->background.add([session, options = core_of(run_options), names = texts(input_names, input_len),
                           inputs = inputs_of(*session, input_names, input, input_len),
                           wanted = texts(output_names, output_names_len), output, run_async_callback,
                           user_data](bool abandoned) {
    OrtStatus* status = guarded("RunAsync", [&] {
      require(!abandoned, ErrorCode::kFail, "the session was released before the run began");
      std::vector<Value> results = values_of(output, wanted.size());
      session->session().run(names, inputs, wanted, results, options);
      give(*session, wanted, results, output);
    });
    run_async_callback(user_data, output, wanted.size(), status);
  });
}

void SessionGetProfilingStartTimeNs(const OrtSession* session, uint64_t* out) {
  *out = session->session().profiling_start();
}

void SessionEndProfiling(OrtSession* session, OrtAllocator* allocator, char** out) {
  *out = copy_text(allocator, session->session().end_profiling());
}

void SessionGetInputCount(const OrtSession* session, size_t* out) { *out = session->inputs().size(); }
void SessionGetOutputCount(const OrtSession* session, size_t* out) { *out = session->outputs().size(); }
void SessionGetOverridableInitializerCount(const OrtSession* session, size_t* out) {
  *out = session->overridable_initializers().size();
}

void SessionGetMemoryInfoForInputs(const OrtSession* session, const OrtMemoryInfo** inputs_memory_info,
                                   size_t num_inputs) {
  fill_memory_infos(session->inputs(), inputs_memory_info, num_inputs, "inputs");
}
void SessionGetMemoryInfoForOutputs(const OrtSession* session, const OrtMemoryInfo** outputs_memory_info,
                                    size_t num_outputs) {
  fill_memory_infos(session->outputs(), outputs_memory_info, num_outputs, "outputs");
}

void SessionGetInputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  const ValueInfo& input = item(session->inputs(), index, "input");
  const auto map = session->maps.inputs.find(input.name);
  *type_info =
      new OrtTypeInfo(map == session->maps.inputs.end() ? type_of(input) : type_of(map->second.type));
}
void SessionGetOutputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  const ValueInfo& output = item(session->outputs(), index, "output");
  const auto map = session->maps.outputs.find(output.name);
  *type_info =
      new OrtTypeInfo(map == session->maps.outputs.end() ? type_of(output) : type_of(map->second.type));
}
void SessionGetInputName(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, item(session->inputs(), index, "input").name);
}
void SessionGetOutputName(const OrtSession* session, size_t index, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, item(session->outputs(), index, "output").name);
}

void SessionGetOverridableInitializerTypeInfo(const OrtSession* session, size_t index,
                                              OrtTypeInfo** type_info) {
  *type_info =
      new OrtTypeInfo(type_of(item(session->overridable_initializers(), index, "overridable initializer")));
}
void SessionGetOverridableInitializerName(const OrtSession* session, size_t index, OrtAllocator* allocator,
                                          char** value) {
  *value =
      copy_text(allocator, item(session->overridable_initializers(), index, "overridable initializer").name);
}

}  // namespace ortrain::capi
