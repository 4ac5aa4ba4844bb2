// Forward sessions.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "built_operators.h"
#include "capi/generated/bodies.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "op/signature.h"
#include "runtime/generated/parts.h"

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
  return draft ? draft->model.graph.inputs : sparse.inputs.empty() ? running->inputs() : shown_inputs;
}
const std::vector<ortrain::ValueInfo>& OrtSession::outputs() const {
  return draft ? draft->model.graph.outputs : sparse.outputs.empty() ? running->outputs() : shown_outputs;
}
const std::vector<ortrain::ValueInfo>& OrtSession::overridable_initializers() const {
  return draft ? draft->notes.overridable : running->overridable_initializers();
}

namespace ortrain::capi {
namespace {

// Whether the build has one of the operators whose work a session does for a model with maps (capi/maps.h).
constexpr bool kTakesMaps = is_built("ai.onnx.ml", "ZipMap") || is_built("ai.onnx.ml", "DictVectorizer") ||
                            is_built("ai.onnx.ml", "CastMap");

constexpr const char* kRecordsParts = "session.record_ep_graph_assignment_info";

// The inputs and requested outputs of one run.
struct Request {
  GivenValues inputs;
  std::map<std::string, std::shared_ptr<OrtSparseTensor>> sparse;  // inputs that may be passed through
  std::vector<std::string> outputs;
};

Request request_of(const OrtSession& session, const char* const* names, const OrtValue* const* values,
                   size_t count, const char* const* outputs, size_t output_count) {
  require(output_count > 0, ErrorCode::kInvalidArgument,
          "output_names_len is 0, expected the name of at least one output");
  Request request{{}, {}, texts(outputs, output_count)};
  for (size_t i = 0; i < count; ++i) {
    add_input(session, names[i], *values[i], request.inputs);
    if (values[i]->sparse) request.sparse.emplace(names[i], values[i]->sparse);
  }
  return request;
}

// A sparse input that is an output as well.
OrtValue* passed_through(const Request& request, const std::string& name, const OrtValue* place) {
  const auto given = request.sparse.find(name);
  require(given != request.sparse.end(), ErrorCode::kInvalidArgument, "output '", name,
          "' is an input, which was not given");
  require(place == nullptr, ErrorCode::kInvalidArgument, "output '", name,
          "': sparse tensors are not written into values, expected a null pointer");
  if (given->second->allocator) return new OrtValue{Nothing{}, nullptr, given->second};
  auto copy = std::make_shared<OrtSparseTensor>(*given->second);  // the caller's memory may end before
  copy->allocator = default_allocator();
  for (Tensor* part : {&copy->values, &copy->indices, &copy->starts})
    if (part->defined()) *part = part->clone();
  return new OrtValue{Nothing{}, nullptr, std::move(copy)};
}

// Stores the results in an array of the caller: new values where the array has none.
void run(OrtSession& session, const Request& request, const RunOptions* options, OrtValue** outputs) {
  std::vector<std::string> wanted;
  std::vector<OrtValue**> places;
  std::vector<Value> results;
  for (size_t i = 0; i < request.outputs.size(); ++i) {
    if (session.sparse.inputs.count(request.outputs[i]) > 0) continue;
    wanted.push_back(request.outputs[i]);
    places.push_back(outputs + i);
    const bool fits = outputs[i] && !outputs[i]->maps && !outputs[i]->sparse;
    results.push_back(fits ? outputs[i]->value : Value());
  }
  ortrain::InferenceSession& running = session.session();
  if (!wanted.empty() || session.sparse.inputs.empty())
    running.run(request.inputs.names, request.inputs.values, wanted, results, options);
  for (size_t i = 0; i < request.outputs.size(); ++i)
    if (session.sparse.inputs.count(request.outputs[i]) > 0)
      outputs[i] = passed_through(request, request.outputs[i], outputs[i]);
  for (size_t i = 0; i < wanted.size(); ++i) {
    OrtValue made = output_of(session, wanted[i], results[i]);
    if (*places[i] == nullptr)
      *places[i] = new OrtValue(std::move(made));
    else if (made.maps || made.sparse)
      **places[i] = std::move(made);
  }
}

// Lists the inputs and outputs of the model, with sparse ones in place of the dense tensors that the session
// runs on.
void show_sparse(OrtSession& session) {
  const std::map<std::string, SparsePort>& ports = session.sparse.inputs;
  std::set<std::string> added;
  for (const auto& [name, port] : ports) added.insert({port.indices, port.shape});
  for (const ValueInfo& input : session.running->inputs()) {
    if (added.count(input.name) > 0) continue;
    const auto port = ports.find(input.name);
    session.shown_inputs.push_back(port == ports.end() ? input : port->second.info);
  }
  for (const std::string& name : session.sparse.outputs) {
    const std::vector<ValueInfo>& outputs = session.running->outputs();
    const auto output = std::find_if(outputs.begin(), outputs.end(),
                                     [&](const ValueInfo& info) { return info.name == name; });
    session.shown_outputs.push_back(output == outputs.end() ? ports.at(name).info : *output);
  }
}

// The type of an input or output of the model.
OrtTypeInfo type_in(const OrtSession& session, const ValueInfo& info,
                    const std::map<std::string, MapPort>& maps) {
  if (const auto map = maps.find(info.name); map != maps.end()) return type_of(map->second.type);
  return session.notes().sparse.count(info.name) > 0 ? type_of_sparse(info) : type_of(info);
}

void fill_memory_infos(const std::vector<ValueInfo>& values, const OrtMemoryInfo** infos, size_t count,
                       const char* what) {
  require(count == values.size(), ErrorCode::kInvalidArgument, "the model has ", counted(values.size(), what),
          ", found room for ", count);
  std::fill(infos, infos + count, &cpu_memory());
}

void make_session(const OrtEnv& env, const OrtSessionOptions* options, SessionOptions settings, Model model,
                  ModelNotes notes, OrtSession** out) {
  auto session = std::make_unique<OrtSession>();
  session->logger = logger_of(env, options);
  session->allocator = allocator_of(env, settings);
  start_session(*session, std::move(settings), std::move(model), std::move(notes));
  *out = session.release();
}

ReadOptions reading(const SessionOptions& settings, ModelNotes& notes) {
  ReadOptions how = read_options(settings);
  how.notes = &notes;
  how.map_external = true;
  return how;
}

}  // namespace

void add_input(const OrtSession& session, const std::string& name, const OrtValue& value, GivenValues& to) {
  const auto map = session.maps.inputs.find(name);
  const auto port = session.sparse.inputs.find(name);
  const bool is_map = map != session.maps.inputs.end(), is_sparse = port != session.sparse.inputs.end();
  require(is_map == (value.maps != nullptr) && is_sparse == (value.sparse != nullptr),
          ErrorCode::kInvalidArgument, "input '", name, "': expected ",
          is_map      ? "a map"
          : is_sparse ? "a sparse tensor"
                      : "a value that is neither a map nor sparse",
          ", found ",
          value.maps     ? "a map"
          : value.sparse ? "a sparse tensor"
                         : ortrain::describe(value.value));
  if (kSparsePart.is_built && is_sparse) {
    for (auto& [input, tensor] : tensors_of_sparse(name, port->second, *value.sparse)) {
      to.names.push_back(input);
      to.values.push_back(std::move(tensor));
    }
    return;
  }
  to.names.push_back(name);
  to.values.push_back(kTakesMaps && is_map ? tensor_of_map(map->second, *value.maps) : value.value);
}

OrtValue output_of(const OrtSession& session, const std::string& name, const Value& value) {
  const auto* tensor = std::get_if<Tensor>(&value);
  if (tensor == nullptr || !tensor->defined()) return {value};
  if (const auto map = session.maps.outputs.find(name); kTakesMaps && map != session.maps.outputs.end())
    return {Nothing{}, std::make_shared<OrtMaps>(maps_of_tensor(map->second, *tensor))};
  if (kSparsePart.is_built && session.notes().sparse.count(name) > 0)
    return {Nothing{}, nullptr, std::make_shared<OrtSparseTensor>(sparse_of_tensor(*tensor))};
  return {value};
}

void start_session(OrtSession& session, SessionOptions settings, Model model, ModelNotes notes) {
  session.threads = thread_count(settings.intra_op_threads);
  if (settings.may_continue) settings.may_continue();
  const auto recorded = settings.config.find(kRecordsParts);
  const bool records_parts = recorded != settings.config.end() && recorded->second == "1";
  const OrtLogger& logger = *session.logger;
  log(logger, ORT_LOGGING_LEVEL_VERBOSE, "CreateSession",
      concat("read a model of ", counted(model.graph.nodes.size(), "node"), " and ",
             counted(model.graph.initializers.size(), "initializer")));
  MapPorts maps;
  if constexpr (kTakesMaps) maps = take_maps(model, notes);
  SparsePorts sparse;
  if constexpr (kSparsePart.is_built)
    sparse = take_sparse(model, notes);
  else
    require(notes.sparse.empty(), ErrorCode::kNotImplemented,
            "the model has sparse inputs or outputs; this build of the library leaves out ",
            kSparsePart.title, "; build it with the CMake option ", kSparsePart.option, "=ON");
  session.running =
      std::make_unique<InferenceSession>(std::move(settings), std::move(model), std::move(notes));
  session.maps = std::move(maps);
  session.sparse = std::move(sparse);
  show_sparse(session);
  session.draft.reset();
  for (const Node& node : session.running->model().graph.nodes)
    if (records_parts) {
      OrtEpAssignedSubgraph& part = session.parts.emplace_back();
      part.node = {node.name, node.domain, node.op_type};
      part.nodes[0] = &part.node;
      session.part_list.push_back(&part);
    }
  log(logger, ORT_LOGGING_LEVEL_INFO, "CreateSession",
      concat("created a session with ", counted(session.inputs().size(), "input"), " and ",
             counted(session.outputs().size(), "output")));
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
  if (session->logger->level <= ORT_LOGGING_LEVEL_VERBOSE)
    log(*session->logger, ORT_LOGGING_LEVEL_VERBOSE, "Run",
        concat("a run with ", counted(input_len, "input"), " and ", counted(output_names_len, "output"),
               " begins"));
  run(*session, request_of(*session, input_names, inputs, input_len, output_names, output_names_len),
      core_of(run_options), outputs);
}

void RunAsync(OrtSession* session, const OrtRunOptions* run_options, const char* const* input_names,
              const OrtValue* const* input, size_t input_len, const char* const* output_names,
              size_t output_names_len, OrtValue** output, RunAsyncCallbackFn run_async_callback,
              void* user_data) {
  require(session->threads > 1, ErrorCode::kInvalidArgument,
          "intra op thread pool must have at least one thread for RunAsync: the session was created with one "
          "thread, which is the caller's; expected two or more (SetIntraOpNumThreads)");
  Request request = request_of(*session, input_names, input, input_len, output_names, output_names_len);
  session->background.add([session, options = core_of(run_options), request = std::move(request), output,
                           run_async_callback, user_data](bool abandoned) {
    OrtStatus* status = guarded("RunAsync", [&] {
      require(!abandoned, ErrorCode::kFail, "the session was released before the run began");
      run(*session, request, options, output);
    });
    run_async_callback(user_data, output, status == nullptr ? request.outputs.size() : 0, status);
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
  fill_memory_infos(session->inputs(), inputs_memory_info, num_inputs, "input");
}
void SessionGetMemoryInfoForOutputs(const OrtSession* session, const OrtMemoryInfo** outputs_memory_info,
                                    size_t num_outputs) {
  fill_memory_infos(session->outputs(), outputs_memory_info, num_outputs, "output");
}

void SessionGetInputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  const ValueInfo& input = item(session->inputs(), index, "input");
  *type_info = new OrtTypeInfo(type_in(*session, input, session->maps.inputs));
}
void SessionGetOutputTypeInfo(const OrtSession* session, size_t index, OrtTypeInfo** type_info) {
  const ValueInfo& output = item(session->outputs(), index, "output");
  *type_info = new OrtTypeInfo(type_in(*session, output, session->maps.outputs));
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

void Session_GetEpGraphAssignmentInfo(const OrtSession* session,
                                      const OrtEpAssignedSubgraph* const** ep_subgraphs,
                                      size_t* num_ep_subgraphs) {
  require(!session->part_list.empty() || session->session().model().graph.nodes.empty(), ErrorCode::kFail,
          "the session did not record which provider runs which node, expected options with the entry ",
          kRecordsParts, " of value \"1\"");
  *ep_subgraphs = session->part_list.data();
  *num_ep_subgraphs = session->part_list.size();
}
void EpAssignedSubgraph_GetEpName(const OrtEpAssignedSubgraph*, const char** out) {
  *out = provider_names()[0].c_str();
}
void EpAssignedSubgraph_GetNodes(const OrtEpAssignedSubgraph* ep_subgraph,
                                 const OrtEpAssignedNode* const** ep_nodes, size_t* num_ep_nodes) {
  *ep_nodes = ep_subgraph->nodes;
  *num_ep_nodes = 1;
}
void EpAssignedNode_GetName(const OrtEpAssignedNode* ep_node, const char** out) {
  *out = ep_node->name.c_str();
}
void EpAssignedNode_GetDomain(const OrtEpAssignedNode* ep_node, const char** out) {
  *out = ep_node->domain.c_str();
}
void EpAssignedNode_GetOperatorType(const OrtEpAssignedNode* ep_node, const char** out) {
  *out = ep_node->type.c_str();
}

void SetEpDynamicOptions(OrtSession*, const char* const*, const char* const*, size_t kv_len) {
  require(kv_len > 0, ErrorCode::kInvalidArgument, "kv_len is 0, expected at least one option");
}
void SessionReleaseCapturedGraph(OrtSession*, int) {}

void SessionGetNodeOutputType(const OrtSession* session, const char* name, ONNXTensorElementDataType* out) {
  *out = element_type_of(session->session().node_output_type(name));
}

}  // namespace ortrain::capi
