// Scale (com.microsoft): y = x s, or x / s with scale_down; s is a scalar of any numeric type.

#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "op/wide_integers.h"
#include "ops/common/decomposed.h"
#include "ops/common/elementwise.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) {
  c.expect(c.size(1) == 1, "scale must be a single value, found shape ", to_string(c.shape(1)));
  shape_like_first(c);
}

Kernel kernel(KernelContext& c) {
  Kernel kernel;
  const bool down = c.node().int_or("scale_down", 0) != 0;
  const bool floating = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const LayoutPtr layout = flat_layout(c, 0);
    const Slot x = c.in(0, layout), scale = c.in(1), y = c.out_inplace(0, {0}, layout);
    const BinaryFunction multiply = binary_function("Mul", c.dtype(0));
    const int64_t n = c.out_size(0);
    const bool known = visit_wide_numeric(c.dtype(1), [&](auto zero_scale) {
      using S = decltype(zero_scale);
      kernel = [=](const Frame& f) {
        const T given = static_cast<T>(*f.at<S>(scale)), factor = down ? 1 / given : given;
        parallel_for(n, 1, [&](int64_t begin, int64_t end) {
          multiply(f.at<T>(x) + begin, 1, &factor, 0, f.at<T>(y) + begin, end - begin);
        });
      };
    });
    if (!known) c.reject_dtype(1);
  });
  if (!floating) c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  g.set(0, g("Scale", {g.dy(0), g.x(1)}, {{"scale_down", g.node().int_or("scale_down", 0)}}, kMicrosoft));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "Scale",
                  .signature = "input, scale -> output",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = wide_integers<kernel>}});

// With operators of ONNX.
void form(DecompositionContext& e) {
  const Expression x(e, e.x(0)), factor(e, as_scalar(e, cast_like(e, e.x(1), e.x(0))));
  e.set(0, e.node().int_or("scale_down", 0) != 0 ? x / factor : x * factor);
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "Scale", {cold<form>});

}  // namespace
}  // namespace ortrain
