// Swish(x) = x · sigmoid(x), S. Elfwing, E. Uchibe and K. Doya, "Sigmoid-weighted linear units for neural
// network function approximation in reinforcement learning", 2018. Exporters write it as two nodes. In
// training models:
//
//   S = Sigmoid(X), Y = Mul(X, S), dX = Sum(Mul(dY, S), SigmoidGrad(Mul(dY, X), S))
//     →  SwishAndDerivative(X) → Y, D and dX = Mul(dY, D)
//
// The gradient then reads D, instead of X and S. The sum may have further terms.
#include <algorithm>
#include <unordered_map>

#include "op/operator.h"
#include "op/session_domain.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

// The other factor of a product with `value` that is read once.
std::optional<std::string> other_factor(const Pattern& p, const std::string& product,
                                        const std::string& value) {
  const Node* node = p.made_by(product, "Mul");
  if (!node || node->inputs.size() != 2 || p.uses(product) != 1) return std::nullopt;
  for (const size_t side : {0, 1})
    if (node->inputs[side] == value && node->inputs[1 - side] != value) return node->inputs[1 - side];
  return std::nullopt;
}

struct Swish {
  size_t product, sum;  // numbers of the nodes of Y and of dX
  std::string x, dy;
  std::vector<std::string> terms;  // the two of the sum
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), pattern_(graph) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      for (const std::string& input : node.inputs) readers_[input].push_back(n);
    }
  }

  // `gradient` is a SigmoidGrad.
  std::optional<Swish> match(const Node& gradient) const {
    const std::string &s = gradient.inputs.at(1), &term = gradient.outputs.at(0);
    const Node* sigmoid = pattern_.made_by(s, "Sigmoid");
    // With other readers, X would have to be kept in addition to the derivative.
    if (!sigmoid || pattern_.uses(s) != 3 || pattern_.uses(term) != 1) return std::nullopt;
    Swish found{0, 0, sigmoid->inputs.at(0), "", {term}};
    const auto dy = other_factor(pattern_, gradient.inputs[0], found.x);
    if (!dy || pattern_.uses(found.x) != 3) return std::nullopt;
    const auto reader = readers_.find(term);  // none if it is an output of the graph
    if (reader == readers_.end()) return std::nullopt;
    found.dy = *dy, found.sum = reader->second.front();
    const Node& sum = graph_.nodes[found.sum];
    if (!sum.domain.empty() || sum.op_type != "Sum") return std::nullopt;
    for (const std::string& other : sum.inputs)
      if (found.terms.size() == 1 && other != term && other_factor(pattern_, other, s) == found.dy)
        found.terms.push_back(other);
    if (found.terms.size() != 2) return std::nullopt;
    for (const size_t n : readers_.at(s)) {
      const Node& node = graph_.nodes[n];
      const bool multiplies = node.domain.empty() && node.op_type == "Mul" && node.inputs.size() == 2;
      if (multiplies && std::count(node.inputs.begin(), node.inputs.end(), found.x) == 1) {
        found.product = n;
        return found;
      }
    }
    return std::nullopt;
  }

 private:
  const Graph& graph_;
  Pattern pattern_;
  std::unordered_map<std::string, std::vector<size_t>> readers_;
};

}  // namespace

bool fuse_swish(Model& model) {
  Graph& graph = model.graph;
  std::vector<Swish> all;
  {
    const Finder finder(graph);
    for (const Node& node : graph.nodes)
      if (node.domain == kMicrosoft && node.op_type == "SigmoidGrad")
        if (std::optional<Swish> found = finder.match(node)) all.push_back(std::move(*found));
  }
  for (const Swish& found : all) {
    const std::string derivative = graph.unique_name(found.x + "_derivative");
    Node& product = graph.nodes[found.product];
    product = {
        kSessionDomain, "SwishAndDerivative", product.name, {found.x}, {product.outputs[0], derivative}, {}};
    Node& sum = graph.nodes[found.sum];
    if (sum.inputs.size() == 2) {
      sum = {"", "Mul", sum.name, {found.dy, derivative}, sum.outputs, {}};
      continue;
    }
    // The node that made one of the terms makes their sum.
    std::erase(sum.inputs, found.terms[1]);
    for (Node& node : graph.nodes)
      if (!node.outputs.empty() && node.outputs[0] == found.terms[0])
        node = {"", "Mul", node.name, {found.dy, derivative}, {found.terms[0]}, {}};
  }
  return !all.empty();
}

}  // namespace ortrain
