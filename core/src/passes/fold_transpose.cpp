// Transposed matrices need not be materialized: matrix products read and write them in place.
//
//   MatMul(A, Transpose(B))  →  FusedMatMul(A, B, transB=1)            the last two axes swapped
//   Transpose(Gemm(A, B))    →  Gemm(B, A), both flags exchanged       (AB)ᵀ = BᵀAᵀ

#include <unordered_map>

#include "op/operator.h"
#include "passes/passes.h"

namespace ortrain {

namespace {

// True for a permutation that swaps only the last two axes.
bool swaps_last_two(const Node& node) {
  if (node.op_type != "Transpose" || !node.domain.empty()) return false;
  const std::vector<int64_t> perm = node.ints_or("perm", {});
  const auto rank = static_cast<int64_t>(perm.size());
  if (rank < 2) return false;
  for (int64_t i = 0; i < rank - 2; ++i)
    if (perm[static_cast<size_t>(i)] != i) return false;
  return perm[static_cast<size_t>(rank - 2)] == rank - 1 && perm[static_cast<size_t>(rank - 1)] == rank - 2;
}

}  // namespace

bool fold_transpose(Model& model) {
  Graph& graph = model.graph;
  const auto uses = count_uses(graph);
  const auto used_once = [&](const std::string& name) {
    return uses.at(name) == 1 && !graph.is_output(name);
  };
  std::unordered_map<std::string, Node*> producer;
  bool changed = false;
  for (Node& node : graph.nodes) {
    const bool matmul = node.op_type == "MatMul" && node.domain.empty();
    const bool fused = node.op_type == "FusedMatMul" && node.domain == kMicrosoft;
    const bool gemm = node.op_type == "Gemm" && node.domain.empty();
    if (matmul || fused || gemm) {
      for (size_t i = 0; i < 2; ++i) {
        const auto at = producer.find(node.inputs[i]);
        if (at == producer.end() || !swaps_last_two(*at->second)) continue;
        // A transposed operand of higher rank with other readers is better produced once.
        const bool matrix = at->second->ints_or("perm", {}).size() == 2;
        if (!matrix && !used_once(node.inputs[i])) continue;
        const std::string flag = i == 0 ? "transA" : "transB";
        const int64_t before = node.int_or(flag, 0);
        if (fused && (node.int_or("transBatchA", 0) || node.int_or("transBatchB", 0))) continue;
        node.inputs[i] = at->second->inputs[0];
        node.attributes[flag] = int64_t{before ? 0 : 1};
        if (matmul) {
          node.op_type = "FusedMatMul";
          node.domain = kMicrosoft;
        }
        changed = true;
      }
    } else if (swaps_last_two(node) && node.ints_or("perm", {}).size() == 2) {
      const auto at = producer.find(node.inputs[0]);
      if (at != producer.end() && used_once(node.inputs[0])) {
        Node& product = *at->second;
        if (product.op_type == "Gemm" && product.domain.empty() && !product.has_input(2)) {
          const int64_t a = product.int_or("transA", 0), b = product.int_or("transB", 0);
          // The product moves here: its inputs are still available, and only this node read its old output.
          Node moved = product;
          std::swap(moved.inputs[0], moved.inputs[1]);
          moved.attributes["transA"] = int64_t{b ? 0 : 1};
          moved.attributes["transB"] = int64_t{a ? 0 : 1};
          moved.outputs = node.outputs;
          node = std::move(moved);
          changed = true;
        }
      }
    }
    for (const std::string& output : node.outputs)
      if (!output.empty()) producer[output] = &node;
  }
  return changed;
}

}  // namespace ortrain
