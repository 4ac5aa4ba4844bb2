// Attention with products or graphs of its own inside becomes steps that have kernels and gradients:
//
//     com.microsoft Attention(X, W, b, …)        →  MultiHeadAttention of the three parts of X W + b
//     ai.onnx.preview FlexAttention with graphs  →  scores, score_mod, softmax, prob_mod, product
#include <cmath>

#include "ops/operator.h"
#include "passes/pass.h"

namespace ortrain {
namespace {

constexpr const char* kPreview = "ai.onnx.preview";

// The nodes that take the place of one.
class Steps {
 public:
  Steps(Model& model, const Node& node) : model_(model), node_(node) {}

  std::string add(const std::string& type, std::vector<std::string> inputs, Attributes attributes = {},
                  const std::string& domain = "", const std::string& output = "") {
    const std::string name = output.empty() ? fresh(type) : output;
    nodes.push_back({domain, type, name, std::move(inputs), {name}, std::move(attributes)});
    return name;
  }
  std::string constant(const Tensor& value) {
    const std::string name = fresh("constant");
    model_.graph.add_initializer(name, value);
    return name;
  }
  std::string fresh(const std::string& base) {
    return model_.graph.unique_name(prefix() + "/" + base + "_" + std::to_string(count_++));
  }
  std::string prefix() const { return node_.name.empty() ? node_.outputs.at(0) : node_.name; }

  std::vector<Node> nodes;

