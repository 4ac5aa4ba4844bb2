// Gelu with a bias (com.microsoft): BiasGelu, FastGelu with its optional bias, and their gradients
// BiasGeluGrad_dX and BiasFastGeluGrad_dX. y = gelu(x + b), where b is added along the last axis.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/elementwise.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// Input x has shape [..., n], input b has [n].
void expect_bias(const NodeContext& c, size_t x, size_t b) {
  c.expect(c.rank(x) > 0 && c.shape(b) == Shape{c.shape(x).back()} && c.dtype(b) == c.dtype(x),
           "the bias must have the type of X and the shape of its last axis, found ", to_string(c.dtype(b)),
           " ", to_string(c.shape(b)), " for X of ", to_string(c.dtype(x)), " ", to_string(c.shape(x)));
  if (!is_floating(c.dtype(x))) c.reject_dtype(x);
}

void shape(ShapeContext& c) {
  if (c.has_input(1)) expect_bias(c, 0, 1);
  shape_like_first(c);
}

void gradient_shape(ShapeContext& c) {
  expect_same(c, 0, 1);
  expect_bias(c, 1, 2);
  shape_like_first(c);
}

// Calls f(first element, count) for each row of the last axis.
template <class F>
void each_row(int64_t size, int64_t n, int64_t cost, F f) {
  if (n)
    parallel_for(size / n, n * cost, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) f(r * n, n);
    });
}

template <bool Fast>
Kernel kernel(KernelContext& c) {
  const UnaryFunction gelu = (Fast ? unary::FastGelu : unary::Gelu)(c.dtype(0));
  const BinaryFunction add = binary_function("Add", c.dtype(0));
  const bool biased = c.has_input(1);
  const Slot x = c.in(0), b = biased ? c.in(1) : Slot{}, y = c.out_inplace(0, {0});
  const int64_t size = c.size(0), n = biased ? c.shape(0).back() : size;
  const int64_t width = static_cast<int64_t>(size_of(c.dtype(0)));
  return [=](const Frame& f) {
    const std::byte* from = f.at<std::byte>(x);
    std::byte* to = f.at<std::byte>(y);
    if (biased)
      each_row(size, n, gelu.cost, [&](int64_t at, int64_t count) {
        add(from + at * width, 1, f.at<std::byte>(b), 1, to + at * width, count);
        gelu(to + at * width, to + at * width, count);
      });
    else
      parallel_for(size, gelu.cost, [&](int64_t begin, int64_t end) {
        gelu(from + begin * width, to + begin * width, end - begin);
      });
  };
}

template <bool Fast>
Kernel gradient_kernel(KernelContext& c) {
  const PairFunction derivative = (Fast ? pair::FastGeluGrad : pair::GeluGrad)(c.dtype(0));
  const BinaryFunction add = binary_function("Add", c.dtype(0));
  // The kernel writes x + b to the memory of dX before it reads dY, so dX may overlap X but not dY.
  const Slot dy = c.in(0), x = c.in(1), b = c.in(2), dx = c.out_inplace(0, {1});
  const int64_t size = c.size(1), n = c.shape(1).back();
  const int64_t width = static_cast<int64_t>(size_of(c.dtype(0)));
  return [=](const Frame& f) {
    std::byte* to = f.at<std::byte>(dx);
    each_row(size, n, derivative.cost, [&](int64_t at, int64_t count) {
      add(f.at<std::byte>(x) + at * width, 1, f.at<std::byte>(b), 1, to + at * width, count);
      derivative(f.at<std::byte>(dy) + at * width, to + at * width, to + at * width, count);
    });
  };
}

template <bool Fast>
void gradient(GradientContext& g) {
  if (!g.has_x(1)) {
    g.set(0, g("FastGeluGrad", {g.dy(0), g.x(0)}, {}, kMicrosoft));
    return;
  }
  const Name dx =
      g(Fast ? "BiasFastGeluGrad_dX" : "BiasGeluGrad_dX", {g.dy(0), g.x(0), g.x(1)}, {}, kMicrosoft);
  if (g.needs(0)) g.set(0, dx);
  if (g.needs(1)) g.set(1, g.unbroadcast(dx, g.y(0), 1));
}

// dx = dy gelu'(x + b)
template <bool Fast>
void decompose_gradient(DecompositionContext& e) {
  const Name sum = e("Add", {e.x(1), e.x(2)});
  e.set(0, e(Fast ? "FastGeluGrad" : "GeluGrad", {e.x(0), sum}, {}, kMicrosoft));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BiasGelu",
                  .signature = "A, B -> C",
                  .rules = {.shape = shape, .gradient = gradient<false>},
                  .kernels = {.cpu = kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FastGelu",
                  .signature = "X, bias? -> Y",
                  .rules = {.shape = shape, .gradient = gradient<true>},
                  .traits = {.positions = elementwise_positions},
                  .kernels = {.cpu = kernel<true>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BiasGeluGrad_dX",
                  .signature = "dY, X, B -> dX",
                  .rules = {.shape = gradient_shape, .decompose = decompose_gradient<false>},
                  .kernels = {.cpu = gradient_kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BiasFastGeluGrad_dX",
                  .signature = "dY, X, B -> dX",
                  .rules = {.shape = gradient_shape, .decompose = decompose_gradient<true>},
                  .kernels = {.cpu = gradient_kernel<true>}});

// With operators of ONNX. FastGelu is x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which is the usual form
// with tanh.
void bias_gelu_form(DecompositionContext& e) {
  e.set(0, e("Gelu", {e("Add", {e.x(0), e.x(1)})}, {}, kMicrosoft));
}
void fast_gelu_form(DecompositionContext& e) {
  const Expression x(e, e.has_x(1) ? e("Add", {e.x(0), e.x(1)}) : e.x(0));
  if (e.opset() >= kGeluSince) return e.set(0, x.call("Gelu", {{"approximate", std::string("tanh")}}));
  const Expression argument = 2 * std::sqrt(2 / std::numbers::pi) * x * (1.0 + 0.044715 * (x * x));
  e.set(0, x * argument.call("Sigmoid"));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "BiasGelu", {cold<bias_gelu_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "FastGelu", {cold<fast_gelu_form>});

}  // namespace
}  // namespace ortrain
