// Group normalization, which exporters write as an instance normalization of the groups:
//
//     Reshape(InstanceNormalization(Reshape(X, [N, groups, -1]), scale, bias), Shape(X))
//       →  GroupNormalization(X, scale, bias)
//
// The separate steps need X in row-major order, and their gradient has as many steps. Scale and bias have one
// value per group, as in version 18 of GroupNormalization; the scale per channel remains a Mul.
#include <algorithm>

#include "infer/value_types.h"
#include "op/operator.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

// The oldest version of GroupNormalization, and the first one whose scale has one value per channel.
constexpr int64_t kFirst = 18, kByChannel = 21;

using Dims = std::optional<std::vector<Dim>>;

bool same(const Dims& a, const Dims& b) {
  return a && b &&
         std::equal(a->begin(), a->end(), b->begin(), b->end(),
                    [](const Dim& left, const Dim& right) { return left.same(right); });
}

// The GroupNormalization that replaces `last`, the second Reshape; nothing if it is something else.
std::optional<Node> match(const Node& last, const Pattern& p, const ValueTypes& types) {
  if (!last.domain.empty() || last.op_type != "Reshape") return std::nullopt;
  const std::string& normalized = last.inputs[0];
  const Node* instances = p.made_by(normalized, "InstanceNormalization");
  const Node* apart =
      instances && p.uses(normalized) == 1 ? p.made_by(instances->inputs[0], "Reshape") : nullptr;
  if (!apart) return std::nullopt;
  const std::string& x = apart->inputs[0];
  const Dims &given = types.info(x).dims, &grouped = types.info(instances->inputs[0]).dims;
  if (!same(given, types.info(last.outputs[0]).dims) || given->size() < 3 || !grouped ||
      grouped->size() != 3 || !(*grouped)[0].same((*given)[0]))
    return std::nullopt;
  const int64_t channels = (*given)[1].value, groups = (*grouped)[1].value;
  if (channels < 1 || groups < 1 || channels % groups != 0) return std::nullopt;
  return Node{"",
              "GroupNormalization",
              instances->name,
              {x, instances->inputs.at(1), instances->inputs.at(2)},
              last.outputs,
              {{"num_groups", groups}, {"epsilon", instances->float_or("epsilon", 1e-5f)}}};
}

}  // namespace

bool fuse_group_normalization(Model& model) {
  Graph& graph = model.graph;
  const auto normalizes = [](const Node& node) {
    return node.domain.empty() && node.op_type == "InstanceNormalization";
  };
  if (!is_built("", "GroupNormalization") || model.opset("") < kFirst || model.opset("") >= kByChannel ||
      std::none_of(graph.nodes.begin(), graph.nodes.end(), normalizes))
    return false;
  std::vector<std::pair<size_t, Node>> found;
  {
    const Pattern pattern(graph);
    const ValueTypes types(model);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto node = match(graph.nodes[n], pattern, types)) found.emplace_back(n, std::move(*node));
  }
  for (auto& [n, node] : found) graph.nodes[n] = std::move(node);
  return !found.empty();
}

}  // namespace ortrain
