// Models that a program builds in memory, or extends before they run.
#include <algorithm>
#include <limits>
#include <set>

#include "capi/generated/bodies.h"
#include "capi/graph_handles.h"
#include "graph/checked_model.h"
#include "op/operator.h"
#include "op/signature.h"

namespace ortrain::capi {
namespace {

// Smaller tensors are copied, because shapes are computed from their elements.
constexpr size_t kSmallestExternal = 128;

std::string domain_of(const char* name) { return std::string_view(name) == "ai.onnx" ? "" : name; }

OrtTypeInfo* type_with(ONNXType kind) {
  auto type = std::make_unique<OrtTypeInfo>();
  type->kind = kind;
  return type.release();
}

std::shared_ptr<OrtTypeInfo> copy_of(const OrtTypeInfo* type) { return std::make_shared<OrtTypeInfo>(*type); }

void take_values(OrtGraph& graph, std::vector<std::unique_ptr<OrtValueInfo>>& to, OrtValueInfo** from,
                 size_t count) {
  std::set<const OrtValueInfo*> seen;
  for (size_t i = 0; i < count; ++i) {
    require(from[i]->graph == nullptr, ErrorCode::kInvalidArgument, "value ", i, ", '", from[i]->name,
            "', has already been added to a graph");
    require(seen.insert(from[i]).second, ErrorCode::kInvalidArgument, "value ", i, ", '", from[i]->name,
            "', is given twice");
  }
  std::vector<std::unique_ptr<OrtValueInfo>> taken(count);
  graph.changes();
  for (size_t i = 0; i < count; ++i) {
    taken[i].reset(std::exchange(from[i], nullptr));
    taken[i]->graph = &graph;
  }
  to = std::move(taken);
}

ValueInfo info_of(const OrtValueInfo& value) {
  ValueInfo info;
  info.name = value.name;
  if (!value.type) return info;
  const OrtTypeInfo* type = &*value.type;
  if (type->kind == ONNX_TYPE_OPTIONAL) {
    info.is_optional = true;
    type = type->optional.contained.get();
  }
  if (type->kind == ONNX_TYPE_SEQUENCE) {
    info.is_sequence = true;
    type = type->sequence.element.get();
  }
  const OrtTensorTypeAndShapeInfo& tensor = type->tensor;
  info.dtype = any_dtype_of(tensor.type);
  if (!tensor.has_shape) return info;
  info.dims.emplace();
  for (size_t i = 0; i < tensor.dims.size(); ++i)
    info.dims->push_back({tensor.dims[i], i < tensor.symbols.size() ? tensor.symbols[i] : std::string()});
  return info;
}

// Gives the value of a Constant the attribute name of its type. onnxruntime accepts a value under the name of
// another type.
void name_constant(Node& node) {
  if (!node.domain.empty() || node.op_type != "Constant" || node.attributes.size() != 1) return;
  struct Name {
    const char* operator()(int64_t) { return "value_int"; }
    const char* operator()(float) { return "value_float"; }
    const char* operator()(const std::string&) { return "value_string"; }
    const char* operator()(const std::vector<int64_t>&) { return "value_ints"; }
    const char* operator()(const std::vector<float>&) { return "value_floats"; }
    const char* operator()(const std::vector<std::string>&) { return "value_strings"; }
    const char* operator()(const Tensor&) { return "value"; }
    const char* operator()(const std::shared_ptr<Graph>&) { return nullptr; }
    const char* operator()(const ValueInfo&) { return nullptr; }
  };
  const auto first = node.attributes.begin();
  const char* name = std::visit(Name(), first->second);
  if (!name || first->first == name) return;
  Attribute value = std::move(first->second);
  node.attributes.clear();
  node.attributes.emplace(name, std::move(value));
}

// The newest version of a domain of which the library has operators; 0 if it has none.
int64_t newest_version(std::string_view domain) {
  int64_t version = 0;
  for (const Operator* op : all_operators()) {
    if (op->domain != domain) continue;
    const auto newest = onnx_version(domain, op->type, std::numeric_limits<int64_t>::max());
    version = std::max(version, newest ? newest->since : 1);
  }
  return version;
}

// The version of a domain for nodes that need it in models that do not state it; 0 if neither the library nor
// the program has such an operator.
int64_t known_version(const Node& node, const CustomOperators* custom) {
  if (custom && custom->find(node, 1)) return 1;
  return find_operator(node.domain, node.op_type) ? newest_version(node.domain) : 0;
}

void import_domains(const Graph& graph, const CustomOperators* custom, Model& model) {
  for (const Node& node : graph.nodes) {
    if (!node.domain.empty() && model.opsets.count(node.domain) == 0) {
      const int64_t version = known_version(node, custom);
      require(version > 0, ErrorCode::kInvalidGraph, node.label(), " is of operator set ", node.domain,
              ", which the model does not import; neither the library nor the program has this operator");
      model.opsets.emplace(node.domain, version);
    }
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
        import_domains(**inner, custom, model);
  }
}

// Checks that each value is defined once, and that every value that a node reads is defined.
void check_values(const Graph& graph) {
  std::set<std::string_view> known;
  const auto add = [&](const std::string& name, const std::string& place) {
    require(known.insert(name).second, ErrorCode::kFail, "the value '", name, "', ", place,
            ", is defined twice");
  };
  for (const ValueInfo& input : graph.inputs) add(input.name, "a graph input");
  for (const auto& [name, value] : graph.initializers) add(name, "an initializer");
  for (const Node& node : graph.nodes)
    for (const std::string& name : node.outputs)
      if (!name.empty()) add(name, concat("computed by ", node.label()));
  for (const Node& node : graph.nodes)
    for (const std::string& name : node.inputs)
      require(name.empty() || known.count(name) > 0, ErrorCode::kInvalidArgument, node.label(),
              ": its input '", name, "' is not a graph input, initializer, or output of another node");
}

ReadOptions reading(const SessionOptions& settings) {
  return {.limits = model_limits(settings), .given = settings.initializers};
}

void make_draft(const OrtEnv& env, const OrtSessionOptions* options, SessionOptions settings, Model model,
                ModelNotes notes, OrtSession** out) {
  auto session = std::make_unique<OrtSession>();
  session->logger = logger_of(env, options);
  session->draft = std::make_unique<OrtSession::Draft>(
      OrtSession::Draft{std::move(settings), std::move(model), std::move(notes)});
  *out = session.release();
}

}  // namespace

// ---- types and values ----

void CreateTensorTypeInfo(const OrtTensorTypeAndShapeInfo* tensor_info, OrtTypeInfo** type_info) {
  *type_info = type_with(ONNX_TYPE_TENSOR);
  (*type_info)->tensor = *tensor_info;
}
void CreateSparseTensorTypeInfo(const OrtTensorTypeAndShapeInfo* tensor_info, OrtTypeInfo** type_info) {
  *type_info = type_with(ONNX_TYPE_SPARSETENSOR);
  (*type_info)->tensor = *tensor_info;
}
void CreateMapTypeInfo(ONNXTensorElementDataType map_key_type, const OrtTypeInfo* map_value_type,
                       OrtTypeInfo** type_info) {
  *type_info = type_with(ONNX_TYPE_MAP);
  (*type_info)->map = {map_key_type, copy_of(map_value_type)};
}
void CreateSequenceTypeInfo(const OrtTypeInfo* sequence_type, OrtTypeInfo** type_info) {
  *type_info = type_with(ONNX_TYPE_SEQUENCE);
  (*type_info)->sequence.element = copy_of(sequence_type);
}
void CreateOptionalTypeInfo(const OrtTypeInfo* contained_type, OrtTypeInfo** type_info) {
  *type_info = type_with(ONNX_TYPE_OPTIONAL);
  (*type_info)->optional.contained = copy_of(contained_type);
}

void CreateValueInfo(const char* name, const OrtTypeInfo* type_info, OrtValueInfo** value_info) {
  require(*name != '\0', ErrorCode::kInvalidArgument, "the name is empty");
  require(type_info->kind == ONNX_TYPE_TENSOR, ErrorCode::kFail, "the type of '", name, "' is of kind ",
          static_cast<int>(type_info->kind), ", expected ONNX_TYPE_TENSOR");
  *value_info = new OrtValueInfo{name, *type_info, nullptr};
}

// ---- graphs ----

void CreateNode(const char* operator_name, const char* domain_name, const char* node_name,
                const char* const* input_names, size_t input_names_len, const char* const* output_names,
                size_t output_names_len, OrtOpAttr** attributes, size_t attribs_len, OrtNode** node) {
  Node made;
  made.domain = domain_of(domain_name);
  made.op_type = operator_name;
  made.name = node_name;
  made.inputs = texts(input_names, input_names_len);
  made.outputs = texts(output_names, output_names_len);
  std::set<const OrtOpAttr*> seen;
  for (size_t i = 0; i < attribs_len; ++i) {
    require(seen.insert(attributes[i]).second, ErrorCode::kInvalidArgument, "attribute ", i, ", '",
            attributes[i]->name, "', is given twice");
    made.attributes.insert_or_assign(attributes[i]->name, attributes[i]->value);
  }
  auto handle = std::make_unique<OrtNode>(std::move(made));
  for (size_t i = 0; i < attribs_len; ++i) delete std::exchange(attributes[i], nullptr);
  *node = handle.release();
}

void CreateGraph(OrtGraph** graph) {
  auto made = std::make_unique<OrtGraph>();
  made->name = "ModelEditorGraph";
  *graph = made.release();
}

void SetGraphInputs(OrtGraph* graph, OrtValueInfo** inputs, size_t inputs_len) {
  take_values(*graph, graph->inputs, inputs, inputs_len);
}
void SetGraphOutputs(OrtGraph* graph, OrtValueInfo** outputs, size_t outputs_len) {
  take_values(*graph, graph->outputs, outputs, outputs_len);
}

void AddInitializerToGraph(OrtGraph* graph, const char* name, OrtValue* tensor, bool data_is_external) {
  require(*name != '\0', ErrorCode::kInvalidArgument, "the name is empty");
  const Tensor& value = tensor_of(*tensor);
  require(!data_is_external || value.bytes() >= kSmallestExternal, ErrorCode::kInvalidArgument,
          "the tensor has ", counted(value.bytes(), "byte"), ", expected ", kSmallestExternal,
          " or more for data_is_external");
  for (const OrtGraph::Initializer& other : graph->initializers) {
    require(other.name != name, ErrorCode::kInvalidArgument, "the graph has an initializer '", name,
            "' already");
    require(other.value.get() != tensor, ErrorCode::kInvalidArgument,
            "the value has already been added to the graph, as '", other.name, "'");
  }
  graph->initializers.emplace_back().name = name;
  graph->initializers.back().is_external = data_is_external;
  graph->changes();
  graph->initializers.back().value.reset(tensor);
}

void AddNodeToGraph(OrtGraph* graph, OrtNode* node) {
  require(node->graph == nullptr, ErrorCode::kInvalidArgument, node->node.label(),
          " has already been added to a graph");
  graph->nodes.reserve(graph->nodes.size() + 1);
  graph->changes();
  node->id = graph->nodes.size();
  node->graph = graph;
  graph->nodes.emplace_back(node);
}

// ---- models ----

void CreateModel(const char* const* domain_names, const int* opset_versions, size_t opset_entries_len,
                 OrtModel** model) {
  auto made = std::make_unique<OrtModel>();
  for (size_t i = 0; i < opset_entries_len; ++i) made->opsets[domain_of(domain_names[i])] = opset_versions[i];
  *model = made.release();
}

void AddGraphToModel(OrtModel* model, OrtGraph* graph) {
  require(model->graph == nullptr, ErrorCode::kInvalidArgument, "the model already has a graph");
  require(graph->model == nullptr && graph->parent == nullptr, ErrorCode::kInvalidArgument,
          "the graph has already been added to a model");
  graph->changes();
  graph->model = model;
  model->graph.reset(graph);
}

void add_parts(const OrtGraph& graph, Initializers initializers, BuiltModel& to) {
  Graph& into = to.model.graph;
  for (const OrtGraph::Initializer& one : graph.initializers) {
    require(!into.is_initializer(one.name), ErrorCode::kFail, "there are two initializers '", one.name, "'");
    const Tensor& value = tensor_of(*one.value);
    into.add_initializer(one.name,
                         initializers == Initializers::kCopied && !one.is_external ? value.clone() : value);
  }
  for (const auto& node : graph.nodes) {
    into.nodes.push_back(node->node);
    name_constant(into.nodes.back());
  }
  if (!graph.inputs.empty()) {
    into.inputs.clear();
    to.notes.overridable.clear();
    for (const auto& input : graph.inputs)
      (into.is_initializer(input->name) ? to.notes.overridable : into.inputs).push_back(info_of(*input));
  }
  if (!graph.outputs.empty()) {
    into.outputs.clear();
    for (const auto& output : graph.outputs) into.outputs.push_back(info_of(*output));
  }
  into.value_info.insert(graph.stated.begin(), graph.stated.end());
}

BuiltModel built(const OrtModel& model, Initializers initializers) {
  require(model.is_read || model.opsets.count("") > 0, ErrorCode::kInvalidArgument,
          "the model states no version of the ONNX domain, expected one for the domain ''");
  require(model.graph != nullptr, ErrorCode::kInvalidArgument, "the model has no graph");
  BuiltModel out;
  out.model.ir_version = model.ir_version;
  out.model.opsets = model.opsets;
  const OrtModelMetadata& metadata = model.metadata;
  out.model.producer_name = metadata.producer;
  out.model.producer_version = model.producer_version;
  out.model.domain = metadata.domain;
  out.model.doc_string = metadata.description;
  out.model.model_version = metadata.version;
  out.model.metadata = metadata.custom;
  out.model.graph.name = metadata.graph_name;
  out.notes.graph_description = metadata.graph_description;
  add_parts(*model.graph, initializers, out);
  return out;
}

Model check_built(Model model, ReadOptions options, const CustomOperators* custom) {
  const int64_t version = model.opset("");
  require(version <= kNewestOpset, ErrorCode::kFail, "the model uses version ", version,
          " of the ONNX operators; versions up to ", kNewestOpset, " are supported");
  require(!model.graph.outputs.empty(), ErrorCode::kFail, "the graph has no outputs");
  check_values(model.graph);
  try {
    Graph sorted = model.graph;
    sorted.sort();
  } catch (const Error& error) {
    fail(ErrorCode::kFail, error.message());
  }
  import_domains(model.graph, custom, model);
  for (const Node& node : model.graph.nodes)
    require(!node.domain.empty() || find_operator("", node.op_type) ||
                !onnx_signatures("", node.op_type, version).empty(),
            ErrorCode::kInvalidGraph, node.label(), ": ONNX has no such operator");
  options.check = check_signatures;
  return checked_model(model, options);
}

// ---- sessions ----

void CreateSessionFromModel(const OrtEnv* env, const OrtModel* model, const OrtSessionOptions* options,
                            OrtSession** out) {
  SessionOptions settings = options_of(*env, options);
  BuiltModel from = built(*model, Initializers::kCopied);
  Model checked = check_built(std::move(from.model), reading(settings), settings.custom_operators.get());
  auto session = std::make_unique<OrtSession>();
  session->logger = logger_of(*env, options);
  session->allocator = allocator_of(*env, settings);
  start_session(*session, std::move(settings), std::move(checked), std::move(from.notes));
  *out = session.release();
}

void CreateModelEditorSession(const OrtEnv* env, const ORTCHAR_T* model_path,
                              const OrtSessionOptions* options, OrtSession** out) {
  SessionOptions settings = options_of(*env, options);
  ModelNotes notes;
  ReadOptions how = reading(settings);
  how.notes = &notes;
  Model model = load_model(std::filesystem::path(model_path), how);
  make_draft(*env, options, std::move(settings), std::move(model), std::move(notes), out);
}

void CreateModelEditorSessionFromArray(const OrtEnv* env, const void* model_data, size_t model_data_length,
                                       const OrtSessionOptions* options, OrtSession** out) {
  SessionOptions settings = options_of(*env, options);
  ModelNotes notes;
  ReadOptions how = reading(settings);
  how.notes = &notes;
  Model model = load_model(model_data, model_data_length, "model in memory", how);
  make_draft(*env, options, std::move(settings), std::move(model), std::move(notes), out);
}

void SessionGetOpsetForDomain(const OrtSession* session, const char* domain, int* opset) {
  const auto& opsets = session->model().opsets;
  const auto found = opsets.find(domain_of(domain));
  const int64_t version = found != opsets.end() ? found->second : newest_version(domain);
  require(version > 0, ErrorCode::kFail, "neither the model nor the library has the domain '", domain, "'");
  *opset = static_cast<int>(version);
}

void ApplyModelToModelEditorSession(OrtSession* session, OrtModel* model) {
  require(session->draft != nullptr, ErrorCode::kModelLoaded, "the session has already been initialized");
  require(model->graph != nullptr, ErrorCode::kInvalidArgument, "the model has no graph");
  const OrtSession::Draft& draft = *session->draft;
  BuiltModel extended{draft.model, draft.notes};
  for (const auto& [domain, version] : model->opsets) {
    const auto [known, fresh] = extended.model.opsets.emplace(domain, version);
    require(fresh || known->second == version, ErrorCode::kInvalidArgument, "the version of the domain '",
            domain, "' is ", known->second, " in the session's model, found ", version);
  }
  add_parts(*model->graph, Initializers::kCopied, extended);
  const SessionOptions& settings = draft.settings;
  Model checked = check_built(std::move(extended.model), {.limits = model_limits(settings)},
                              settings.custom_operators.get());
  session->draft->model = std::move(checked);
  session->draft->notes = std::move(extended.notes);
}

void FinalizeModelEditorSession(OrtSession* session, const OrtSessionOptions*,
                                OrtPrepackedWeightsContainer*) {
  if (!session->draft) return;
  const OrtSession::Draft& draft = *session->draft;
  start_session(*session, draft.settings, draft.model, draft.notes);
}

}  // namespace ortrain::capi
