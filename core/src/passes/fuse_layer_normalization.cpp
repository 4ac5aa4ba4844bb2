// Layer normalization: y = (x − mean) / √(variance + ε) · scale + bias over the trailing axes.
// J. L. Ba et al., "Layer normalization", 2016.
//
// Exporters of opsets before 17 write it as nine nodes. As one node, LayerNormalization keeps the mean and
// the inverse standard deviation for the backward pass instead of every value in between. Models of those
// opsets may contain the node too: onnxruntime accepts it in the ONNX domain at any opset, and so do we.
#include <algorithm>

#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

struct Match {
  size_t last;  // the node that adds the bias
  std::string x, scale, bias;
  int64_t axis;  // negative
  double epsilon;
};

// The number of trailing axes that a ReduceMean with kept dimensions reduces; 0 if the node is something
// else. Its input has the rank of x.
int64_t trailing_axes(const Graph& graph, const Pattern& p, const Node& mean, const std::string& x) {
  if (mean.int_or("keepdims", 1) != 1) return 0;
  std::vector<int64_t> axes = mean.ints_or("axes", {});
  if (mean.has_input(1)) {
    const std::optional<Tensor> constant = p.constant(mean.inputs[1]);
    if (!constant) return 0;
    axes = constant->to_int64();
  }
  if (axes.empty()) return 0;
  const std::optional<ValueInfo> info = graph.info(x);
  for (int64_t& axis : axes) {
    if (axis < 0) continue;
    if (!info || !info->dims) return 0;
    axis -= static_cast<int64_t>(info->dims->size());
  }
  std::sort(axes.begin(), axes.end());
  for (size_t a = 0; a < axes.size(); ++a)
    if (axes[a] != static_cast<int64_t>(a) - static_cast<int64_t>(axes.size())) return 0;
  return static_cast<int64_t>(axes.size());
}

// Whether `weight`, a scale or bias, has exactly the normalized axes. Mul and Add remain for other shapes,
// which they broadcast.
bool fits(const Graph& graph, const std::string& weight, const std::string& x, int64_t axes) {
  const std::optional<ValueInfo> w = graph.info(weight);
  if (!w || !w->dims || w->dtype != DType::kFloat || static_cast<int64_t>(w->dims->size()) != axes)
    return false;
  const std::optional<ValueInfo> v = graph.info(x);
  if (!v || !v->dims || static_cast<int64_t>(v->dims->size()) < axes) return false;
  for (int64_t a = 0; a < axes; ++a)
    if (!(*w->dims)[a].same((*v->dims)[v->dims->size() - axes + a])) return false;
  return true;
}

std::optional<Match> match(const Graph& graph, const Pattern& p, size_t last) {
  const Node& add = graph.nodes[last];
  if (!add.domain.empty() || add.op_type != "Add" || add.inputs.size() != 2) return std::nullopt;
  for (size_t side = 0; side < 2; ++side) {
    const Node* mul = p.made_by(add.inputs[side], "Mul");
    if (!mul || p.uses(add.inputs[side]) != 1 || mul->inputs.size() != 2) continue;
    for (size_t inner = 0; inner < 2; ++inner) {
      const std::string& normalized = mul->inputs[inner];
      const Node* div = p.made_by(normalized, "Div");
      if (!div || p.uses(normalized) != 1) continue;
      const Node* centre = p.made_by(div->inputs[0], "Sub");
      const Node* root = p.made_by(div->inputs[1], "Sqrt");
      if (!centre || !root || p.uses(div->inputs[1]) != 1) continue;
      const Node* plus = p.made_by(root->inputs[0], "Add");
      if (!plus || p.uses(root->inputs[0]) != 1) continue;
      const size_t constant_side = p.scalar(plus->inputs[1]) ? 1 : 0;
      const std::optional<double> epsilon = p.scalar(plus->inputs[constant_side]);
      const std::string& variance = plus->inputs[1 - constant_side];
      const Node* second_mean = p.made_by(variance, "ReduceMean");
      if (!epsilon || !second_mean || p.uses(variance) != 1) continue;
      const std::string& square = second_mean->inputs[0];
      if (p.uses(square) != 1) continue;
      std::string squared;  // the squared value: the centered value, or a second Sub of the same operands
      int reads = 1;
      if (const Node* pow = p.made_by(square, "Pow"); pow && p.is_scalar(pow->inputs[1], 2.0)) {
        squared = pow->inputs[0];
      } else if (const Node* product = p.made_by(square, "Mul");
                 product && product->inputs[0] == product->inputs[1]) {
        squared = product->inputs[0];
        reads = 2;
      } else {
        continue;
      }
      const Node* again = p.made_by(squared, "Sub");
      if (!again || again->inputs != centre->inputs) continue;
      const bool one_sub = squared == div->inputs[0];
      if (p.uses(squared) != reads + (one_sub ? 1 : 0) || (!one_sub && p.uses(div->inputs[0]) != 1)) continue;
      const std::string& x = centre->inputs[0];
      const Node* first_mean = p.made_by(centre->inputs[1], "ReduceMean");
      if (!first_mean || first_mean->inputs[0] != x || p.uses(centre->inputs[1]) != (one_sub ? 1 : 2))
        continue;
      const int64_t axes = trailing_axes(graph, p, *first_mean, x);
      if (axes == 0 || trailing_axes(graph, p, *second_mean, x) != axes) continue;
      const std::string& scale = mul->inputs[1 - inner];
      const std::string& bias = add.inputs[1 - side];
      if (!fits(graph, scale, x, axes) || !fits(graph, bias, x, axes)) continue;
      return Match{last, x, scale, bias, -axes, *epsilon};
    }
  }
  return std::nullopt;
}

}  // namespace

bool fuse_layer_normalization(Model& model) {
  Graph& graph = model.graph;
  std::vector<Match> found;
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (const auto m = match(graph, pattern, n)) found.push_back(*m);
  }
  for (const Match& m : found) {
    Node& last = graph.nodes[m.last];
    last = Node{"",
                "LayerNormalization",
                last.name.empty() ? "" : last.name + "/LayerNormalization",
                {m.x, m.scale, m.bias},
                last.outputs,
                {{"axis", m.axis}, {"epsilon", static_cast<float>(m.epsilon)}, {"stash_type", int64_t{1}}}};
  }
  if (found.empty()) return false;
  return true;
}

}  // namespace ortrain
