// Operators that include a bias (com.microsoft): BiasAdd, BiasSplitGelu, BiasSoftmax, BiasDropout,
// BitmaskBiasDropout, BiasSoftmaxDropout; and SoftmaxDropoutGrad.
#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// X + bias + skip
void bias_add(DecompositionContext& e) { e.set(0, e("Add", {e("Add", {e.x(0), e.x(1)}), e.x(2)})); }

// [a, b] = X + bias, halves along the last axis; a gelu(b)
void bias_split_gelu(DecompositionContext& e) {
  Attributes halves = {{"axis", int64_t{-1}}};
  if (e.opset() >= since::kSplitCount) halves["num_outputs"] = int64_t{2};
  const auto parts = e.emit("Split", {e("Add", {e.x(0), e.x(1)})}, 2, halves);
  e.set(0, e("Mul", {parts[0], e("Gelu", {parts[1]}, {}, kMicrosoft)}));
}

// softmax(X + bias) over axis and all axes after it
Name biased_softmax(DecompositionContext& e) {
  return softmax(e, e("Add", {e.x(0), e.x(1)}), e.node().int_or("axis", 1), true);
}

void bias_softmax(DecompositionContext& e) { e.set(0, biased_softmax(e)); }

// Dropout of a value with the node's own seed. Returns the result and the mask.
Names dropout(DecompositionContext& e, const std::string& type, const std::string& domain, Names inputs) {
  Attributes seed;
  if (e.node().has("seed")) seed["seed"] = e.node().int_or("seed", 0);
  return e.emit(type, inputs, 2, seed, domain);
}

// dropout(X + bias) + residual
void decompose_bias_dropout(DecompositionContext& e, const std::string& type, const std::string& domain) {
  const auto kept = dropout(e, type, domain,
                            {e("Add", {e.x(0), e.x(1)}), e.has_x(3) ? e.x(3) : "", e.has_x(4) ? e.x(4) : ""});
  e.set(0, e.has_x(2) ? e("Add", {kept[0], e.x(2)}) : kept[0]);
  e.set(1, kept[1]);
}

void bias_dropout(DecompositionContext& e) { decompose_bias_dropout(e, "Dropout", ""); }
void bitmask_bias_dropout(DecompositionContext& e) {
  decompose_bias_dropout(e, "BitmaskDropout", kMicrosoft);
}

// s = softmax(X + bias); dropout(s), its mask, and s
void bias_softmax_dropout(DecompositionContext& e) {
  const Name s = biased_softmax(e);
  const auto kept =
      dropout(e, "Dropout", "", {s, e.has_x(2) ? e.x(2) : "", e.constant(Tensor::scalar(true))});
  e.set(0, kept[0]);
  e.set(1, kept[1]);
  e.set(2, s);
}

// With d the gradient after the dropout: dX = s (d - sum(s d)), the sum over the axes of the softmax.
void softmax_dropout_gradient(DecompositionContext& e) {
  const Name d =
      e("DropoutGrad", {e.x(0), e.x(1), e.has_x(3) ? e.x(3) : "", e.constant(Tensor::scalar(true))}, {},
        kMicrosoft);
  e.set(0, e("SoftmaxGrad", {d, e.x(2)}, {{"axis", e.node().int_or("axis", 1)}}, kMicrosoft));
}

ORTRAIN_DECOMPOSITION("BiasAdd", "X, bias, skip -> Y", bias_add);
ORTRAIN_DECOMPOSITION("BiasSplitGelu", "X, bias -> Y", bias_split_gelu);
ORTRAIN_DECOMPOSITION("BiasSoftmax", "data, bias -> output", bias_softmax);
ORTRAIN_DECOMPOSITION("BiasDropout", "data, bias, residual?, ratio?, training_mode? -> output, mask?",
                      bias_dropout);
ORTRAIN_DECOMPOSITION("BitmaskBiasDropout", "data, bias, residual?, ratio?, training_mode? -> output, mask?",
                      bitmask_bias_dropout);
ORTRAIN_DECOMPOSITION("BiasSoftmaxDropout", "data, bias, ratio? -> dropout_output, mask, softmax_output",
                      bias_softmax_dropout);
ORTRAIN_DECOMPOSITION("SoftmaxDropoutGrad", "dy, mask, softmax_y, ratio? -> dx", softmax_dropout_gradient);

}  // namespace
}  // namespace ortrain
