// Transposed convolution: ConvTranspose and its gradient ConvTransposeGrad (com.microsoft). Their kernels are
// listed in backend/cpu/implementations.cpp.
#include "geometry/conv_transpose.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "ops/nn/convolution_gradient.h"
#include "ops/nn/window_form.h"

namespace ortrain {

namespace {

void shape(ShapeContext& c) {
  check_window_attributes(c);
  const Transposed t(c, 0, 1);
  if (c.has_input(2)) {
    c.expect(c.shape(2) == Shape{t.y[1]}, "the bias B must have shape [", t.y[1], "], found ",
             to_string(c.shape(2)));
    c.expect(c.dtype(2) == c.dtype(0), "X and B must have the same type, found ", to_string(c.dtype(0)),
             " and ", to_string(c.dtype(2)));
  }
  c.output(0, c.dtype(0), t.y);
}

void grad_shape(ShapeContext& c) {
  const Transposed t(c, 1, 2);
  c.expect(c.shape(0) == t.y, "the gradient dY must have shape ", to_string(t.y), ", found ",
           to_string(c.shape(0)));
  c.expect(c.dtype(0) == c.dtype(1), "dY and X must have the same type, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(1)));
  c.output(0, c.dtype(1), t.x);
  c.output(1, c.dtype(1), t.w);
  c.output(2, c.dtype(1), {t.y[1]});
}

void gradient(GradientContext& g) {
  const size_t outputs = g.has_x(2) && g.needs(2) ? 3 : g.needs(1) ? 2 : 1;
  const auto d =
      g.emit("ConvTransposeGrad", {g.dy(0), g.x(0), g.x(1)}, outputs, g.node().attributes, kMicrosoft);
  for (size_t i = 0; i < outputs; ++i)
    if (g.needs(i)) g.set(i, d[i]);
}

ORTRAIN_OPERATOR({.type = "ConvTranspose",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.takes_bf16 = true}});
void grad_gradient(GradientContext& g) { product_grad_gradient(g, "ConvTranspose", "ConvTransposeGrad"); }

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ConvTransposeGrad",
                  .signature = "dY, X, W -> dX?, dW?, dB?",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient},
                  .traits = {.takes_bf16 = true, .optional_outputs = true}});

// With operators of ONNX: dX is a convolution of dY, and the roles of dY and X in dW are exchanged.
void grad_form(DecompositionContext& e) {
  const std::string &dy = e.x(0), &x = e.x(1), &w = e.x(2);
  const int64_t groups = e.node().int_or("group", 1);
  if (e.node().has("output_shape"))
    e.reject("with the attribute output_shape, its gradient has no standard form; state the pads instead");
  const std::vector<WindowForm> windows = windows_of(e, dy, x, kernel_of(e, w));
  Attributes attributes = {{"group", groups}};
  for (const char* name : {"strides", "dilations", "pads", "auto_pad", "kernel_shape"})
    if (e.node().has(name)) attributes[name] = e.node().attributes.at(name);
  if (e.node().string_or("auto_pad", "NOTSET").starts_with("SAME"))
    e.reject("with auto_pad SAME, its gradient has no standard form; state the pads instead");
  if (e.has_y(0)) e.set(0, e("Conv", {dy, w}, attributes));
  if (e.has_y(1)) e.set(1, weight_gradient(e, windows, x, dy, groups));
  if (e.has_y(2)) {
    std::vector<int64_t> axes = {0};
    for (size_t i = 0; i < windows.size(); ++i) axes.push_back(static_cast<int64_t>(i) + 2);
    e.set(2, e.reduce_sum(dy, axes, false));
  }
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "ConvTransposeGrad", {grad_form});

}  // namespace

}  // namespace ortrain
