// A matrix product of dequantized values with constant weights is a product of the codes, summed in integers:
//
//   MatMul(DequantizeLinear(A), DequantizeLinear(B))    →  MatMulIntegerToFloat(A, B, scales, zero points)
//   Gemm(DequantizeLinear(A), DequantizeLinear(B), C)   →  the same with the bias C
//
// The result is float, so the nodes that read it stay unchanged. Only for sessions that do not train.
#include <algorithm>

#include "op/operator.h"
#include "passes/dequantized.h"
#include "passes/passes.h"

namespace ortrain {
namespace {

struct Found {
  size_t node;
  Dequantized a, b;
  Tensor codes;             // of B, [k, n]
  std::vector<float> bias;  // empty: none
};

Tensor transposed(const Tensor& codes) {
  Tensor made(codes.dtype(), {codes.shape()[1], codes.shape()[0]});
  const auto* from = reinterpret_cast<const uint8_t*>(codes.raw());
  auto* to = reinterpret_cast<uint8_t*>(made.raw());
  for (int64_t i = 0; i < codes.shape()[1]; ++i)
    for (int64_t j = 0; j < codes.shape()[0]; ++j) *to++ = from[j * codes.shape()[1] + i];
  return made;
}

// Reads C of a Gemm if it has one number for each column.
bool read_bias(const Pattern& p, const Graph& graph, const Node& node, Found& found) {
  if (!node.has_input(2)) return true;
  const std::optional<Tensor> constant = p.constant(node.inputs[2]);
  const std::optional<std::vector<double>> bias = constant_numbers(p, graph, node.inputs[2]);
  if (!bias || static_cast<int64_t>(bias->size()) != found.codes.shape()[1]) return false;
  if (constant && !constant->shape().empty() && constant->shape().back() != constant->size()) return false;
  for (const double number : *bias) found.bias.push_back(static_cast<float>(number));
  return true;
}

std::optional<Found> match(const Pattern& p, const Graph& graph, size_t n) {
  const Node& node = graph.nodes[n];
  const bool gemm = node.op_type == "Gemm";
  if (!node.domain.empty() || (!gemm && node.op_type != "MatMul")) return std::nullopt;
  if (gemm && (node.int_or("transA", 0) != 0 || node.float_or("alpha", 1) != 1 ||
               (node.has_input(2) && node.float_or("beta", 1) != 1)))
    return std::nullopt;
  const std::optional<Dequantized> a = dequantized_bytes(p, graph, node.inputs.at(0)),
                                   b = dequantized(p, graph, node.inputs.at(1));
  if (!a || !b || !is_byte(b->dtype)) return std::nullopt;
  const std::optional<Tensor> codes = p.constant(b->codes);
  if (!codes || codes->shape().size() != 2 || codes->size() == 0) return std::nullopt;
  const bool is_transposed = gemm && node.int_or("transB", 0) != 0;
  const size_t column = is_transposed ? 0 : 1;
  if (!b->along(static_cast<int64_t>(column), 2)) return std::nullopt;
  if (b->scales.size() > 1 && static_cast<int64_t>(b->scales.size()) != codes->shape()[column])
    return std::nullopt;
  // The sums must fit in 32 bits.
  if (codes->shape()[1 - column] > 2147483647 / (255 * 255)) return std::nullopt;
  Found found{n, *a, *b, is_transposed ? transposed(*codes) : Tensor(), {}};
  if (!is_transposed) found.codes = *codes;
  return read_bias(p, graph, node, found) ? std::optional(std::move(found)) : std::nullopt;
}

void replace(Graph& graph, Found& f) {
  Node& node = graph.nodes[f.node];
  const bool is_transposed = node.int_or("transB", 0) != 0;
  const std::string base = node.outputs[0];
  const auto [a_scale, a_zero] = add_scales(graph, f.a, base + "/a");
  const auto [b_scale, b_zero] = add_scales(graph, f.b, base + "/b");
  std::string codes = f.b.codes;
  if (is_transposed) {
    codes = graph.unique_name(base + "/b");
    graph.add_initializer(codes, std::move(f.codes));
  }
  Node fused{kMicrosoft, "MatMulIntegerToFloat", node.name, {}, node.outputs, {}};
  fused.inputs = {f.a.codes, codes, a_scale, b_scale, a_zero, b_zero};
  if (!f.bias.empty()) {
    Tensor bias(DType::kFloat, {static_cast<int64_t>(f.bias.size())});
    std::copy(f.bias.begin(), f.bias.end(), bias.data<float>());
    fused.inputs.push_back(graph.unique_name(base + "/bias"));
    graph.add_initializer(fused.inputs.back(), std::move(bias));
  }
  node = std::move(fused);
}

}  // namespace

bool fuse_quantized_product(Model& model) {
  if (!replace_matches(model.graph, match, replace)) return false;
  model.opsets.emplace(kMicrosoft, 1);
  return true;
}

}  // namespace ortrain
