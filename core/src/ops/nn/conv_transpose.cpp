// Transposed convolution: ConvTranspose and its gradient ConvTransposeGrad (com.microsoft). Their kernels are
// listed in backend/cpu/implementations.cpp.
#include "geometry/conv_transpose.h"
#include "op/operator.h"
#include "ops/nn/convolution_gradient.h"

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

}  // namespace

}  // namespace ortrain
