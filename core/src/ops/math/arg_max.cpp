// ArgMax and ArgMin: the position of the largest or smallest element along an axis. Gradients stop here.

#include "op/operator.h"
#include "op/wide_integers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

size_t axis_of(const NodeContext& c) {
  return static_cast<size_t>(normalize_axis(c.node().int_or("axis", 0), c.rank(0), c.node().label()));
}

void shape(ShapeContext& c) {
  Shape shape = c.shape(0);
  const size_t axis = axis_of(c);
  c.expect(shape[axis] > 0, "the axis ", axis, " of shape ", to_string(shape),
           " is empty, so nothing can be chosen");
  if (c.node().int_or("keepdims", 1) != 0)
    shape[axis] = 1;
  else
    shape.erase(shape.begin() + static_cast<ptrdiff_t>(axis));
  c.output(0, DType::kInt64, shape);
}

// The first of several equal elements is taken, or the last with select_last_index. A NaN counts as larger,
// or as smaller, than every number.
template <bool Largest>
Kernel kernel(KernelContext& c) {
  Kernel kernel;
  const bool last = c.node().int_or("select_last_index", 0) != 0;
  const size_t axis = axis_of(c);
  const int64_t outer = element_count(c.shape(0), 0, axis), length = c.shape(0)[axis];
  const int64_t inner = element_count(c.shape(0), axis + 1, c.shape(0).size());
  const bool known = visit_wide_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out(0);
    kernel = [=](const Frame& f) {
      const T* from = f.at<T>(x);
      int64_t* to = f.at<int64_t>(y);
      parallel_for(outer * inner, length, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) {
          const T* p = from + o / inner * length * inner + o % inner;
          int64_t best = 0;
          for (int64_t i = 1; i < length; ++i) {
            const T a = p[i * inner], b = p[best * inner];
            const bool beats = b == b && (a != a || (Largest ? a > b : a < b));
            if (beats || (last && (a == b || (a != a && b != b)))) best = i;
          }
          to[o] = best;
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

ORTRAIN_OPERATOR({.type = "ArgMax",
                  .rules = {.shape = shape, .element_type = always<DType::kInt64>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = wide_integers<kernel<true>>}});
ORTRAIN_OPERATOR({.type = "ArgMin",
                  .rules = {.shape = shape, .element_type = always<DType::kInt64>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = wide_integers<kernel<false>>}});

}  // namespace
}  // namespace ortrain
