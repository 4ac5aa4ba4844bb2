// TopK: the k largest (or smallest) elements along an axis and their positions. Among equal elements the one
// with the lower index comes first; NaN counts as the largest.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

int64_t k_of(const NodeContext& c) {
  if (c.node().has("k")) return c.node().int_or("k", -1);  // before version 10
  return constant_int(c, 1);
}

void shape(ShapeContext& c) {
  const size_t axis = axis_of(c, -1, c.rank(0));
  const int64_t k = k_of(c), dim = c.shape(0)[axis];
  c.expect(k >= 0 && k <= dim, "k must be between 0 and the size ", dim, " of axis ", axis, ", found ", k);
  Shape out = c.shape(0);
  out[axis] = k;
  if (c.has_output(0)) c.output(0, c.dtype(0), out);
  if (c.has_output(1)) c.output(1, DType::kInt64, out);
}

// Whether a comes before b: the larger, NaN the largest of all.
template <typename T>
bool larger(T a, T b) {
  if constexpr (std::is_floating_point_v<T>)
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && !std::isnan(b);
  return a > b;
}

Kernel kernel(KernelContext& c) {
  const size_t axis = axis_of(c, -1, c.rank(0));
  const Shape& in_shape = c.shape(0);
  const int64_t dim = in_shape[axis], inner = element_count(in_shape, axis + 1, in_shape.size());
  const int64_t lines = element_count(in_shape, 0, axis) * inner, k = k_of(c);
  const bool largest = c.node().int_or("largest", 1) != 0;
  // A line is ranked in the memory of its share of the work; the number of shares does not depend on the
  // threads.
  const int64_t shares = std::min<int64_t>(lines, max_threads());
  Kernel kernel;
  const bool known = visit_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot in = c.in(0), values = c.has_output(0) ? c.out(0) : Slot{};
    const Slot indices = c.has_output(1) ? c.out(1) : Slot{};
    const Slot ranking = c.scratch(static_cast<size_t>(shares * dim) * sizeof(int64_t));
    kernel = [=](const Frame& f) {
      const T* x = f.at<T>(in);
      T* best = f.at_or_null<T>(values);
      int64_t* where = f.at_or_null<int64_t>(indices);
      int64_t* memory = f.at<int64_t>(ranking);
      if (k == 0 || lines == 0) return;
      const auto rank_line = [=](int64_t line, int64_t* order) {
        const T* from = x + (line / inner * dim) * inner + line % inner;
        const auto before = [=](int64_t a, int64_t b) {
          const T u = from[a * inner], v = from[b * inner];
          if (larger(u, v)) return largest;
          if (larger(v, u)) return !largest;
          return a < b;
        };
        std::iota(order, order + dim, int64_t{0});
        if (k < dim) std::nth_element(order, order + k - 1, order + dim, before);
        std::sort(order, order + k, before);
        const int64_t to = (line / inner * k) * inner + line % inner;
        for (int64_t i = 0; i < k; ++i) {
          if (best) best[to + i * inner] = from[order[i] * inner];
          if (where) where[to + i * inner] = order[i];
        }
      };
      parallel_for(shares, (lines * dim / shares + 1) * 8, [=](int64_t begin, int64_t end) {
        for (int64_t share = begin; share < end; ++share)
          for (int64_t line = lines * share / shares; line < lines * (share + 1) / shares; ++line)
            rank_line(line, memory + share * dim);
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// The gradients go back to the positions that the elements came from.
void gradient(GradientContext& g) {
  g.set(0, g("GatherElementsGrad", {g.dy(0), shape_of(g, g.x(0)), g.want_y(1)},
             {{"axis", g.node().int_or("axis", -1)}}, kMicrosoft));
}

ORTRAIN_OPERATOR(
    {.type = "TopK",
     .rules = {.shape = shape, .gradient = gradient, .element_type = first_like_input<DType::kInt64>},
     .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
