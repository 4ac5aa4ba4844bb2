// Group normalization, which exporters write as an instance normalization of the groups, and its gradient:
//
//     Reshape(InstanceNormalization(Reshape(X, [N, groups, -1]), scale, bias), Shape(X))
//       →  GroupNormalization(X, scale, bias)
//
// The separate steps need X in row-major order. Scale and bias have one value per group, as in version 18 of
// GroupNormalization; the scale per channel remains a Mul. Files keep the separate steps, since onnx rejects
// version 18 as deprecated.
#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "infer/value_types.h"
#include "op/operator.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

constexpr int64_t kFirst = 18;  // the oldest opset with GroupNormalization

using Dims = std::optional<std::vector<Dim>>;

bool same(const Dims& a, const Dims& b) {
  return a && b &&
         std::equal(a->begin(), a->end(), b->begin(), b->end(),
                    [](const Dim& left, const Dim& right) { return left.same(right); });
}

class Matcher {
 public:
  explicit Matcher(const Model& model) : pattern_(model.graph), types_(model) {
    for (const Node& node : model.graph.nodes) {
      if (is(node, "Reshape")) views_.emplace(node.inputs[0], &node);
      if (is(node, "Shape")) ++shapes_[node.inputs[0]];
    }
  }

  static bool is(const Node& node, std::string_view type, std::string_view domain = "") {
    return node.op_type == type && node.domain == domain;
  }

  // The node that replaces `node` and the Reshape of its first result; nothing if `node` normalizes something
  // else.
  std::optional<Node> match(const Node& node) {
    const bool backward = is(node, "GroupNormalizationGrad", kMicrosoft) && !node.has("num_groups");
    if (!backward && !is(node, "InstanceNormalization")) return std::nullopt;
    const std::string& grouped = node.inputs[backward ? 1 : 0];
    const Node* apart = pattern_.made_by(grouped, "Reshape");
    const Node* dy = backward ? pattern_.made_by(node.inputs[0], "Reshape") : nullptr;
    const auto view = views_.find(node.outputs[0]);
    if (!apart || view == views_.end() || pattern_.uses(node.outputs[0]) != 1 + shapes_[node.outputs[0]] ||
        (backward && !dy))
      return std::nullopt;
    const std::string& x = apart->inputs[0];
    const Dims &given = types_.info(x).dims, &parts = types_.info(grouped).dims;
    const std::string& result = view->second->outputs[0];
    if (!given || given->size() < 3 || !parts || parts->size() != 3 || !(*parts)[0].same((*given)[0]) ||
        !same(given, types_.info(result).dims) || (dy && !same(given, types_.info(dy->inputs[0]).dims)))
      return std::nullopt;
    const int64_t channels = (*given)[1].value, groups = (*parts)[1].value;
    if (channels < 1 || groups < 1 || channels % groups != 0) return std::nullopt;
    Node fused = node;
    fused.inputs[backward ? 1 : 0] = x;
    if (backward)
      fused.inputs[0] = dy->inputs[0];
    else
      fused.op_type = "GroupNormalization";
    fused.outputs[0] = result;
    fused.attributes = {{"num_groups", groups}, {"epsilon", node.float_or("epsilon", 1e-5f)}};
    return fused;
  }

 private:
  Pattern pattern_;
  ValueTypes types_;
  std::unordered_map<std::string, const Node*> views_;  // by their input
  std::unordered_map<std::string, int> shapes_;         // how many Shape nodes read a value
};

}  // namespace

bool fuse_group_normalization(Model& model) {
  Graph& graph = model.graph;
  const auto normalizes = [](const Node& node) { return Matcher::is(node, "InstanceNormalization"); };
  if (!is_built("", "GroupNormalization") || model.opset("") < kFirst ||
      std::none_of(graph.nodes.begin(), graph.nodes.end(), normalizes))
    return false;
  std::vector<std::pair<size_t, Node>> found;
  {
    Matcher matcher(model);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto node = matcher.match(graph.nodes[n])) found.emplace_back(n, std::move(*node));
  }
  std::unordered_set<std::string> replaced;                 // results of the Reshapes
  std::unordered_map<std::string, std::string> same_shape;  // for values that disappear
  for (auto& [n, node] : found) {
    // Its operand may be the result that another one no longer has.
    if (same_shape.contains(node.inputs[0]) || same_shape.contains(node.inputs[1])) continue;
    Node& before = graph.nodes[n];
    const bool backward = before.op_type != "InstanceNormalization";
    same_shape[before.outputs[0]] = before.inputs[backward ? 1 : 0];
    replaced.insert(node.outputs[0]);
    before = std::move(node);
  }
  for (Node& node : graph.nodes)
    if (const auto at = Matcher::is(node, "Shape") ? same_shape.find(node.inputs[0]) : same_shape.end();
        at != same_shape.end())
      node.inputs[0] = at->second;
  std::erase_if(graph.nodes, [&](const Node& node) {
    return Matcher::is(node, "Reshape") && replaced.contains(node.outputs[0]);
  });
  return !found.empty();
}

}  // namespace ortrain
