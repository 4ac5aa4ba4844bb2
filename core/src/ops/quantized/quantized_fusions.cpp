// Operators on quantized values that onnxruntime's quantizer creates (com.microsoft), each of the form
//     y = quantize(f(dequantize(x), ...)).
// QuantizeLinear and DequantizeLinear have gradients, so gradients pass through the operators that are
// composed of them.
#include <algorithm>

#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// The inputs value, scale and optional zero point that begin at input i, dequantized to floats. Several
// scales apply along `axis`.
Name dequantized(DecompositionContext& e, size_t i, int64_t axis = 1) {
  Names inputs = {e.x(i), e.x(i + 1)};
  if (e.has_x(i + 2)) inputs.push_back(e.x(i + 2));
  return e("DequantizeLinear", inputs, {{"axis", axis}});
}

// The value quantized by the scale and zero point in inputs i and i + 1, to the element type of that zero
// point or else of the node's input `like`.
Name quantized(DecompositionContext& e, Name value, size_t i, size_t like) {
  if (e.has_x(i + 1)) return e("QuantizeLinear", {value, e.x(i), e.x(i + 1)});
  const DType type = e.dtype(e.x(like));
  if (type == DType::kUndefined)
    e.reject("the element type of \"", e.x(like),
             "\" is not known, and without a zero point it determines the type of the result");
  return e("QuantizeLinear", {value, as_scalar(e, e.x(i)), e.constant(Tensor::scalar(type, 0))});
}

void quantize(DecompositionContext& e) {
  e.set(0, e("QuantizeLinear", e.node().inputs, e.node().attributes));
}
void dequantize(DecompositionContext& e) {
  e.set(0, e("DequantizeLinear", e.node().inputs, e.node().attributes));
}

void add(DecompositionContext& e) {
  e.set(0, quantized(e, e("Add", {dequantized(e, 0), dequantized(e, 3)}), 6, 0));
}
void mul(DecompositionContext& e) {
  e.set(0, quantized(e, e("Mul", {dequantized(e, 0), dequantized(e, 3)}), 6, 0));
}
void sigmoid(DecompositionContext& e) { e.set(0, quantized(e, e("Sigmoid", {dequantized(e, 0)}), 3, 0)); }
void leaky_relu(DecompositionContext& e) {
  e.set(0, quantized(e, e("LeakyRelu", {dequantized(e, 0)}, {{"alpha", e.node().float_or("alpha", 0.01f)}}),
                     3, 0));
}
void softmax(DecompositionContext& e) {
  const bool flat = e.node().int_or("opset", 13) < 13;
  e.set(0, quantized(e, softmax(e, dequantized(e, 0), e.node().int_or("axis", -1), flat), 3, 0));
}
void where(DecompositionContext& e) {
  e.set(0, quantized(e, e("Where", {e.x(0), dequantized(e, 1), dequantized(e, 4)}), 7, 1));
}
void concat_all(DecompositionContext& e) {
  Names parts;
  if (e.node().inputs.size() < 5 || (e.node().inputs.size() - 2) % 3 != 0)
    e.reject("its inputs should be a scale, a zero point, and three inputs for each value, found " +
             std::to_string(e.node().inputs.size()) + " inputs");
  for (size_t i = 2; i < e.node().inputs.size(); i += 3) parts.push_back(dequantized(e, i));
  e.set(0, quantized(e, e("Concat", parts, {{"axis", e.node().int_or("axis", 0)}}), 0, 2));
}
void reduce_mean(DecompositionContext& e) {
  const Name mean = reduce(e, "ReduceMean", dequantized(e, 0), e.node().ints_or("axes", {}),
                           e.node().int_or("keepdims", 1) != 0);
  e.set(0, quantized(e, mean, 3, 0));
}

// The node's attributes except `attribute`.
Attributes without(const Node& node, const std::string& attribute) {
  Attributes out = node.attributes;
  out.erase(attribute);
  return out;
}

// Applies f to x. If the channels of x are last, f gets and returns values with channels first.
template <typename F>
Name by_channels(DecompositionContext& e, Name x, F&& f) {
  if (e.node().int_or("channels_last", 0) == 0) return f(x);
  return channels_last(e, f(channels_first(e, x)), need_rank(e, x));
}

void average_pool(DecompositionContext& e) {
  const Name y = by_channels(e, dequantized(e, 0), [&](Name x) {
    return e("AveragePool", {x}, without(e.node(), "channels_last"));
  });
  e.set(0, quantized(e, y, 3, 0));
}
void global_average_pool(DecompositionContext& e) {
  const Name y = by_channels(e, dequantized(e, 0), [&](Name x) { return e("GlobalAveragePool", {x}); });
  e.set(0, quantized(e, y, 3, 0));
}

// The scale of a bias of 32-bit integers is the product of two scales.
Name dequantized_bias(DecompositionContext& e, size_t bias, size_t scale_a, size_t scale_b, float alpha) {
  const Expression step(e, e("Mul", {as_scalar(e, e.x(scale_a)), e.x(scale_b)}));
  const Expression value(e, cast_like(e, e.x(bias), step));
  return alpha == 1 ? value * step : value * step * static_cast<double>(alpha);
}

// One scale for all weights, or one for each output channel.
void conv(DecompositionContext& e) {
  const Name w = dequantized(e, 3, 0);
  const Name y = by_channels(e, dequantized(e, 0), [&](Name x) {
    Names inputs = {x, w};
    if (e.has_x(8)) inputs.push_back(dequantized_bias(e, 8, 1, 4, 1));
    return e("Conv", inputs, without(e.node(), "channels_last"));
  });
  e.set(0, quantized(e, y, 6, 0));
}

