// FlexAttention (ai.onnx.preview 1), whose scores and weights are modified by graphs:
//
//     Y = prob_mod(softmax(score_mod(scale Q Kᵀ))) V        for each head
//
// Q is [batch, heads, queries, size]; neighbouring heads of queries may share a head of keys. The softmax,
// and everything after it, has the type softmax_precision.
#include <cmath>
#include <unordered_map>

#include "op/decomposition.h"

namespace ortrain {
namespace {

// The size of an axis of a value of rank 4; -1 if it is not known.
int64_t dim(const DecompositionContext& e, const std::string& value, size_t axis) {
  const auto dims = e.dims(value);
  return dims && dims->size() == 4 ? (*dims)[axis].value : -1;
}

// Applies the graph in an attribute, which has one input and one output, to `input`; without the attribute,
// returns `input`.
Name apply(DecompositionContext& e, const char* attribute, Name input) {
  const auto at = e.node().attributes.find(attribute);
  if (at == e.node().attributes.end()) return input;
  const auto* given = std::get_if<std::shared_ptr<Graph>>(&at->second);
  if (!given || !*given) e.reject("attribute ", attribute, " must be a graph");
  const Graph& graph = **given;
  if (graph.inputs.size() != 1 || graph.outputs.size() != 1)
    e.reject(attribute, " must have one input and one output, found ", graph.inputs.size(), " and ",
             graph.outputs.size());
  std::unordered_map<std::string, Name> renamed = {{graph.inputs[0].name, input}};
  for (const auto& [name, value] : graph.initializers) renamed[name] = e.constant(value);
  const auto named = [&](Name name) -> Name {
    const auto found = renamed.find(name);
    return found == renamed.end() ? name : found->second;
  };
  for (const Node& inner : graph.nodes) {
    for (const auto& [name, value] : inner.attributes)
      if (std::holds_alternative<std::shared_ptr<Graph>>(value))
        e.reject("a graph within ", attribute, " (attribute ", name, " of ", inner.label(),
                 ") is not supported");
    Names inputs;
    for (const std::string& name : inner.inputs) inputs.push_back(named(name));
    const Names made = e.emit(inner.op_type, inputs, inner.outputs.size(), inner.attributes, inner.domain);
    for (size_t o = 0; o < made.size(); ++o)
      if (!inner.outputs[o].empty()) renamed[inner.outputs[o]] = made[o];
  }
  return named(graph.outputs[0].name);
}

void decompose(DecompositionContext& e) {
  const Name q = e.x(0);
  Name k = e.x(1), v = e.x(2);
  const DType type = e.dtype(q);
  const int64_t size = dim(e, q, 3), heads = dim(e, q, 1), kv_heads = dim(e, k, 1);
  if (type == DType::kUndefined || size <= 0)
    e.reject(
        "the type and the last dimension of Q are not known; run ONNX shape inference on the model first");
  const double scale = e.node().has("scale") ? static_cast<double>(e.node().float_or("scale", 0))
                                             : 1 / std::sqrt(static_cast<double>(size));
  if (heads > 0 && kv_heads > 0 && heads != kv_heads && heads % kv_heads == 0) {
    std::vector<int64_t> shared;
    for (int64_t h = 0; h < heads; ++h) shared.push_back(h / (heads / kv_heads));
    const Name indices = e.int64s(shared);
    k = e("Gather", {k, indices}, {{"axis", int64_t{1}}});
    v = e("Gather", {v, indices}, {{"axis", int64_t{1}}});
  }
  const auto cast = [&](const std::string& value, DType to) {
    return e("Cast", {value}, {{"to", static_cast<int64_t>(to)}});
  };
  const auto wide = static_cast<DType>(e.node().int_or(
      "softmax_precision", static_cast<int64_t>(type == DType::kDouble ? DType::kDouble : DType::kFloat)));
  const Name root = e.scalar_like(q, std::sqrt(scale));
  const Name across = e("Transpose", {k}, {{"perm", std::vector<int64_t>{0, 1, 3, 2}}});
  Name scores = e("MatMul", {e("Mul", {q, root}), e("Mul", {across, root})});
  if (wide != type) scores = cast(scores, wide);
  scores = apply(e, "score_mod", scores);
  const Name weights = apply(e, "prob_mod", e("Softmax", {scores}, {{"axis", int64_t{-1}}}));
  e.set(0, wide == type ? e("MatMul", {weights, v}) : cast(e("MatMul", {weights, cast(v, wide)}), type));
}

ORTRAIN_OPERATOR({.domain = "ai.onnx.preview", .type = "FlexAttention", .rules = {.decompose = decompose}});

}  // namespace
}  // namespace ortrain
