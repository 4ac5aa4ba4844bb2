// Graphs for reading: values, nodes, attributes, subgraphs.
#include "capi/graph_handles.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "capi/generated/bodies.h"
#include "graph/checked_model.h"
#include "op/signature.h"
#include "runtime/path.h"

// ---- contents of handles ----

OrtNode::OrtNode(ortrain::Node given) : node(std::move(given)) {
  for (const auto& [name, attribute] : node.attributes) attributes.push_back({name, attribute});
}

// Types of values that are not stated. A subgraph uses those of the graphs around it.
struct OrtGraph::Inference {
  ortrain::Model model;  // of an outermost graph
  std::optional<ortrain::ValueTypes> types;
};

OrtGraph::OrtGraph() = default;
OrtGraph::~OrtGraph() = default;

void OrtGraph::changes() {
  links_.reset();
  values_.clear();
  inference_.reset();
  for (const auto& [name, value] : others_) value->type.reset();
}

const OrtGraph::Initializer* OrtGraph::initializer(const std::string& value) const {
  const auto found = std::find_if(initializers.begin(), initializers.end(),
                                  [&](const Initializer& one) { return one.name == value; });
  return found == initializers.end() ? nullptr : &*found;
}

static bool contains(const std::vector<std::unique_ptr<OrtValueInfo>>& values, const std::string& name) {
  return std::any_of(values.begin(), values.end(), [&](const auto& value) { return value->name == name; });
}
bool OrtGraph::is_input(const std::string& value) const { return contains(inputs, value); }
bool OrtGraph::is_output(const std::string& value) const { return contains(outputs, value); }

const std::unordered_map<std::string, OrtGraph::Links>& OrtGraph::all_links() const {
  const std::lock_guard guard(lock_);
  if (links_) return *links_;
  std::unordered_map<std::string, Links> all;
  for (const auto& node : nodes) {
    const std::vector<std::string>& outputs_of = node->node.outputs;
    for (size_t o = 0; o < outputs_of.size(); ++o) {
      if (outputs_of[o].empty()) continue;
      all[outputs_of[o]].producer = node.get();
      all[outputs_of[o]].output = o;
    }
    const std::vector<std::string>& inputs_of = node->node.inputs;
    for (size_t i = 0; i < inputs_of.size(); ++i)
      if (!inputs_of[i].empty()) all[inputs_of[i]].uses.push_back({node.get(), static_cast<int64_t>(i)});
    for (const std::string& name : ortrain::capi::implicit_inputs(*node))
      all[name].uses.push_back({node.get(), -1});
  }
  return links_.emplace(std::move(all));
}

const OrtGraph::Links& OrtGraph::links(const std::string& value) const {
  static const Links none;
  const auto& all = all_links();
  const auto found = all.find(value);
  return found == all.end() ? none : found->second;
}

bool OrtGraph::is_outer(const std::string& value) const {
  return parent != nullptr && !is_input(value) && !initializer(value) && links(value).producer == nullptr;
}

const OrtModel* OrtGraph::root() const {
  const OrtGraph* at = this;
  while (at->parent) at = at->parent->graph;
  return at->model;
}

const ortrain::ValueTypes* OrtGraph::types() const {
  if (source) return source->types();
  const std::lock_guard guard(lock_);
  if (inference_) return inference_->types ? &*inference_->types : nullptr;
  inference_ = std::make_shared<Inference>();
  try {
    if (parent) {
      const ortrain::ValueTypes* outer = parent->graph->types();
      for (const auto& [name, attribute] : parent->node.attributes) {
        const auto* graph = std::get_if<std::shared_ptr<ortrain::Graph>>(&attribute);
        const bool is_this = std::any_of(parent->subgraphs.begin(), parent->subgraphs.end(),
                                         [&, &name = name](const OrtNode::Subgraph& one) {
                                           return one.attribute == name && one.graph.get() == this;
                                         });
        if (outer && graph && is_this) inference_->types.emplace(**graph, (*graph)->inputs, *outer);
      }
    } else if (model) {
      inference_->model = ortrain::capi::check_built(
          ortrain::capi::built(*model, ortrain::capi::Initializers::kShared).model, {});
      inference_->types.emplace(inference_->model);
    }
  } catch (const ortrain::Error&) {  // the model is not valid, so the types of its values are not known
    inference_->types.reset();
  }
  return inference_->types ? &*inference_->types : nullptr;
}

