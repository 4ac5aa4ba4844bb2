// The gradient of Clip, which gradient graphs write as comparisons, a conversion and a product:
//
//   Mul(dY, Cast(And(GreaterOrEqual(X, low), LessOrEqual(X, high))))  →  ClipGrad(dY, X), which has the
//   bounds
//
// The pattern may also have a single bound. ClipGrad is zero outside of the bounds even where dY is infinite.
#include "op/session_domain.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

struct ClipGradient {
  size_t node;  // number of the product's node
  std::string dy, x;
  Attributes bounds;
};

// Reads `value` as a comparison of x with a constant float. The first comparison sets x.
bool read_bound(const Pattern& p, const std::string& value, ClipGradient& found) {
  if (p.uses(value) != 1) return false;
  for (const auto& [type, bound] : {std::pair{"GreaterOrEqual", "min"}, std::pair{"LessOrEqual", "max"}}) {
    const Node* node = p.made_by(value, type);
    if (!node || node->inputs.size() != 2 || found.bounds.contains(bound)) continue;
    if (!found.x.empty() && found.x != node->inputs[0]) return false;
    const std::optional<Tensor> limit = p.constant(node->inputs[1]);
    if (!limit || limit->dtype() != DType::kFloat || limit->size() != 1) return false;
    found.x = node->inputs[0];
    found.bounds[bound] = *limit->data<float>();
    return true;
  }
  return false;
}

// The product of `factor` and a mask that says where a value is within bounds.
std::optional<ClipGradient> match(const Pattern& p, const Node& product, size_t mask) {
  const std::string& value = product.inputs[mask];
  const Node* cast = p.made_by(value, "Cast");
  if (!cast || p.uses(value) != 1) return std::nullopt;
  if (cast->int_or("to", 0) != static_cast<int64_t>(DType::kFloat)) return std::nullopt;  // X is float
  const std::string& inside = cast->inputs.at(0);
  ClipGradient found;
  found.dy = product.inputs[1 - mask];
  if (const Node* both = p.made_by(inside, "And")) {
    if (p.uses(inside) != 1 || !read_bound(p, both->inputs.at(0), found) ||
        !read_bound(p, both->inputs.at(1), found))
      return std::nullopt;
  } else if (!read_bound(p, inside, found)) {
    return std::nullopt;
  }
  return found;
}

}  // namespace

bool fuse_clip_gradient(Model& model) {
  Graph& graph = model.graph;
  std::vector<ClipGradient> all;
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (!node.domain.empty() || node.op_type != "Mul" || node.inputs.size() != 2) continue;
      for (const size_t mask : {1, 0})
        if (std::optional<ClipGradient> found = match(pattern, node, mask)) {
          found->node = n;
          all.push_back(std::move(*found));
          break;
        }
    }
  }
  for (ClipGradient& found : all) {
    Node& node = graph.nodes[found.node];
    node = {kSessionDomain,      "ClipGrad",   node.name,
            {found.dy, found.x}, node.outputs, std::move(found.bounds)};
  }
  return !all.empty();
}

}  // namespace ortrain
