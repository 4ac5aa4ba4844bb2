// CumSum: running sums along an axis; exclusive leaves the element itself out, reverse runs from the end.
#include "backend/cpu/elementwise/integers.h"
#include "op/wide_integers.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) {
  c.expect(c.has_input(1) && c.size(1) == 1 && (c.dtype(1) == DType::kInt32 || c.dtype(1) == DType::kInt64),
           "the axis (input 1) must be a single int32 or int64, found ",
           c.has_input(1) ? concat(to_string(c.dtype(1)), to_string(c.shape(1))) : "none");
  c.expect(c.rank(0) >= 1, "its input is a scalar and has no axis");
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const Shape dims = c.shape(0);
  const bool exclusive = c.node().int_or("exclusive", 0) != 0, reverse = c.node().int_or("reverse", 0) != 0;
  const bool wide = c.dtype(1) == DType::kInt64;
  const std::string label = c.node().label();
  Kernel kernel;
  const bool known = visit_wide_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot in = c.in(0), axis_slot = c.in(1), out = c.out(0);
    kernel = [=](const Frame& f) {
      const int64_t given = wide ? *f.at<int64_t>(axis_slot) : *f.at<int32_t>(axis_slot);
      const size_t axis =
          static_cast<size_t>(normalize_axis(given, static_cast<int64_t>(dims.size()), label));
      const int64_t length = dims[axis], inner = element_count(dims, axis + 1, dims.size());
      const int64_t outer = element_count(dims, 0, axis);
      if (length == 0 || inner == 0) return;
      const T* x = f.at<T>(in);
      T* y = f.at<T>(out);
      const int64_t step = reverse ? -inner : inner, first = reverse ? (length - 1) * inner : 0;
      parallel_for(outer * inner, length, [=](int64_t begin, int64_t end) {
        // Columns of one slab are summed side by side, row after row.
        for (int64_t from = begin; from < end;) {
          const int64_t slab = from / inner, to = std::min(end, (slab + 1) * inner), n = to - from;
          int64_t at = slab * length * inner + first + from % inner;
          for (int64_t j = 0; j < n; ++j) y[at + j] = exclusive ? T{} : x[at + j];
          for (int64_t i = 1; i < length; ++i, at += step) {
            const T* term = exclusive ? x + at : x + at + step;
            for (int64_t j = 0; j < n; ++j) y[at + step + j] = wrapping_sum(y[at + j], term[j]);
          }
          from = to;
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// The gradient is a CumSum in the other direction.
void gradient(GradientContext& g) {
  g.set(0, g("CumSum", {g.dy(0), g.x(1)},
             {{"exclusive", g.node().int_or("exclusive", 0)},
              {"reverse", int64_t{g.node().int_or("reverse", 0) == 0}}}));
}

ORTRAIN_OPERATOR({.type = "CumSum",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = wide_integers<kernel>}});

}  // namespace
}  // namespace ortrain