std::optional<OrtTypeInfo> OrtGraph::find_type(const std::string& name) const {
  const OrtGraph* elsewhere = source ? source : is_outer(name) ? parent->graph : nullptr;
  if (elsewhere) {
    const OrtTypeInfo* found = elsewhere->type(*elsewhere->value(name));
    return found ? std::optional(*found) : std::nullopt;
  }
  if (const Initializer* known = initializer(name)) {
    OrtTypeInfo type;
    type.tensor = ortrain::capi::describe(ortrain::capi::tensor_of(*known->value));
    return type;
  }
  if (const auto known = stated.find(name);
      known != stated.end() && known->second.dtype != ortrain::DType::kUndefined)
    return ortrain::capi::type_of(known->second);
  const ortrain::ValueTypes* inferred = types();
  if (!inferred) return std::nullopt;
  ortrain::ValueInfo info = inferred->info(name);
  if (info.dtype == ortrain::DType::kUndefined) return std::nullopt;
  ortrain::forget_made_up_names(info);
  return ortrain::capi::type_of(info);
}

const OrtTypeInfo* OrtGraph::type(const OrtValueInfo& value) const {
  const std::lock_guard guard(lock_);
  if (!value.type) value.type = find_type(value.name);
  return value.type ? &*value.type : nullptr;
}

const OrtValueInfo* OrtGraph::value(const std::string& name) const {
  if (name.empty()) return nullptr;
  const std::lock_guard guard(lock_);
  if (values_.empty()) {
    for (const auto& output : outputs) values_[output->name] = output.get();
    for (const auto& input : inputs) values_[input->name] = input.get();
  }
  const auto [at, fresh] = values_.try_emplace(name);
  if (!fresh) return at->second;
  std::unique_ptr<OrtValueInfo>& other = others_[name];
  if (!other) other = std::make_unique<OrtValueInfo>(OrtValueInfo{name, std::nullopt, this});
  return values_[name] = other.get();
}

