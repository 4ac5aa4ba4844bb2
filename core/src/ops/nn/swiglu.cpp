// SwiGLU: Y = Swish(A) B with Swish(a) = a sigmoid(alpha a), the gate of a feed-forward layer.
//
// N. Shazeer, "GLU variants improve transformer", 2020.
#include "backend/cpu/tuning.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/elementwise.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) {
  expect_same(c, 0, 1);
  shape_like_first(c);
}

Kernel kernel(KernelContext& c) {
  if (!visit_floating(c.dtype(0), [](auto) {})) c.reject_dtype(0);
  UnaryFunction swish = unary::Swish(c.dtype(0));
  swish.a = static_cast<double>(c.node().float_or("alpha", 1));
  const BinaryFunction multiply = binary_function("Mul", c.dtype(0));
  const Slot gate = c.in(0), value = c.in(1), y = c.out_inplace(0, {0});
  const int64_t n = c.out_size(0), width = static_cast<int64_t>(size_of(c.dtype(0)));
  using tuning::kPiece;
  return [=](const Frame& f) {
    const std::byte *a = f.at<std::byte>(gate), *b = f.at<std::byte>(value);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(n, swish.cost + 1, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; at += kPiece) {
        const int64_t count = std::min(kPiece, end - at);
        swish(a + at * width, to + at * width, count);
        multiply(to + at * width, 1, b + at * width, 1, to + at * width, count);
      }
    });
  };
}

// QuickGelu is Swish under the name that training models use.
void gradient(GradientContext& g) {
  const float alpha = g.node().float_or("alpha", 1);
  const Expression dy(g, g.dy(0)), gate(g, g.x(0)), value(g, g.x(1));
  if (g.needs(0)) g.set(0, (dy * value).call("QuickGeluGrad", gate, {{"alpha", alpha}}, kMicrosoft));
  if (g.needs(1)) g.set(1, dy * gate.call("QuickGelu", {{"alpha", alpha}}, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "SwiGLU",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
