// TopK: the k largest (or smallest) elements along an axis and their positions. Of equal elements, the
// element with the lower index comes first; NaN counts as the largest.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

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

// An unsigned integer for x: unsigned integers are in the order of the values that they represent. Zeros of
// either sign are equal; NaN is the largest.
uint64_t order_of(int64_t x) { return static_cast<uint64_t>(x) ^ (uint64_t{1} << 63); }
uint64_t order_of(uint64_t x) { return x; }
uint64_t order_of(double x) {
  if (std::isnan(x)) return std::numeric_limits<uint64_t>::max();
  const auto bits = std::bit_cast<int64_t>(x == 0 ? 0.0 : x);
  return bits < 0 ? ~static_cast<uint64_t>(bits) : order_of(bits);
}

// The orders of n elements that are `step` apart; `flip` reverses them.
using OrdersOf = void (*)(const void* elements, int64_t step, int64_t n, uint64_t flip, uint64_t* orders);
template <typename T>
void orders_of(const void* elements, int64_t step, int64_t n, uint64_t flip, uint64_t* orders) {
  using Wide = std::conditional_t<std::is_floating_point_v<T>, double,
                                  std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
  const T* from = static_cast<const T*>(elements);
  for (int64_t i = 0; i < n; ++i) orders[i] = order_of(static_cast<Wide>(from[i * step])) ^ flip;
}

// The positions of the k first elements by order; of equal elements, the lower position comes first.
void rank(const uint64_t* orders, int64_t n, int64_t k, int64_t* positions) {
  const auto before = [orders](int64_t a, int64_t b) {
    return orders[a] != orders[b] ? orders[a] < orders[b] : a < b;
  };
  std::iota(positions, positions + n, int64_t{0});
  if (k < n) std::nth_element(positions, positions + k - 1, positions + n, before);
  std::sort(positions, positions + k, before);
}

Kernel kernel(KernelContext& c) {
  const size_t axis = axis_of(c, -1, c.rank(0));
  const Shape& in_shape = c.shape(0);
  const int64_t dim = in_shape[axis], inner = element_count(in_shape, axis + 1, in_shape.size());
  const int64_t lines = element_count(in_shape, 0, axis) * inner, k = k_of(c);
  const uint64_t flip = c.node().int_or("largest", 1) != 0 ? ~uint64_t{0} : 0;
  // The lines are divided into shares, at most as many as there are threads, and each share has memory to
  // rank one line.
  const int64_t shares = std::min<int64_t>(lines, max_threads());
  const auto width = static_cast<int64_t>(size_of(c.dtype(0)));
  OrdersOf orders_of_line = nullptr;
  if (!visit_numeric(c.dtype(0), [&](auto zero) { orders_of_line = orders_of<decltype(zero)>; }))
    c.reject_dtype(0);
  const Slot in = c.in(0), values = c.has_output(0) ? c.out(0) : Slot{};
  const Slot indices = c.has_output(1) ? c.out(1) : Slot{};
  const size_t bytes = static_cast<size_t>(shares * dim) * sizeof(int64_t);
  const Slot orders = c.scratch(bytes), ranking = c.scratch(bytes);
  return [=](const Frame& f) {
    if (k == 0 || lines == 0) return;
    const auto rank_line = [&](int64_t line, int64_t share) {
      const std::byte* from = f.at<std::byte>(in) + ((line / inner * dim) * inner + line % inner) * width;
      uint64_t* numbers = f.at<uint64_t>(orders) + share * dim;
      int64_t* positions = f.at<int64_t>(ranking) + share * dim;
      orders_of_line(from, inner, dim, flip, numbers);
      rank(numbers, dim, k, positions);
      std::byte* best = f.at_or_null<std::byte>(values);
      int64_t* where = f.at_or_null<int64_t>(indices);
      for (int64_t i = 0, to = (line / inner * k) * inner + line % inner; i < k; ++i, to += inner) {
        if (best)
          std::memcpy(best + to * width, from + positions[i] * inner * width, static_cast<size_t>(width));
        if (where) where[to] = positions[i];
      }
    };
    parallel_for(shares, (lines * dim / shares + 1) * 8, [&](int64_t begin, int64_t end) {
      for (int64_t share = begin; share < end; ++share)
        for (int64_t line = lines * share / shares; line < lines * (share + 1) / shares; ++line)
          rank_line(line, share);
    });
  };
}

// The gradients are added to the positions from which the elements were taken.
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
