// Clip: y = min(max(x, low), high). The bounds are attributes before version 11 and optional scalar inputs
// since then.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/elementwise/functions.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/wide_integers.h"
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

// The bounds of T when a kernel runs: the attributes or inputs, or the least and the largest number of the
// type.
template <typename T>
struct Bounds {
  using Limits = std::numeric_limits<T>;
  T lowest = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  T highest = Limits::has_infinity ? Limits::infinity() : Limits::max();
  Slot low, high;

  explicit Bounds(KernelContext& c) {
    if constexpr (std::is_floating_point_v<T>) {
      if (c.node().has("min")) lowest = static_cast<T>(c.node().float_or("min", 0));
      if (c.node().has("max")) highest = static_cast<T>(c.node().float_or("max", 0));
    }
    if (c.has_input(1)) low = c.in(1);
    if (c.has_input(2)) high = c.in(2);
  }
  T at_least(const Frame& f) const { return low.defined() ? *f.at<T>(low) : lowest; }
  T at_most(const Frame& f) const { return high.defined() ? *f.at<T>(high) : highest; }
};

template <typename T>
Kernel floating_clip(KernelContext& c) {
  const bool narrow = follows_bf16(c, {0});
  const DType kept = narrow ? DType::kBFloat16 : c.dtype(0);
  const UnaryFunction function = unary::Clip(kept);
  const LayoutPtr layout = narrow ? bf16_layout(c, 0) : flat_layout(c, 0);
  const Slot x = c.in(0, layout), y = c.out_inplace(0, {0}, layout);
  const Bounds<T> bounds(c);
  const auto width = static_cast<int64_t>(size_of(kept));
  return [=, n = c.out_size(0)](const Frame& f) {
    UnaryFunction clip = function;
    clip.a = static_cast<double>(bounds.at_least(f)), clip.b = static_cast<double>(bounds.at_most(f));
    const std::byte* from = f.at<std::byte>(x);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(n, clip.cost, [&](int64_t begin, int64_t end) {
      clip(from + begin * width, to + begin * width, end - begin);
    });
  };
}

template <typename T>
Kernel integer_clip(KernelContext& c) {
  const Slot x = c.in(0), y = c.out_inplace(0, {0});
  const Bounds<T> bounds(c);
  return [=, n = c.out_size(0)](const Frame& f) {
    const T at_least = bounds.at_least(f), at_most = bounds.at_most(f);
    const T* from = f.at<T>(x);
    T* to = f.at<T>(y);
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = std::min(std::max(from[i], at_least), at_most);
    });
  };
}

Kernel kernel(KernelContext& c) {
  Kernel kernel;
  const bool known = visit_wide_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>)
      kernel = floating_clip<T>(c);
    else
      kernel = integer_clip<T>(c);
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
                  .traits = {.takes_bf16 = true, .positions = elementwise_positions},
                  .kernels = {.cpu = wide_integers<kernel>}});

}  // namespace
}  // namespace ortrain
