// A low-rank adapter of quantized weights becomes part of their product
// (ops/quantized/quantized_weights.cpp):
//
//   Sum(MatMulNBits(A, W), MatMul(low, U), ...)      →  Sum(AdaptedMatMulNBits(A, W, low, U), ...)
//   Sum(MatMulNBitsGrad(A, W), MatMul(low, U), ...)  →  the same, with transposed = 1
//
// low is MatMul(A, D), perhaps times a scalar, with matrices D and U, so that both operands of the sum have
// the same shape. A sum of two operands disappears. A separate node for the second product would read and
// write all results of the first, which takes longer than its few multiplications. In the first line, low may
// also be MatMul(Dropout(A), D). Its gradient stays apart, because DropoutGrad comes after the product.
#include <optional>
#include <unordered_map>

#include "op/session_domain.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

// Products with more columns of `low` are computed apart.
constexpr int64_t kMostColumns = 64;
constexpr size_t kGroupIndex = 4, kLow = 6;

struct Adapter {
  size_t quantized, product;  // numbers of their nodes
  size_t operand;             // of the sum: the product
};

class Fusion {
 public:
  explicit Fusion(Graph& graph) : graph_(graph), pattern_(graph) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const std::string& output : graph.nodes[n].outputs)
        if (!output.empty()) producer_[output] = n;
  }

  bool run() {
    bool changed = false;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      while (const std::optional<Adapter> found = find(graph_.nodes[n])) {
        fuse(n, *found);
        changed = true;
      }
    std::erase_if(graph_.nodes, [](const Node& node) { return node.op_type.empty(); });
    return changed;
  }

 private:
  // The number of the node that produces an operand with no other reader.
  std::optional<size_t> maker_of(const std::string& operand) const {
    const auto at = producer_.find(operand);
    if (at == producer_.end() || pattern_.uses(operand) != 1) return std::nullopt;
    return at->second;
  }

  static bool is_quantized(const Node& node) {
    return node.domain == kMicrosoft &&
           (node.op_type == "MatMulNBits" || node.op_type == "MatMulNBitsGrad") &&
           !node.has_input(kGroupIndex);
  }

  // Whether a node is A B with A as it is, perhaps with B transposed.
  static bool is_product(const Node& node) {
    const bool fused = node.domain == kMicrosoft && node.op_type == "FusedMatMul";
    const bool plain =
        node.domain.empty() && (node.op_type == "MatMul" || (node.op_type == "Gemm" && !node.has_input(2)));
    if (!fused && !plain) return false;
    for (const char* flag : {"transA", "transBatchA", "transBatchB"})
      if (node.int_or(flag, 0) != 0) return false;
    return true;
  }

  // The rows and columns of the matrix B of a product.
  std::optional<std::pair<int64_t, int64_t>> matrix_of(const Node& product) const {
    const std::optional<ValueInfo> b = graph_.info(product.inputs[1]);
    if (!b || !b->dims || b->dims->size() != 2 || !(*b->dims)[0].known() || !(*b->dims)[1].known())
      return std::nullopt;
    const int64_t first = (*b->dims)[0].value, second = (*b->dims)[1].value;
    return product.int_or("transB", 0) != 0 ? std::pair{second, first} : std::pair{first, second};
  }

  // Whether `value` is `a`, or `a` after dropout, which has the same shape.
  bool is_same_or_dropped(const std::string& value, const std::string& a) const {
    if (value == a) return true;
    const auto at = producer_.find(value);
    if (at == producer_.end()) return false;
    const Node& node = graph_.nodes[at->second];
    return node.domain.empty() && node.op_type == "Dropout" && node.outputs[0] == value &&
           node.inputs[0] == a;
  }

  // Whether `value` is the product of `a`, perhaps after dropout, and a matrix, perhaps times a scalar.
  bool is_low(const std::string& value, const std::string& a) const {
    const auto at = producer_.find(value);
    if (at == producer_.end()) return false;
    const Node& node = graph_.nodes[at->second];
    if (is_product(node)) return is_same_or_dropped(node.inputs[0], a) && matrix_of(node);
    if (!node.domain.empty() || node.op_type != "Mul" || node.inputs.size() != 2) return false;
    for (const size_t scale : {0, 1}) {
      const std::optional<Tensor> scalar = pattern_.constant(node.inputs[scale]);
      if (scalar && scalar->size() == 1 && scalar->shape().size() <= 1)
        return is_low(node.inputs[1 - scale], a);
    }
    return false;
  }

  bool adapts(const Node& product, const Node& quantized) const {
    if (!is_product(product) || product.float_or("alpha", 1) != 1) return false;
    const auto up = matrix_of(product);
    const int64_t columns = quantized.int_or(quantized.op_type == "MatMulNBits" ? "N" : "K", 0);
    return up && up->first <= kMostColumns && up->second == columns &&
           is_low(product.inputs[0], quantized.inputs[0]);
  }

  std::optional<Adapter> find(const Node& sum) const {
    if (!sum.domain.empty() || (sum.op_type != "Add" && sum.op_type != "Sum")) return std::nullopt;
    for (const std::string& operand : sum.inputs) {
      const std::optional<size_t> quantized = maker_of(operand);
      if (!quantized || !is_quantized(graph_.nodes[*quantized])) continue;
      for (size_t i = 0; i < sum.inputs.size(); ++i) {
        const std::optional<size_t> product = maker_of(sum.inputs[i]);
        if (!product) continue;
        if (adapts(graph_.nodes[*product], graph_.nodes[*quantized])) return Adapter{*quantized, *product, i};
      }
    }
    return std::nullopt;
  }

  void fuse(size_t sum, const Adapter& found) {
    Node node = std::exchange(graph_.nodes[found.quantized], {});
    const Node product = std::exchange(graph_.nodes[found.product], {});
    node.attributes["transposed"] = int64_t{node.op_type == "MatMulNBitsGrad"};
    node.attributes["transUp"] = product.int_or("transB", 0);
    node.domain = kSessionDomain, node.op_type = "AdaptedMatMulNBits";
    node.inputs.resize(kLow),
        node.inputs.insert(node.inputs.end(), product.inputs.begin(), product.inputs.begin() + 2);
    Node& of_sum = graph_.nodes[sum];
    of_sum.inputs.erase(of_sum.inputs.begin() + static_cast<std::ptrdiff_t>(found.operand));
    if (of_sum.inputs.size() == 1) {
      node.outputs = of_sum.outputs;
      of_sum = {};
    }
    // Both operands exist once the later of the two nodes would have run.
    graph_.nodes[std::max(found.quantized, found.product)] = std::move(node);
  }

  Graph& graph_;
  Pattern pattern_;
  std::unordered_map<std::string, size_t> producer_;
};

}  // namespace

bool fuse_adapter(Model& model) { return Fusion(model.graph).run(); }

}  // namespace ortrain
