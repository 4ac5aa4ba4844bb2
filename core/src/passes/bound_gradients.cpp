// A gradient may be a sum of products whose factors are much smaller than the gradient itself, such as that
// of the weights of a dense layer with a small batch. A bound of such a gradient costs less to compute than
// reading the gradient. Where the graph has an input for the bound of an accumulation buffer, a node computes
// the bound before each product:
//
//   InPlaceAccumulatorV2(buffer, FusedMatMul(A, B), overwrite)
//     →  GradientBound(bound, overwrite, buffer, A, B) in front of them
//
// A gradient that is a sum of several such products, like that of a weight with several readers, gets a node
// for each product. Other gradients get no node: their bound remains unknown.
#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>
#include <vector>

#include "op/operator.h"
#include "op/session_domain.h"
#include "op/sum_of_products.h"
#include "passes/passes.h"
#include "runtime/stable_sort.h"

namespace ortrain {
namespace {

// A product that is part of a gradient: the node that computes it, and the term of that node's output.
struct Part {
  size_t node;
  ProductTerm term;
};

class Parts {
 public:
  explicit Parts(const Graph& graph) : graph_(graph) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (size_t o = 0; o < graph.nodes[n].outputs.size(); ++o)
        if (graph.nodes[n].has_output(o)) producer_[graph.nodes[n].outputs[o]] = {n, o};
  }

  // The products whose sum is a value, in the order in which they are computed; empty if the value is not
  // such a sum.
  std::vector<Part> of(const std::string& value) const {
    std::vector<Part> parts;
    if (!collect(value, 1, parts)) return {};
    stable_sort(parts, [](const Part& a, const Part& b) { return a.node < b.node; });
    return parts;
  }

 private:
  // A gradient with more products than this gets no bound, because every step would measure each product.
  static constexpr size_t kMostParts = 64;

  // `growth` is the factor by which the rounding of the sums around this value may enlarge it.
  bool collect(const std::string& value, double growth, std::vector<Part>& parts) const {
    const auto at = producer_.find(value);
    if (at == producer_.end() || parts.size() > kMostParts) return false;
    const auto [node, output] = at->second;
    const std::vector<ProductTerm> terms = product_terms(graph_.nodes[node], output);
    for (const ProductTerm& term : terms) {
      if (!term.is_sum) {
        if (!collect(graph_.nodes[node].inputs[term.factors[0]], 2 * growth, parts)) return false;
        continue;
      }
      Part& part = parts.emplace_back(node, term);
      part.term.scale *= growth;
    }
    return !terms.empty();
  }

  const Graph& graph_;
  std::unordered_map<std::string, std::pair<size_t, size_t>> producer_;
};

}  // namespace

bool bound_gradients(Model& model) {
  Graph& graph = model.graph;
  const Parts all(graph);
  std::vector<std::vector<Node>> before(graph.nodes.size());
  bool changed = false;
  for (const Node& node : graph.nodes) {
    if (node.op_type != "InPlaceAccumulatorV2" || node.domain != kMicrosoft) continue;
    const std::string bound = name_of_bound(node.inputs[0]);
    if (!graph.is_input(bound)) continue;
    const std::vector<Part> parts = all.of(node.inputs[1]);
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& [at, term] = parts[i];
      Node measured;
      measured.domain = kSessionDomain;
      measured.op_type = "GradientBound";
      measured.attributes["scale"] = static_cast<float>(term.scale);
      // The first node overwrites the bound when the buffer is overwritten; the other nodes always add to it.
      measured.inputs = {bound, i == 0 && node.has_input(2) ? node.inputs[2] : "", node.inputs[0]};
      for (const size_t factor : term.factors) measured.inputs.push_back(graph.nodes[at].inputs[factor]);
      measured.outputs = {concat(bound, ".", i)};
      ValueInfo updated;  // the graph keeps only nodes that outputs need
      updated.name = measured.outputs[0];
      updated.dtype = DType::kBool;
      updated.dims = std::vector<Dim>{{1, ""}};
      graph.outputs.push_back(std::move(updated));
      before[at].push_back(std::move(measured));
      changed = true;
    }
  }
  if (!changed) return false;
  std::vector<Node> nodes;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    std::move(before[n].begin(), before[n].end(), std::back_inserter(nodes));
    nodes.push_back(std::move(graph.nodes[n]));
  }
  graph.nodes = std::move(nodes);
  return true;
}

}  // namespace ortrain
