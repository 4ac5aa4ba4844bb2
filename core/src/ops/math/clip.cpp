// Clip: y = min(max(x, low), high). The bounds are attributes before version 11 and optional scalar inputs
// since then.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "backend/cpu/tuning.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/elementwise.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr const char* kNames[] = {"min", "max"};

void shape(ShapeContext& c) {
  for (size_t i = 1; i < 3; ++i)
    if (c.has_input(i))
      c.expect(c.dtype(i) == c.dtype(0) && c.size(i) == 1, kNames[i - 1], " must be a single ",
               to_string(c.dtype(0)), ", found ", to_string(c.dtype(i)), " ", to_string(c.shape(i)));
  shape_like_first(c);
}

Kernel kernel(KernelContext& c) {
  Kernel kernel;
  const bool known = visit_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    using Limits = std::numeric_limits<T>;
    const LayoutPtr layout = flat_layout(c, 0);
    const Slot x = c.in(0, layout), low = c.has_input(1) ? c.in(1) : Slot{},
               high = c.has_input(2) ? c.in(2) : Slot{};
    const Slot y = c.out_inplace(0, {0}, layout);
    T lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
    T highest = Limits::has_infinity ? Limits::infinity() : Limits::max();
    if constexpr (std::is_floating_point_v<T>) {
      if (c.node().has("min")) lowest = static_cast<T>(c.node().float_or("min", 0));
      if (c.node().has("max")) highest = static_cast<T>(c.node().float_or("max", 0));
    }
    const BinaryFunction larger = binary_function("Max", c.dtype(0)),
                         smaller = binary_function("Min", c.dtype(0));
    const int64_t n = c.out_size(0);
    using tuning::kPiece;
    kernel = [=](const Frame& f) {
      const T at_least = low.defined() ? *f.at<T>(low) : lowest,
              at_most = high.defined() ? *f.at<T>(high) : highest;
      const T* from = f.at<T>(x);
      T* to = f.at<T>(y);
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += kPiece) {
          const int64_t size = std::min(kPiece, end - i);
          larger(from + i, 1, &at_least, 0, to + i, size);
          smaller(to + i, 1, &at_most, 0, to + i, size);
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// dx = dy where low <= x <= high, else 0.
void gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  const auto bound = [&](size_t i) -> std::optional<Expression> {
    if (g.has_x(i)) return Expression(g, g.x(i));
    if (g.node().has(kNames[i - 1]))
      return x.number(static_cast<double>(g.node().float_or(kNames[i - 1], 0)));
    return {};
  };
  const std::optional<Expression> low = bound(1), high = bound(2);
  if (!low && !high) {
    g.set(0, dy);
    return;
  }
  std::optional<Expression> inside;
  if (low) inside = x.call("GreaterOrEqual", *low);
  if (high) {
    const Expression below = x.call("LessOrEqual", *high);
    inside = inside ? *inside && below : below;
  }
  g.set(0, dy * inside->as(dy));
}

ORTRAIN_OPERATOR({.type = "Clip",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.positions = elementwise_positions},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
