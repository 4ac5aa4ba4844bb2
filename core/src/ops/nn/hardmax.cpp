// Hardmax: 1 at the first largest element along the axis, 0 elsewhere. Before version 13 all axes from `axis`
// on count as one axis. Hardmax has no useful derivative.
#include <algorithm>

#include "op/operator.h"
#include "op/opset.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

size_t axis_of(const NodeContext& c) {
  return static_cast<size_t>(normalize_axis(
      c.node().int_or("axis", c.opset() < since::kOneSoftmaxAxis ? 1 : -1), c.rank(0), c.node().label()));
}

void shape(ShapeContext& c) {
  c.expect(c.rank(0) >= 1, "its input is a scalar and has no axis");
  axis_of(c);
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const Shape& x = c.shape(0);
  const size_t axis = axis_of(c), behind = c.opset() < since::kOneSoftmaxAxis ? x.size() : axis + 1;
  const int64_t outer = element_count(x, 0, axis), length = element_count(x, axis, behind),
                inner = element_count(x, behind, x.size());
  const Slot in = c.in(0), out = c.out(0);
  Kernel kernel;
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      const T* from = f.at<const T>(in);
      T* to = f.at<T>(out);
      if (length == 0) return;
      parallel_for(outer * inner, length * 2, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const int64_t first = line / inner * length * inner + line % inner;
          int64_t largest = 0;
          for (int64_t i = 0; i < length; ++i) {
            to[first + i * inner] = T(0);
            if (from[first + i * inner] > from[first + largest * inner]) largest = i;
          }
          to[first + largest * inner] = T(1);
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

ORTRAIN_OPERATOR({.type = "Hardmax",
                  .rules = {.shape = shape},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
