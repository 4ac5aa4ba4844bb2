// Transposed convolution: ConvTranspose and its gradient ConvTransposeGrad (com.microsoft). Their kernels are
// listed in backend/cpu/implementations.cpp.
#include "geometry/conv_transpose.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
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

// -----------------------------------------------------------------------------------------------------------
// With operators of ONNX: dX is a convolution of dY, and the roles of dY and X in dW are exchanged.

// The windows. The node states the pads, or they follow from the size of the result.
std::vector<WindowForm> windows_of_result(DecompositionContext& e, const std::vector<int64_t>& extra) {
  const std::string &dy = e.x(0), &x = e.x(1);
  const std::string automatic = e.node().string_or("auto_pad", "NOTSET");
  std::vector<WindowForm> windows = windows_of(e, e.dims(dy), e.dims(x), kernel_of(e, e.x(2)));
  if (!e.node().has("output_shape") && !automatic.starts_with("SAME")) return windows;
  for (size_t i = 0; i < windows.size(); ++i) {
    WindowForm& w = windows[i];
    if (!w.input || !w.output)
      e.reject(
          "with output_shape or auto_pad, its gradient needs the spatial sizes of X and dY, which the model "
          "does not declare");
    const int64_t total = (*w.output - 1) * w.stride + w.span() + extra.at(i) - *w.input;
    if (total < 0)
      e.reject("its gradient has no standard form, because its result is larger than the windows");
    w.before = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
    w.after = total - w.before;
  }
  return windows;
}

void grad_form(DecompositionContext& e) {
  const std::string &dy = e.x(0), &x = e.x(1), &w = e.x(2);
  const int64_t groups = e.node().int_or("group", 1);
  const size_t count = kernel_of(e, w).size();
  const std::vector<int64_t> extra = e.node().ints_or("output_padding", std::vector<int64_t>(count, 0));
  const std::vector<WindowForm> windows = windows_of_result(e, extra);
  std::vector<int64_t> pads, after, strides, dilations, axes = {0}, spatial, zeros;
  bool exact = true;  // output_padding is less than a stride, so no window begins in it
  for (size_t i = 0; i < count; ++i) {
    pads.push_back(windows[i].before);
    after.push_back(windows[i].after);
    strides.push_back(windows[i].stride);
    dilations.push_back(windows[i].dilation);
    axes.push_back(static_cast<int64_t>(i) + 2);
    exact &= extra.at(i) < windows[i].stride;
  }
  pads.insert(pads.end(), after.begin(), after.end());
  if (e.has_y(0)) {
    const Name dx = e("Conv", {dy, w},
                      {{"group", groups}, {"pads", pads}, {"strides", strides}, {"dilations", dilations}});
    spatial.assign(axes.begin() + 1, axes.end());
    zeros.assign(count, 0);
    e.set(0, exact ? dx : e("Slice", {dx, e.int64s(zeros), dims_of(e, x, 2, kToTheLast), e.int64s(spatial)}));
  }
  if (e.has_y(1)) e.set(1, weight_gradient(e, windows, x, dy, groups));
  if (e.has_y(2)) e.set(2, e.reduce_sum(dy, axes, false));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "ConvTransposeGrad", {cold<grad_form>});

}  // namespace

}  // namespace ortrain
