// Matrix products fused with the operators after them (com.microsoft): FusedGemm, FusedMatMulActivation,
// GemmFastGelu, and TransposeMatMul, an older name of FusedMatMul.
#include "op/decomposition.h"
#include "op/operator.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// The node's attributes except the attributes of its activation.
Attributes product_attributes(const Node& node) {
  Attributes out;
  for (const auto& [name, value] : node.attributes)
    if (!name.starts_with("activation")) out[name] = value;
  return out;
}

// activation(alpha op(A) op(B) + beta C)
void fused_gemm(DecompositionContext& e) {
  e.set(0, apply_activation(e, e("Gemm", e.node().inputs, product_attributes(e.node()))));
}

// activation(alpha op(A) op(B))
void fused_matmul(DecompositionContext& e) {
  e.set(0, apply_activation(e, e("FusedMatMul", e.node().inputs, product_attributes(e.node()), kMicrosoft)));
}

// gelu(X W + bias)
void gemm_fast_gelu(DecompositionContext& e) {
  Names inputs = {e("MatMul", {e.x(0), e.x(1)})};
  if (e.has_x(2)) inputs.push_back(e.x(2));
  e.set(0, e("FastGelu", inputs, {}, kMicrosoft));
}

ORTRAIN_DECOMPOSITION("FusedGemm", "A, B, C? -> Y", fused_gemm);
ORTRAIN_DECOMPOSITION("FusedMatMulActivation", "A, B -> Y", fused_matmul);
ORTRAIN_DECOMPOSITION("TransposeMatMul", "A, B -> Y", fused_matmul);
ORTRAIN_DECOMPOSITION("GemmFastGelu", "X, W, bias? -> Y", gemm_fast_gelu);

}  // namespace
}  // namespace ortrain
