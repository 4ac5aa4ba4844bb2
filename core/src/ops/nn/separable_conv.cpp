// SeparableConv, which passes/fuse_separable_conv.cpp creates: a depthwise convolution with the pointwise
// convolutions before and after it. The kernel is in backend/cpu/conv/separable_conv.h.
#include "geometry/separable_convolution.h"
#include "op/operator.h"
#include "op/session_domain.h"

namespace ortrain {
namespace {

void separable_conv_shape(ShapeContext& c) {
  check_window_attributes(c);
  const SeparableShapes shapes(c);
  for (size_t i = 0; i < kSeparableInputs; ++i) {
    if (!c.has_input(i)) continue;
    c.expect(c.dtype(i) == DType::kFloat, "input ", i, " must be float, found ", to_string(c.dtype(i)));
    const bool is_bias = i > 0 && i % 2 == 0;
    c.expect(!is_bias || c.shape(i) == Shape{c.shape(i - 1)[0]}, "the bias, input ", i,
             ", must have an element for each filter, found ", to_string(c.shape(i)));
  }
  for (size_t i = 0; i < 3; ++i) separable_activation(c, i);
  c.output(0, DType::kFloat, shapes.y);
}

// One multiplication and one addition for each weight that an element of a result reads.
Operations separable_operations(const Node&, std::span<const Shape* const> inputs, const Shape& y) {
  if (inputs.size() <= kSeparableMiddle || !inputs[0] || !inputs[kSeparableMiddle]) return {};
  const Shape &x = *inputs[0], &w = *inputs[kSeparableMiddle];
  if (x.size() != 4 || w.size() != 4 || y.size() != 4) return {};
  const double read = static_cast<double>(x[0]) * static_cast<double>(x[2]) * static_cast<double>(x[3]),
               written = static_cast<double>(y[0]) * static_cast<double>(y[2]) * static_cast<double>(y[3]);
  const double channels = static_cast<double>(w[0]);
  double sums = written * channels * static_cast<double>(w[2]) * static_cast<double>(w[3]);
  if (inputs[kSeparableFirst]) sums += read * channels * static_cast<double>(x[1]);
  if (inputs.size() > kSeparableLast && inputs[kSeparableLast])
    sums += written * channels * static_cast<double>(y[1]);
  return {2 * sums};
}

ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "SeparableConv",
                  .signature = "X, W1?, B1?, W2, B2?, W3?, B3? -> Y",
                  .rules = {.shape = separable_conv_shape},
                  .traits = {.takes_bf16 = true, .operations = separable_operations},
                  .made_from = {is_built(kMicrosoft, "FusedConv") ? "FusedConv" : "Conv"}});

}  // namespace
}  // namespace ortrain