 private:
  Model& model_;
  const Node& node_;
  int count_ = 0;
};

// The number of an axis of a value, -1 where the model does not state it.
int64_t extent(const Graph& graph, const std::string& value, int64_t axis) {
  const auto info = graph.info(value);
  if (!info || !info->dims || info->dims->empty()) return -1;
  const auto rank = static_cast<int64_t>(info->dims->size());
  const int64_t at = axis < 0 ? axis + rank : axis;
  return at < rank ? (*info->dims)[static_cast<size_t>(at)].value : -1;
}

// Inputs: input, weights, bias, mask_index, past, attention_bias, past_sequence_length. The weights are those
// of queries, keys and values side by side; past and present hold keys and values, one before the other.
std::vector<Node> expand_microsoft(Model& model, const Node& node) {
  const auto reject = [&](const std::string& why) {
    fail(ErrorCode::kNotImplemented, node.label(), ": ", why);
  };
  if (node.has_input(6)) reject("input past_sequence_length (a shared buffer) is not supported");
  if (node.int_or("do_rotary", 0) != 0) reject("attribute do_rotary is not supported");
  Steps steps(model, node);
  std::string product = steps.add("MatMul", {node.inputs.at(0), node.inputs.at(1)});
  if (node.has_input(2)) product = steps.add("Add", {product, node.inputs[2]});
  std::vector<int64_t> sizes = node.ints_or("qkv_hidden_sizes", {});
  if (sizes.empty()) {
    const int64_t all = extent(model.graph, node.inputs[1], -1);
    if (all < 0 || all % 3 != 0)
      reject(concat("the extents of its weights must be known and their last a multiple of 3, found ", all));
    sizes.assign(3, all / 3);
  }
  if (sizes.size() != 3) reject("attribute qkv_hidden_sizes must hold three numbers");
  Node split{"", "Split", steps.fresh("Split"), {product}, {}, {{"axis", int64_t{-1}}}};
  if (model.opset("") < 13)
    split.attributes["split"] = sizes;
  else
    split.inputs.push_back(steps.constant(Tensor::of(sizes)));
  for (const char* part : {"query", "key", "value"}) split.outputs.push_back(steps.fresh(part));
  Node heads{kMicrosoft, "MultiHeadAttention", steps.prefix(), split.outputs, {node.outputs.at(0)}, {}};
  steps.nodes.push_back(std::move(split));
  for (const char* name : {"num_heads", "unidirectional", "mask_filter_value", "scale"})
    if (const auto at = node.attributes.find(name); at != node.attributes.end()) heads.attributes.insert(*at);
  const auto given = [&](size_t i) { return node.has_input(i) ? node.inputs[i] : ""; };
  heads.inputs.insert(heads.inputs.end(), {"", given(3), given(5)});
  if (node.has_input(4))
    for (const int64_t part : {int64_t{0}, int64_t{1}})
      heads.inputs.push_back(steps.add("Gather", {node.inputs[4], steps.constant(Tensor::scalar(part))},
                                       {{"axis", int64_t{0}}}));
  while (heads.inputs.back().empty()) heads.inputs.pop_back();
  if (!node.has_output(1)) {
    steps.nodes.push_back(std::move(heads));
    return std::move(steps.nodes);
  }
  heads.outputs.insert(heads.outputs.end(), {steps.fresh("present_key"), steps.fresh("present_value")});
  const std::vector<std::string> present = {heads.outputs[1], heads.outputs[2]};
  steps.nodes.push_back(std::move(heads));
  std::vector<std::string> parts;
  for (const std::string& value : present)
    parts.push_back(
        model.opset("") < 13
            ? steps.add("Unsqueeze", {value}, {{"axes", std::vector<int64_t>{0}}})
            : steps.add("Unsqueeze", {value, steps.constant(Tensor::of(std::vector<int64_t>{0}))}));
  steps.add("Concat", parts, {{"axis", int64_t{0}}}, "", node.outputs[1]);
  return std::move(steps.nodes);
}

const Graph* graph_of(const Node& node, const std::string& name) {
  const auto at = node.attributes.find(name);
  if (at == node.attributes.end()) return nullptr;
  const auto* graph = std::get_if<std::shared_ptr<Graph>>(&at->second);
  return graph ? graph->get() : nullptr;
}

// Adds the nodes of a graph of one input and one output, its own values under names of their own.
std::string apply(Steps& steps, const Graph& graph, const std::string& input, const Node& node) {
  require(graph.inputs.size() == 1 && graph.outputs.size() == 1, ErrorCode::kInvalidGraph, node.label(),
          ": score_mod and prob_mod must have one input and one output, found ", graph.inputs.size(), " and ",
          graph.outputs.size());
  std::unordered_map<std::string, std::string> renamed = {{graph.inputs[0].name, input}};
  for (const auto& [name, value] : graph.initializers) renamed[name] = steps.constant(value);
  const auto named = [&](const std::string& name) {
    const auto at = renamed.find(name);
    return at == renamed.end() ? name : at->second;
  };
  for (Node inner : graph.nodes) {
    for (const auto& [name, attribute] : inner.attributes)
      require(!std::holds_alternative<std::shared_ptr<Graph>>(attribute), ErrorCode::kNotImplemented,
              node.label(), ": a graph within score_mod or prob_mod (attribute ", name, " of ", inner.label(),
              ") is not supported");
    for (std::string& name : inner.inputs)
      if (!name.empty()) name = named(name);
    for (std::string& name : inner.outputs)
      if (!name.empty()) name = renamed[name] = steps.fresh(name);
    inner.name = steps.prefix() + "/" + inner.name;
    steps.nodes.push_back(std::move(inner));
  }
  return named(graph.outputs[0].name);
}

std::vector<Node> expand_flex(Model& model, const Node& node) {
  Steps steps(model, node);
  const Graph& graph = model.graph;
  std::string k = node.inputs.at(1), v = node.inputs.at(2);
  const std::string& q = node.inputs[0];
  const auto info = graph.info(q);
  const int64_t size = extent(graph, q, 3), heads = extent(graph, q, 1), kv_heads = extent(graph, k, 1);
  require(info && info->dtype != DType::kUndefined && size > 0, ErrorCode::kNotImplemented, node.label(),
          ": the type and the last extent of Q are not known; run ONNX shape inference on the model first");
  const DType type = info->dtype;
  const float given = node.float_or("scale", 0);
  const double scale =
      node.has("scale") ? static_cast<double>(given) : 1 / std::sqrt(static_cast<double>(size));
  // Neighbouring heads of queries share a head of keys.
  if (heads > 0 && kv_heads > 0 && heads != kv_heads && heads % kv_heads == 0) {
    std::vector<int64_t> shared;
    for (int64_t h = 0; h < heads; ++h) shared.push_back(h / (heads / kv_heads));
    const std::string indices = steps.constant(Tensor::of(shared));
    k = steps.add("Gather", {k, indices}, {{"axis", int64_t{1}}});
    v = steps.add("Gather", {v, indices}, {{"axis", int64_t{1}}});
  }
  const auto cast = [&](const std::string& value, DType to, const std::string& output = "") {
    return steps.add("Cast", {value}, {{"to", static_cast<int64_t>(to)}}, "", output);
  };
  const auto wide = static_cast<DType>(node.int_or(
      "softmax_precision", static_cast<int64_t>(type == DType::kDouble ? DType::kDouble : DType::kFloat)));
  std::string root = steps.constant(Tensor::scalar(DType::kDouble, std::sqrt(scale)));
  root = cast(root, type);
  const std::string across = steps.add("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  std::string scores = steps.add("MatMul", {steps.add("Mul", {q, root}), steps.add("Mul", {across, root})});
  if (wide != type) scores = cast(scores, wide);
  if (const Graph* modify = graph_of(node, "score_mod")) scores = apply(steps, *modify, scores, node);
  std::string weights = steps.add("Softmax", {scores}, {{"axis", int64_t{-1}}});
  if (const Graph* modify = graph_of(node, "prob_mod")) weights = apply(steps, *modify, weights, node);
  if (wide == type) {
    steps.add("MatMul", {weights, v}, {}, "", node.outputs.at(0));
  } else {
    cast(steps.add("MatMul", {weights, cast(v, wide)}), type, node.outputs.at(0));
  }
  return std::move(steps.nodes);
}

bool expand_attention(Model& model) {
  bool changed = false;
  std::vector<Node> nodes;
  for (const Node& node : std::vector<Node>(model.graph.nodes)) {
    std::vector<Node> made;
    if (node.domain == kMicrosoft && node.op_type == "Attention")
      made = expand_microsoft(model, node);
    else if (node.domain == kPreview && node.op_type == "FlexAttention")
      made = expand_flex(model, node);
    else
      made.push_back(node);
    changed |= made.size() > 1;
    for (Node& step : made) nodes.push_back(std::move(step));
  }
  if (changed) model.graph.nodes = std::move(nodes);
  return changed;
}

// Both are known, so that a model may hold them, and gone before anything is compiled.
void shape(ShapeContext& c) { c.reject("it was not expanded"); }
ORTRAIN_OPERATOR({.domain = kMicrosoft, .type = "Attention", .shape = shape});
ORTRAIN_OPERATOR({.domain = kPreview, .type = "FlexAttention", .shape = shape});

ORTRAIN_PASS(
    {.name = "expand_attention", .moment = PassMoment::kExpansion, .order = 0, .run = expand_attention});

}  // namespace
}  // namespace ortrain