namespace ortrain::capi {
namespace {

constexpr auto kNotFound = static_cast<ErrorCode>(ORT_NOT_FOUND);

const OrtGraph& graph_of(const OrtValueInfo& value) {
  require(value.graph != nullptr, ErrorCode::kNotImplemented, "the value '", value.name,
          "' is not in a graph yet, so the nodes that read it are unknown");
  return *value.graph;
}
const OrtGraph& graph_of(const OrtNode& node) {
  require(node.graph != nullptr, ErrorCode::kNotImplemented, node.node.label(), " is not in a graph yet");
  return *node.graph;
}
const OrtModel& model_of(const OrtGraph& graph) {
  const OrtModel* model = graph.root();
  require(model != nullptr, ErrorCode::kNotImplemented, "the graph '", graph.name,
          "' is not in a model yet, so its operator sets are unknown");
  return *model;
}

void check_room(size_t room, size_t count, const char* what) {
  require(room >= count, ErrorCode::kInvalidArgument, "expected room for ", count, " ", what,
          ", found room for ", room);
}

// Copies the result of `get` for each item to the caller's array.
template <typename Items, typename Out, typename Get>
void give(const Items& items, Out* out, size_t room, const char* what, Get&& get) {
  check_room(room, items.size(), what);
  size_t i = 0;
  for (const auto& item : items) out[i++] = get(item);
}

void give_values(const OrtGraph& graph, const std::vector<std::string>& names, const OrtValueInfo** out,
                 size_t room, const char* what) {
  give(names, out, room, what, [&](const std::string& name) { return graph.value(name); });
}

std::vector<std::string> names_of(const std::vector<std::unique_ptr<OrtValueInfo>>& values) {
  std::vector<std::string> names;
  for (const auto& value : values) names.push_back(value->name);
  return names;
}

// The initializer of that name, in this graph or in a graph around it.
const OrtGraph::Initializer* initializer_of(const OrtGraph& graph, const std::string& name) {
  const OrtGraph* at = &graph;
  while (at->is_outer(name)) at = at->parent->graph;
  return at->initializer(name);
}
bool is_default(const OrtGraph& graph, const std::string& name) {
  const OrtGraph* at = &graph;
  while (at->is_outer(name)) at = at->parent->graph;
  return at->initializer(name) && at->is_input(name);
}

// Whether the operator of a node has an attribute of that name.
bool may_have(const OrtNode& node, const OrtModel* model, const std::string& attribute) {
  if (!model) return false;
  const auto opset = model->opsets.find(node.node.domain);
  if (opset == model->opsets.end()) return false;
  const auto forms = onnx_signatures(node.node.domain, node.node.op_type, opset->second);
  if (forms.empty()) return false;
  const size_t bar = forms[0].find('|');
  return bar != std::string_view::npos &&
         forms[0].substr(bar).find(" " + attribute + ":") != std::string_view::npos;
}

using Places = std::map<std::string, ExternalPlace>;

void fill(OrtGraph& to, const Graph& graph, const std::vector<ValueInfo>& overridable, const Places& places) {
  const auto add = [&](std::vector<std::unique_ptr<OrtValueInfo>>& list, const ValueInfo& info) {
    const bool is_known = info.dtype != DType::kUndefined || !info.is_tensor();
    list.push_back(std::make_unique<OrtValueInfo>(
        OrtValueInfo{info.name, is_known ? std::optional(type_of(info)) : std::nullopt, &to}));
  };
  to.name = graph.name;
  for (const ValueInfo& input : graph.inputs) add(to.inputs, input);
  for (const ValueInfo& input : overridable) add(to.inputs, input);
  for (const ValueInfo& output : graph.outputs) add(to.outputs, output);
  for (const std::string& name : graph.initializer_order) {
    const auto place = places.find(name);
    to.initializers.push_back({name, std::make_unique<OrtValue>(OrtValue{graph.initializers.at(name)}), true,
                               place == places.end() ? std::nullopt : std::optional(place->second)});
  }
  to.stated = graph.value_info;
  for (const Node& node : graph.nodes) {
    auto made = std::make_unique<OrtNode>(node);
    made->id = to.nodes.size();
    made->graph = &to;
    for (const auto& [name, attribute] : node.attributes) {
      const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute);
      if (!inner || !*inner) continue;
      auto subgraph = std::make_unique<OrtGraph>();
      subgraph->parent = made.get();
      fill(*subgraph, **inner, {}, places);
      made->subgraphs.push_back({name, std::move(subgraph)});
    }
    to.nodes.push_back(std::move(made));
  }
}

OrtModel* opened(Model model, const ModelNotes& notes, std::basic_string<ORTCHAR_T> path) {
  auto made = std::make_unique<OrtModel>();
  made->ir_version = model.ir_version;
  made->opsets = model.opsets;
  made->metadata = {model.producer_name, model.graph.name,    notes.graph_description, model.domain,
                    model.doc_string,    model.model_version, model.metadata};
  made->producer_version = model.producer_version;
  made->path = std::move(path);
  made->is_read = true;
  made->graph = std::make_unique<OrtGraph>();
  made->graph->model = made.get();
  fill(*made->graph, model.graph, notes.overridable, notes.external);
  return made.release();
}

}  // namespace

