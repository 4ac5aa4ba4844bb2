// Additions to a matrix product and multiplications of it are applied while the product is in registers:
//
//   Add(MatMul(A, B), C)       →  FusedProduct(A, B, C)         biases, residual connections
//   Sum(G, MatMul(A, B), ...)  →  FusedProduct(A, B, G) ...     gradients of a value that several nodes read
//   Mul(MatMul(A, B), F)       →  FusedProduct(A, B, , , F)     the derivative of an activation
//
// A product takes part if it has no other readers and is computed after the other operands, so that it need
// not be moved.
#include <algorithm>
#include <unordered_map>

#include "op/operator.h"
#include "op/session_domain.h"
#include "passes/passes.h"
#include "runtime/stable_sort.h"

namespace ortrain {
namespace {

constexpr size_t kFirstAddend = 2, kLastAddend = 3, kFactor = 4;

class Fusion {
 public:
  explicit Fusion(Graph& graph) : graph_(graph), uses_(count_uses(graph)) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const std::string& output : graph.nodes[n].outputs)
        if (!output.empty()) producer_[output] = n;
  }

  bool run() {
    bool changed = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (!node.domain.empty()) continue;
      if ((node.op_type == "Add" || node.op_type == "Sum") && node.inputs.size() > 1)
        changed |= fuse_sum(n);
      else if (node.op_type == "Mul")
        changed |= fuse_factor(n);
    }
    std::erase_if(graph_.nodes, [](const Node& node) { return node.op_type.empty(); });
    return changed;
  }

 private:
  // The node that produces `value`, if it is a product to which more can be fused and that has no other
  // readers.
  Node* open_product(const std::string& value) {
    const auto at = producer_.find(value);
    if (at == producer_.end() || uses_.at(value) != 1) return nullptr;
    Node& node = graph_.nodes[at->second];
    if (node.domain == kSessionDomain && node.op_type == "FusedProduct")
      return node.has_input(kFactor) ? nullptr : &node;
    const bool fused = node.domain == kMicrosoft && node.op_type == "FusedMatMul";
    const bool plain =
        node.domain.empty() && (node.op_type == "MatMul" || (node.op_type == "Gemm" && !node.has_input(2)));
    return fused || plain ? &node : nullptr;
  }

  static void add_operand(Node& product, size_t input, const std::string& value) {
    product.domain = kSessionDomain;
    product.op_type = "FusedProduct";
    product.attributes.erase("beta");  // of a Gemm without C
    product.inputs.resize(std::max(product.inputs.size(), input + 1));
    product.inputs[input] = value;
  }

  // One more than the number of the node that computes a value; 0 for given values.
  size_t time_of(const std::string& value) const {
    const auto at = producer_.find(value);
    return at == producer_.end() ? 0 : at->second + 1;
  }

  // Adds up the operands in the order in which they are produced; a product takes the sum so far as its
  // addend.
  bool fuse_sum(size_t n) {
    Node& node = graph_.nodes[n];
    std::vector<std::string> operands = node.inputs;
    stable_sort(operands,
                [&](const std::string& a, const std::string& b) { return time_of(a) < time_of(b); });
    std::string sum = operands[0];
    std::vector<std::string> others;  // operands that no product takes as addend
    for (size_t i = 1; i < operands.size(); ++i) {
      Node* product = open_product(operands[i]);
      size_t place = kFirstAddend;
      while (product && place <= kLastAddend && product->has_input(place) &&
             product->op_type == "FusedProduct")
        ++place;
      if (product && place <= kLastAddend) {
        add_operand(*product, place, sum);
        sum = operands[i];
      } else {
        others.push_back(operands[i]);
      }
    }
    if (others.size() + 1 == operands.size()) return false;
    if (others.empty()) {
      replace(n, sum);
    } else {
      node.inputs = std::move(others);
      node.inputs.push_back(sum);
    }
    return true;
  }

  bool fuse_factor(size_t n) {
    const std::vector<std::string>& operands = graph_.nodes[n].inputs;
    const size_t last = time_of(operands[0]) > time_of(operands[1]) ? 0 : 1;
    Node* product = open_product(operands[last]);
    if (!product) return false;
    add_operand(*product, kFactor, operands[1 - last]);
    replace(n, operands[last]);
    return true;
  }

  // The producer of `value` takes over the output of node n, which is removed.
  void replace(size_t n, const std::string& value) {
    const size_t maker = producer_.at(value);
    graph_.nodes[maker].outputs = graph_.nodes[n].outputs;
    producer_[graph_.nodes[n].outputs[0]] = maker;
    graph_.nodes[n] = Node();
  }

  Graph& graph_;
  std::unordered_map<std::string, int> uses_;
  std::unordered_map<std::string, size_t> producer_;
};

}  // namespace

bool fuse_product(Model& model) { return Fusion(model.graph).run(); }

}  // namespace ortrain
