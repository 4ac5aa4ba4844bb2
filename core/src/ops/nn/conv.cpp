// Convolution: Conv, com.microsoft FusedConv and ConvGrad. Their kernels are listed in
// backend/cpu/implementations.cpp.
#include <algorithm>
#include <optional>
#include <span>

#include "geometry/convolution.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "op/sum_of_products.h"
#include "ops/nn/convolution_gradient.h"
#include "ops/nn/window_form.h"

namespace ortrain {

namespace {

void conv_shape(ShapeContext& c) {
  check_window_attributes(c);
  const Shape &x = c.shape(0), &w = c.shape(1);
  const Window window = read_convolution(c, x, w);
  c.expect(c.dtype(0) == c.dtype(1), "X and W must have the same type, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(1)));
  if (c.has_input(2)) {
    c.expect(c.shape(2) == Shape{w[0]}, "the bias B must have shape [", w[0], "], found ",
             to_string(c.shape(2)));
    c.expect(c.dtype(2) == c.dtype(0), "X and B must have the same type, found ", to_string(c.dtype(0)),
             " and ", to_string(c.dtype(2)));
  }
  c.output(0, c.dtype(0), output_shape(x[0], w[0], window));
}

// Y = activation(Conv(X, W, B) + Z).
void fused_conv_shape(ShapeContext& c) {
  conv_shape(c);
  if (!c.has_input(3)) return;
  const Shape &x = c.shape(0), &w = c.shape(1);
  const Shape y = output_shape(x[0], w[0], read_convolution(c, x, w));
  c.expect(c.shape(3) == y && c.dtype(3) == c.dtype(0), "the addend Z must be ", to_string(c.dtype(0)),
           to_string(y), ", found ", to_string(c.dtype(3)), to_string(c.shape(3)));
}

void conv_grad_shape(ShapeContext& c) {
  check_window_attributes(c);
  const Shape &x = c.shape(1), &w = c.shape(2);
  const Window window = read_convolution(c, x, w);
  const Shape y = output_shape(x[0], w[0], window);
  c.expect(c.shape(0) == y, "the gradient dY must have shape ", to_string(y), ", found ",
           to_string(c.shape(0)));
  c.expect(c.dtype(0) == c.dtype(1) && c.dtype(1) == c.dtype(2),
           "dY, X and W must have the same type, found ", to_string(c.dtype(0)), ", ", to_string(c.dtype(1)),
           " and ", to_string(c.dtype(2)));
  c.output(0, c.dtype(1), x);
  c.output(1, c.dtype(1), w);
  c.output(2, c.dtype(1), {w[0]});
}

// Sets the gradients of X, W and B, given the gradient of Conv(X, W, B).
void set_conv_gradients(GradientContext& g, const std::string& dy) {
  Attributes attributes = g.node().attributes;
  attributes.erase("activation");
  attributes.erase("activation_params");
  const size_t outputs = g.needs(2) ? 3 : g.needs(1) ? 2 : 1;
  const auto d = g.emit("ConvGrad", {dy, g.x(0), g.x(1)}, outputs, attributes, kMicrosoft);
  for (size_t i = 0; i < outputs; ++i)
    if (g.needs(i)) g.set(i, d[i]);
}

void conv_gradient(GradientContext& g) { set_conv_gradients(g, g.dy(0)); }

// The derivative of every supported activation can be computed from its output.
Name activation_gradient(GradientContext& g) {
  const Activation activation = read_activation(g.node());
  const Expression dy(g, g.dy(0)), y(g, g.y(0));
  const double a = static_cast<double>(activation.a), b = static_cast<double>(activation.b);
  using Kind = Activation::Kind;
  switch (activation.kind) {
    case Kind::kRelu:
      return dy.call("ReluGrad", y, {}, kMicrosoft);
    case Kind::kLeakyRelu:
      if (a < 0) g.reject("the gradient of LeakyRelu with a negative slope is not supported");
      return dy.call("LeakyReluGrad", y, {{"alpha", activation.a}}, kMicrosoft);
    case Kind::kClip:
      return (y > a && y < b).as(dy) * dy;
    case Kind::kSigmoid:
      return dy.call("SigmoidGrad", y, {}, kMicrosoft);
    case Kind::kTanh:
      return dy.call("TanhGrad", y, {}, kMicrosoft);
    case Kind::kHardSigmoid:
      return (y > 0.0 && y < 1.0).as(dy) * dy * a;
    case Kind::kNone:
      break;
  }
  return dy;
}

void fused_conv_gradient(GradientContext& g) {
  const Name d = activation_gradient(g);
  if (g.needs(0) || g.needs(1) || g.needs(2)) set_conv_gradients(g, d);
  if (g.needs(3)) g.set(3, d);
}

void conv_grad_gradient(GradientContext& g) { product_grad_gradient(g, "Conv", "ConvGrad"); }

// For each element of Y, one multiplication and one addition per weight of a filter.
Operations convolution_operations(const Node&, std::span<const Shape* const> inputs, const Shape& y) {
  if (inputs.size() < 2 || !inputs[1] || inputs[1]->empty() || (*inputs[1])[0] == 0) return {};
  const Shape& w = *inputs[1];
  return {2 * static_cast<double>(element_count(y)) * static_cast<double>(element_count(w)) /
          static_cast<double>(w[0])};
}

// An element of dW is a sum over the positions of Y, each of which has its own element of X or padding.
//
// Winograd's algorithm adds up more: per dimension, its transforms take up to four copies of each element of
// X and of each of dY to an element of dW, so its intermediate results are at most 16 times as large as the
// sum of the magnitudes of the products. The kernel uses the algorithm only for at least 16 channels and 16
// filters. A sum has products of only one channel and one filter, so X and dY each have at least 16 times as
// many elements as the sum has products.
std::vector<ProductTerm> conv_grad_terms(const Node&, size_t output) {
  if (output != 1) return {};
  return {{{0, 1}}};
}
ORTRAIN_OPERATOR_FACT(ProductTermsRule, kMicrosoft, "ConvGrad", conv_grad_terms);

ORTRAIN_OPERATOR({.type = "Conv",
                  .rules = {.shape = conv_shape, .gradient = conv_gradient},
                  .traits = {.takes_bf16 = true, .weights = 1, .operations = convolution_operations}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FusedConv",
                  .signature = "X, W, B?, Z? -> Y",
                  .rules = {.shape = fused_conv_shape, .gradient = fused_conv_gradient},
                  .traits = {.takes_bf16 = true, .weights = 1, .operations = convolution_operations}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ConvGrad",
                  .signature = "dY, X, W -> dX?, dW?, dB?",
                  .rules = {.shape = conv_grad_shape, .gradient = conv_grad_gradient},
                  .traits = {.takes_bf16 = true, .optional_outputs = true, .weights = 2}});

// -----------------------------------------------------------------------------------------------------------
// With operators of ONNX.

// The sum over all axes but the second.
Name bias_gradient(DecompositionContext& e, Name dy, size_t spatial) {
  std::vector<int64_t> axes = {0};
  for (size_t i = 0; i < spatial; ++i) axes.push_back(static_cast<int64_t>(i) + 2);
  return e.reduce_sum(dy, axes, false);
}

void conv_grad_form(DecompositionContext& e) {
  const std::string &dy = e.x(0), &x = e.x(1), &w = e.x(2);
  const int64_t groups = e.node().int_or("group", 1);
  const std::vector<WindowForm> windows = windows_of(e, e.dims(x), e.dims(dy), kernel_of(e, w));
  if (e.has_y(0)) {
    const Name spread = groups == 1 ? spread_by_convolution(e, windows, dy, w) : "";
    e.set(0, spread.empty() ? spread_windows(e, windows, dy, w, groups, x) : spread);
  }
  if (e.has_y(1)) e.set(1, weight_gradient(e, windows, dy, x, groups));
  if (e.has_y(2)) e.set(2, bias_gradient(e, dy, windows.size()));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "ConvGrad", {cold<conv_grad_form>});

void fused_conv_form(DecompositionContext& e) {
  Attributes attributes = e.node().attributes;
  attributes.erase("activation");
  attributes.erase("activation_params");
  Names inputs = {e.x(0), e.x(1)};
  if (e.has_x(2)) inputs.push_back(e.x(2));
  Expression y(e, e("Conv", inputs, attributes));
  if (e.has_x(3)) y = y + Expression(e, e.x(3));
  const Activation activation = read_activation(e.node());
  using Kind = Activation::Kind;
  switch (activation.kind) {
    case Kind::kRelu:
      return e.set(0, y.call("Relu"));
    case Kind::kLeakyRelu:
      return e.set(0, y.call("LeakyRelu", {{"alpha", activation.a}}));
    case Kind::kClip:
      return e.set(0, e("Clip", {y, e.scalar_like(y, static_cast<double>(activation.a)),
                                 e.scalar_like(y, static_cast<double>(activation.b))}));
    case Kind::kSigmoid:
      return e.set(0, y.call("Sigmoid"));
    case Kind::kTanh:
      return e.set(0, y.call("Tanh"));
    case Kind::kHardSigmoid:
      return e.set(0, y.call("HardSigmoid", {{"alpha", activation.a}, {"beta", activation.b}}));
    case Kind::kNone:
      return e.set(0, y);
  }
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "FusedConv", {cold<fused_conv_form>});

}  // namespace
}  // namespace ortrain