std::vector<std::string> implicit_inputs(const OrtNode& node) {
  std::vector<std::string> names;
  if (node.subgraphs.empty()) return names;
  Node only_subgraphs = node.node;
  only_subgraphs.inputs.clear();
  for (const std::string& name : values_read(only_subgraphs))
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

void release(OrtValueInfo* value) noexcept {
  if (value && !value->graph) delete value;
}
void release(OrtNode* node) noexcept {
  if (node && !node->graph) delete node;
}
void release(OrtGraph* graph) noexcept {
  if (graph && ((!graph->model && !graph->parent) || graph->source)) delete graph;
}
void release(OrtModel* model) noexcept { delete model; }

// ---- values ----

void GetValueInfoName(const OrtValueInfo* value_info, const char** name) { *name = value_info->name.c_str(); }
void GetValueInfoTypeInfo(const OrtValueInfo* value_info, const OrtTypeInfo** type_info) {
  *type_info = value_info->graph ? value_info->graph->type(*value_info) : &*value_info->type;
}
void ValueInfo_GetValueProducer(const OrtValueInfo* value_info, const OrtNode** producer_node,
                                size_t* producer_output_index) {
  const OrtGraph::Links& links = graph_of(*value_info).links(value_info->name);
  *producer_node = links.producer;
  if (producer_output_index) *producer_output_index = links.output;
}
void ValueInfo_GetValueNumConsumers(const OrtValueInfo* value_info, size_t* num_consumers) {
  *num_consumers = graph_of(*value_info).links(value_info->name).uses.size();
}
void ValueInfo_GetValueConsumers(const OrtValueInfo* value_info, const OrtNode** nodes,
                                 int64_t* input_indices, size_t num_consumers) {
  const auto& uses = graph_of(*value_info).links(value_info->name).uses;
  give(uses, nodes, num_consumers, "nodes", [](const OrtGraph::Use& use) { return use.node; });
  give(uses, input_indices, num_consumers, "indices", [](const OrtGraph::Use& use) { return use.input; });
}
void ValueInfo_GetInitializerValue(const OrtValueInfo* value_info, const OrtValue** initializer_value) {
  const OrtGraph::Initializer* found = initializer_of(graph_of(*value_info), value_info->name);
  *initializer_value = found ? found->value.get() : nullptr;
}
void ValueInfo_GetExternalInitializerInfo(const OrtValueInfo* value_info, OrtExternalInitializerInfo** info) {
  const OrtGraph::Initializer* found = initializer_of(graph_of(*value_info), value_info->name);
  *info = found && found->place ? new OrtExternalInitializerInfo{from_utf8(found->place->file),
                                                                 found->place->offset, found->place->bytes}
                                : nullptr;
}
void ValueInfo_IsRequiredGraphInput(const OrtValueInfo* value_info, bool* is_required_graph_input) {
  const OrtGraph& graph = graph_of(*value_info);
  *is_required_graph_input = graph.is_input(value_info->name) && !graph.initializer(value_info->name);
}
void ValueInfo_IsOptionalGraphInput(const OrtValueInfo* value_info, bool* is_optional_graph_input) {
  *is_optional_graph_input = is_default(graph_of(*value_info), value_info->name);
}
void ValueInfo_IsGraphOutput(const OrtValueInfo* value_info, bool* is_graph_output) {
  *is_graph_output = graph_of(*value_info).is_output(value_info->name);
}
void ValueInfo_IsConstantInitializer(const OrtValueInfo* value_info, bool* is_constant_initializer) {
  const OrtGraph& graph = graph_of(*value_info);
  *is_constant_initializer = initializer_of(graph, value_info->name) && !is_default(graph, value_info->name);
}
void ValueInfo_IsFromOuterScope(const OrtValueInfo* value_info, bool* is_from_outer_scope) {
  *is_from_outer_scope = graph_of(*value_info).is_outer(value_info->name);
}

// ---- graphs ----

void Graph_GetName(const OrtGraph* graph, const char** graph_name) { *graph_name = graph->name.c_str(); }
void Graph_GetModelPath(const OrtGraph* graph, const ORTCHAR_T** model_path) {
  static const ORTCHAR_T none[] = {0};
  const OrtModel* model = graph->root();
  *model_path = model ? model->path.c_str() : none;
}
void Graph_GetOnnxIRVersion(const OrtGraph* graph, int64_t* onnx_ir_version) {
  const OrtModel* model = graph->root();
  *onnx_ir_version = model ? model->ir_version : kNewestIrVersion;
}
void Graph_GetNumOperatorSets(const OrtGraph* graph, size_t* num_operator_sets) {
  *num_operator_sets = model_of(*graph).opsets.size();
}
void Graph_GetOperatorSets(const OrtGraph* graph, const char** domains, int64_t* opset_versions,
                           size_t num_operator_sets) {
  const auto& opsets = model_of(*graph).opsets;
  give(opsets, domains, num_operator_sets, "domains", [](const auto& opset) { return opset.first.c_str(); });
  give(opsets, opset_versions, num_operator_sets, "versions", [](const auto& opset) { return opset.second; });
}
void Graph_GetNumInputs(const OrtGraph* graph, size_t* num_inputs) { *num_inputs = graph->inputs.size(); }
void Graph_GetInputs(const OrtGraph* graph, const OrtValueInfo** inputs, size_t num_inputs) {
  give_values(*graph, names_of(graph->inputs), inputs, num_inputs, "inputs");
}
void Graph_GetNumOutputs(const OrtGraph* graph, size_t* num_outputs) { *num_outputs = graph->outputs.size(); }
void Graph_GetOutputs(const OrtGraph* graph, const OrtValueInfo** outputs, size_t num_outputs) {
  give_values(*graph, names_of(graph->outputs), outputs, num_outputs, "outputs");
}
void Graph_GetNumInitializers(const OrtGraph* graph, size_t* num_initializers) {
  *num_initializers = graph->initializers.size();
}
void Graph_GetInitializers(const OrtGraph* graph, const OrtValueInfo** initializers,
                           size_t num_initializers) {
  give(graph->initializers, initializers, num_initializers, "initializers",
       [&](const OrtGraph::Initializer& one) { return graph->value(one.name); });
}
void Graph_GetNumNodes(const OrtGraph* graph, size_t* num_nodes) { *num_nodes = graph->nodes.size(); }
void Graph_GetNodes(const OrtGraph* graph, const OrtNode** nodes, size_t num_nodes) {
  give(graph->nodes, nodes, num_nodes, "nodes", [](const auto& node) { return node.get(); });
}
void Graph_GetParentNode(const OrtGraph* graph, const OrtNode** node) { *node = graph->parent; }

void Graph_GetGraphView(const OrtGraph* src_graph, const OrtNode** nodes, size_t num_nodes,
                        OrtGraph** dst_graph) {
  std::set<const OrtNode*> chosen;
  for (size_t i = 0; i < num_nodes; ++i) {
    require(nodes[i] && nodes[i]->graph == src_graph, ErrorCode::kInvalidArgument, "nodes[", i,
            "] is not a node of the graph");
    chosen.insert(nodes[i]);
  }
  auto view = std::make_unique<OrtGraph>();
  view->name = src_graph->name;
  view->model = src_graph->model;
  view->parent = src_graph->parent;
  view->source = src_graph->source ? src_graph->source : src_graph;
  const auto add = [&](std::vector<std::unique_ptr<OrtValueInfo>>& list, const std::string& name) {
    list.push_back(std::make_unique<OrtValueInfo>(OrtValueInfo{name, std::nullopt, view.get()}));
  };
  std::set<std::string> read;
  for (const auto& node : src_graph->nodes) {
    if (!chosen.count(node.get())) continue;
    auto copy = std::make_unique<OrtNode>(node->node);
    copy->id = node->id;
    copy->graph = view.get();
    for (const OrtNode::Subgraph& subgraph : node->subgraphs) {
      auto inner = std::make_unique<OrtGraph>();
      inner->parent = copy.get();
      fill(*inner, *std::get<std::shared_ptr<Graph>>(node->node.attributes.at(subgraph.attribute)), {}, {});
      copy->subgraphs.push_back({subgraph.attribute, std::move(inner)});
    }
    for (const std::string& name : values_read(node->node)) {
      if (name.empty() || !read.insert(name).second || chosen.count(src_graph->links(name).producer))
        continue;
      if (const OrtGraph::Initializer* constant = src_graph->initializer(name))
        view->initializers.push_back(
            {name, std::make_unique<OrtValue>(*constant->value), constant->is_external});
      if (!src_graph->initializer(name) || src_graph->is_input(name)) add(view->inputs, name);
    }
    for (const std::string& name : node->node.outputs) {
      if (name.empty()) continue;
      const auto& uses = src_graph->links(name).uses;
      if (src_graph->is_output(name) ||
          std::any_of(uses.begin(), uses.end(), [&](const auto& use) { return !chosen.count(use.node); }))
        add(view->outputs, name);
    }
    view->nodes.push_back(std::move(copy));
  }
  *dst_graph = view.release();
}

void Graph_GetModelMetadata(const OrtGraph* graph, OrtModelMetadata** out) {
  const OrtModel* model = graph->root();
  *out = model ? new OrtModelMetadata(model->metadata) : new OrtModelMetadata;
}

// ---- nodes ----

void Node_GetId(const OrtNode* node, size_t* node_id) { *node_id = node->id; }
void Node_GetName(const OrtNode* node, const char** node_name) { *node_name = node->node.name.c_str(); }
void Node_GetOperatorType(const OrtNode* node, const char** operator_type) {
  *operator_type = node->node.op_type.c_str();
}
void Node_GetDomain(const OrtNode* node, const char** domain_name) {
  *domain_name = node->node.domain.c_str();
}
void Node_GetSinceVersion(const OrtNode* node, int* since_version) {
  const std::string& domain = node->node.domain;
  const auto& opsets = model_of(graph_of(*node)).opsets;
  const auto opset = opsets.find(domain);
  const auto version =
      opset == opsets.end() ? std::nullopt : onnx_version(domain, node->node.op_type, opset->second);
  *since_version = version ? static_cast<int>(version->since) : 1;
}
void Node_GetNumInputs(const OrtNode* node, size_t* num_inputs) { *num_inputs = node->node.inputs.size(); }
void Node_GetInputs(const OrtNode* node, const OrtValueInfo** inputs, size_t num_inputs) {
  give_values(graph_of(*node), node->node.inputs, inputs, num_inputs, "inputs");
}
void Node_GetNumOutputs(const OrtNode* node, size_t* num_outputs) {
  *num_outputs = node->node.outputs.size();
}
void Node_GetOutputs(const OrtNode* node, const OrtValueInfo** outputs, size_t num_outputs) {
  give_values(graph_of(*node), node->node.outputs, outputs, num_outputs, "outputs");
}
void Node_GetNumImplicitInputs(const OrtNode* node, size_t* num_implicit_inputs) {
  *num_implicit_inputs = implicit_inputs(*node).size();
}
void Node_GetImplicitInputs(const OrtNode* node, const OrtValueInfo** implicit_inputs,
                            size_t num_implicit_inputs) {
  give_values(graph_of(*node), capi::implicit_inputs(*node), implicit_inputs, num_implicit_inputs, "values");
}
void Node_GetNumAttributes(const OrtNode* node, size_t* num_attributes) {
  *num_attributes = node->attributes.size();
}
void Node_GetAttributes(const OrtNode* node, const OrtOpAttr** attributes, size_t num_attributes) {
  give(node->attributes, attributes, num_attributes, "attributes",
       [](const OrtOpAttr& attribute) { return &attribute; });
}
void Node_GetAttributeByName(const OrtNode* node, const char* attribute_name, const OrtOpAttr** attribute) {
  *attribute = nullptr;
  for (const OrtOpAttr& one : node->attributes)
    if (one.name == attribute_name) *attribute = &one;
  require(*attribute || may_have(*node, node->graph ? node->graph->root() : nullptr, attribute_name),
          kNotFound, node->node.label(), " has no attribute '", attribute_name, "'");
}
void Node_GetNumSubgraphs(const OrtNode* node, size_t* num_subgraphs) {
  *num_subgraphs = node->subgraphs.size();
}
void Node_GetSubgraphs(const OrtNode* node, const OrtGraph** subgraphs, size_t num_subgraphs,
                       const char** attribute_names) {
  give(node->subgraphs, subgraphs, num_subgraphs, "subgraphs",
       [](const OrtNode::Subgraph& one) { return one.graph.get(); });
  if (attribute_names)
    give(node->subgraphs, attribute_names, num_subgraphs, "names",
         [](const OrtNode::Subgraph& one) { return one.attribute.c_str(); });
}
void Node_GetGraph(const OrtNode* node, const OrtGraph** graph) { *graph = node->graph; }
void Node_GetEpName(const OrtNode*, const char** out) { *out = nullptr; }

// ---- models ----

void ReadModel(const ORTCHAR_T* model_path, OrtModel** model) {
  const std::filesystem::path path(model_path);
  ModelNotes notes;
  Model read = load_model(path, {.notes = &notes});
  *model = opened(std::move(read), notes, path.native());
}
void ReadModelFromArray(const void* model_data, size_t model_data_length, OrtModel** model) {
  ModelNotes notes;
  Model read = load_model(model_data, model_data_length, "model in memory", {.notes = &notes});
  *model = opened(std::move(read), notes, {});
}
void ModelGetGraph(const OrtModel* model, const OrtGraph** graph) { *graph = model->graph.get(); }
void SerializeModel(const OrtModel* model, OrtAllocator* allocator, void** out, size_t* out_length) {
  Model checked = check_built(built(*model, Initializers::kShared).model, {});
  checked.graph.name =
      model->graph->name;  // a session of a built model accepts a graph without a name, an ONNX file does not
  const std::string content = write_model(checked);
  *out = allocate(allocator, content.size());
  std::memcpy(*out, content.data(), content.size());
  *out_length = content.size();
}

}  // namespace ortrain::capi