// alpha op(A) op(B) + C, quantized if there is a scale for the result. B may have a scale for each column of
// op(B).
void gemm(DecompositionContext& e) {
  const int64_t trans_b = e.node().int_or("transB", 0);
  const float alpha = e.node().float_or("alpha", 1);
  Names inputs = {dequantized(e, 0), dequantized(e, 3, trans_b ? 0 : 1)};
  if (e.has_x(6)) inputs.push_back(dequantized_bias(e, 6, 1, 4, alpha));
  const Name y =
      e("Gemm", inputs, {{"transA", e.node().int_or("transA", 0)}, {"transB", trans_b}, {"alpha", alpha}});
  e.set(0, e.has_x(7) ? quantized(e, y, 7, 0) : y);
}

Names with_zero_point(DecompositionContext& e, size_t value, size_t scale, size_t zero_point) {
  Names out = {e.x(value), e.x(scale)};
  if (e.has_x(zero_point)) out.push_back(e.x(zero_point));
  return out;
}

// A is quantized to 8 bits, with the scale and zero point of its range.
void dynamic_quantize_matmul(DecompositionContext& e) {
  const auto range = e.emit("DynamicQuantizeLinear", {e.x(0)}, 3);
  const Name q = e("QuantizeLinear", {e.x(0), range[1], range[2]});
  const auto given = [&](size_t i) { return e.has_x(i) ? e.x(i) : ""; };
  e.set(0, e("MatMulIntegerToFloat", {q, e.x(1), range[1], e.x(2), range[2], given(3), given(4)}, {},
             kMicrosoft));
}

// EmbedLayerNormalization of tables and affine parameters that are quantized, each with one scale: values in
// inputs 2 to 6, their scales from input 8 on, their zero points from input 13 on.
void embed_layer_normalization(DecompositionContext& e) {
  Names inputs = {e.x(0), e.has_x(1) ? e.x(1) : ""};
  for (size_t i = 2; i < 7; ++i) {
    const bool here = e.has_x(i);
    inputs.push_back(here ? e("DequantizeLinear", with_zero_point(e, i, i + 6, i + 11)) : "");
  }
  inputs.push_back(e.has_x(7) ? e.x(7) : "");
  const auto y = e.emit("EmbedLayerNormalization", inputs, 2, e.node().attributes, kMicrosoft);
  e.set(0, y[0]);
  e.set(1, y[1]);
}

ORTRAIN_DECOMPOSITION(
    "QEmbedLayerNormalization",
    "input_ids, segment_ids?, word_embedding_quant, position_embedding_quant, segment_embedding?, "
    "gamma_quant, beta_quant, mask?, word_embedding_scale, position_embedding_scale, "
    "segment_embedding_scale?, gamma_scale, beta_scale, word_embedding_zero_point, "
    "position_embedding_zero_point, segment_embedding_zero_point?, gamma_zero_point, beta_zero_point -> "
    "layernorm_out, mask_index_out",
    embed_layer_normalization);
ORTRAIN_DECOMPOSITION("QuantizeLinear", "x, y_scale, y_zero_point? -> y", quantize);
ORTRAIN_DECOMPOSITION("DequantizeLinear", "x, x_scale, x_zero_point? -> y", dequantize);
ORTRAIN_DECOMPOSITION("QLinearAdd",
                      "A, A_scale, A_zero_point?, B, B_scale, B_zero_point?, C_scale, C_zero_point? -> C",
                      add);
ORTRAIN_DECOMPOSITION("QLinearMul",
                      "A, A_scale, A_zero_point?, B, B_scale, B_zero_point?, C_scale, C_zero_point? -> C",
                      mul);
ORTRAIN_DECOMPOSITION("QLinearSigmoid", "X, X_scale, X_zero_point?, Y_scale, Y_zero_point? -> Y", sigmoid);
ORTRAIN_DECOMPOSITION("QLinearLeakyRelu", "X, X_scale, X_zero_point?, Y_scale, Y_zero_point? -> Y",
                      leaky_relu);
ORTRAIN_DECOMPOSITION("QLinearSoftmax", "X, X_scale, x_zero_point?, y_scale, y_zero_point -> Y", softmax);
ORTRAIN_DECOMPOSITION(
    "QLinearWhere",
    "condition, X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point -> Z", where);
ORTRAIN_DECOMPOSITION("QLinearConcat", "Y_scale, Y_zero_point, inputs... -> Y", concat_all);
ORTRAIN_DECOMPOSITION("QLinearReduceMean",
                      "data, data_scale, data_zero_point?, reduced_scale, reduced_zero_point? -> reduced",
                      reduce_mean);
ORTRAIN_DECOMPOSITION("QLinearAveragePool", "X, x_scale, x_zero_point?, y_scale, y_zero_point? -> Y",
                      average_pool);
ORTRAIN_DECOMPOSITION("QLinearGlobalAveragePool", "X, x_scale, x_zero_point, y_scale, y_zero_point -> Y",
                      global_average_pool);
ORTRAIN_DECOMPOSITION("QLinearConv",
                      "x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B? -> y",
                      conv);
ORTRAIN_DECOMPOSITION("QGemm",
                      "A, a_scale, a_zero_point, B, b_scale, b_zero_point, C?, y_scale?, y_zero_point? -> Y",
                      gemm);
ORTRAIN_DECOMPOSITION("DynamicQuantizeMatMul", "A, B, b_scale, b_zero_point?, bias? -> Y",
                      dynamic_quantize_matmul);

}  // namespace
}  // namespace ortrain
