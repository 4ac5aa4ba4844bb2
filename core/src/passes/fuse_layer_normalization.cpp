// Layer normalization: y = (x − mean) / √(variance + ε) · scale + bias over the trailing axes.
// J. L. Ba et al., "Layer normalization", 2016.
// Root mean square normalization: y = x / √(mean(x²) + ε) · scale.
// B. Zhang, R. Sennrich, "Root mean square layer normalization", 2019.
//
// Exporters write the first as nine nodes in opsets before 17, and the second as seven or more before 23. As
// one node, each keeps its statistics for the backward pass instead of every value in between; ONNX's
// RMSNormalization has no output for them. Models of these opsets may contain the nodes too: onnxruntime
// accepts LayerNormalization and SimplifiedLayerNormalization in the ONNX domain at any opset, and so do we.
#include <algorithm>

#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

constexpr const char* kRms = "SimplifiedLayerNormalization";

struct Match {
  std::string x, scale, bias;  // no bias: the root mean square
  int64_t axis;                // negative
  double epsilon;
  size_t last = 0;  // the node that adds the bias or multiplies by the scale
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

// √(mean(squared²) + epsilon).
struct Deviation {
  const Node* mean;
  std::string squared;
  int reads;  // how often its square reads it
  double epsilon;
};

// How `value` is computed, if it is a deviation that only one node reads.
std::optional<Deviation> deviation(const Pattern& p, const std::string& value) {
  const Node* root = p.made_by(value, "Sqrt");
  if (!root || p.uses(value) != 1) return std::nullopt;
  const Node* plus = p.made_by(root->inputs[0], "Add");
  if (!plus || p.uses(root->inputs[0]) != 1) return std::nullopt;
  const size_t constant_side = p.scalar(plus->inputs[1]) ? 1 : 0;
  const std::optional<double> epsilon = p.scalar(plus->inputs[constant_side]);
  const std::string& variance = plus->inputs[1 - constant_side];
  const Node* mean = p.made_by(variance, "ReduceMean");
  if (!epsilon || !mean || p.uses(variance) != 1) return std::nullopt;
  const std::string& square = mean->inputs[0];
  if (p.uses(square) != 1) return std::nullopt;
  if (const Node* pow = p.made_by(square, "Pow"); pow && p.is_scalar(pow->inputs[1], 2.0))
    return Deviation{mean, pow->inputs[0], 1, *epsilon};
  if (const Node* mul = p.made_by(square, "Mul"); mul && mul->inputs[0] == mul->inputs[1])
    return Deviation{mean, mul->inputs[0], 2, *epsilon};
  return std::nullopt;
}

// The value of (x − mean) / √(variance + ε), with the scale and bias that are applied to it.
std::optional<Match> layer(const Graph& graph, const Pattern& p, const std::string& normalized,
                           const std::string& scale, const std::string& bias) {
  const Node* div = p.made_by(normalized, "Div");
  if (!div || p.uses(normalized) != 1) return std::nullopt;
  const Node* centre = p.made_by(div->inputs[0], "Sub");
  const std::optional<Deviation> by = deviation(p, div->inputs[1]);
  if (!centre || !by) return std::nullopt;
  // The squared value is the centered value, or a second Sub of the same operands.
  const Node* again = p.made_by(by->squared, "Sub");
  if (!again || again->inputs != centre->inputs) return std::nullopt;
  const bool one_sub = by->squared == div->inputs[0];
  if (p.uses(by->squared) != by->reads + (one_sub ? 1 : 0) || (!one_sub && p.uses(div->inputs[0]) != 1))
    return std::nullopt;
  const std::string& x = centre->inputs[0];
  const Node* first_mean = p.made_by(centre->inputs[1], "ReduceMean");
  if (!first_mean || first_mean->inputs[0] != x || p.uses(centre->inputs[1]) != (one_sub ? 1 : 2))
    return std::nullopt;
  const int64_t axes = trailing_axes(graph, p, *first_mean, x);
  if (axes == 0 || trailing_axes(graph, p, *by->mean, x) != axes) return std::nullopt;
  if (!fits(graph, scale, x, axes) || !fits(graph, bias, x, axes)) return std::nullopt;
  return Match{x, scale, bias, -axes, by->epsilon};
}

// The input of a Cast to the type that it has, and other values themselves.
const std::string& without_cast(const Graph& graph, const Pattern& p, const std::string& value) {
  const Node* cast = p.made_by(value, "Cast");
  if (!cast || p.uses(value) != 1) return value;
  const std::optional<ValueInfo> from = graph.info(cast->inputs[0]);
  return from && from->dtype == static_cast<DType>(cast->int_or("to", 0)) ? cast->inputs[0] : value;
}

// The value of x / √(mean(x²) + ε), which is also written as x times the reciprocal, or as x times 1 over the
// root. Models that compute it in float, whatever their type, have a Cast before the scale.
std::optional<Match> root_mean_square(const Graph& graph, const Pattern& p, const std::string& scaled,
                                      const std::string& scale) {
  const std::string& normalized = without_cast(graph, p, scaled);
  if (p.uses(normalized) != 1) return std::nullopt;
  const auto matched = [&](const std::string& x, const std::string& root) -> std::optional<Match> {
    const std::optional<Deviation> by = deviation(p, root);
    if (!by || by->squared != x) return std::nullopt;
    const int64_t axes = trailing_axes(graph, p, *by->mean, x);
    if (axes == 0 || !fits(graph, scale, x, axes)) return std::nullopt;
    return Match{x, scale, "", -axes, by->epsilon};
  };
  if (const Node* div = p.made_by(normalized, "Div")) return matched(div->inputs[0], div->inputs[1]);
  const Node* mul = p.made_by(normalized, "Mul");
  if (!mul) return std::nullopt;
  for (size_t side = 0; side < 2; ++side) {
    const std::string& inverse = mul->inputs[side];
    if (p.uses(inverse) != 1) continue;
    const Node* reciprocal = p.made_by(inverse, "Reciprocal");
    const Node* div = p.made_by(inverse, "Div");
    if (reciprocal || (div && p.is_scalar(div->inputs[0], 1.0)))
      if (auto found = matched(mul->inputs[1 - side], reciprocal ? reciprocal->inputs[0] : div->inputs[1]))
        return found;
  }
  return std::nullopt;
}

std::optional<Match> match(const Graph& graph, const Pattern& p, const Node& last) {
  for (size_t side = 0; side < 2; ++side) {
    const std::string &scaled = last.inputs[side], &other = last.inputs[1 - side];
    if (last.op_type == "Mul") {
      if (auto found = root_mean_square(graph, p, scaled, other)) return found;
    } else if (last.op_type == "Add") {
      const Node* mul = p.made_by(scaled, "Mul");
      if (!mul || p.uses(scaled) != 1) continue;
      for (size_t inner = 0; inner < 2; ++inner)
        if (auto found = layer(graph, p, mul->inputs[inner], mul->inputs[1 - inner], other)) return found;
    }
  }
  return std::nullopt;
}

}  // namespace

bool fuse_layer_normalization(Model& model) {
  Graph& graph = model.graph;
  bool changed = false;
  for (Node& node : graph.nodes)
    if (node.domain.empty() && node.op_type == "RMSNormalization") {
      node.op_type = kRms;  // the same without an output for the statistics
      changed = true;
    }
  std::vector<Match> found;
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (!node.domain.empty() || node.inputs.size() != 2) continue;
      if (auto m = match(graph, pattern, node)) {
        m->last = n;
        found.push_back(*m);
      }
    }
  }
  for (const Match& m : found) {
    Node& last = graph.nodes[m.last];
    const std::string type = m.bias.empty() ? kRms : "LayerNormalization";
    std::vector<std::string> inputs = {m.x, m.scale};
    if (!m.bias.empty()) inputs.push_back(m.bias);
    last = Node{"",
                type,
                last.name.empty() ? "" : last.name + "/" + type,
                inputs,
                last.outputs,
                {{"axis", m.axis}, {"epsilon", static_cast<float>(m.epsilon)}, {"stash_type", int64_t{1}}}};
  }
  return changed || !found.empty();
}

}  // namespace ortrain
