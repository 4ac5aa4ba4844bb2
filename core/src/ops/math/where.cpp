// Where: y = condition ? a : b, with broadcasting. Elements are moved by their width, regardless of their
// type.

#include "backend/cpu/elementwise/select.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/elementwise.h"
#include "runtime/broadcast.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) {
  c.expect(c.dtype(0) == DType::kBool, "the condition must be bool, found ", to_string(c.dtype(0)));
  c.output(0, c.dtype(1), broadcast_inputs(c, 1));
}

// Without a branch, which would be mispredicted half of the time; in the common case also without strides, so
// that the compiler vectorizes it.
template <typename T>
void select(const bool* which, int64_t step, const T* a, int64_t step_a, const T* b, int64_t step_b, T* y,
            int64_t n) {
  const auto pick = [](bool w, T u, T v) {
    const T mask = static_cast<T>(-static_cast<T>(w));
    return static_cast<T>((u & mask) | (v & static_cast<T>(~mask)));
  };
  if (step && step_a && step_b)
    for (int64_t i = 0; i < n; ++i) y[i] = pick(which[i], a[i], b[i]);
  else if (step && step_a)
    for (int64_t i = 0; i < n; ++i) y[i] = pick(which[i], a[i], *b);
  else
    for (int64_t i = 0; i < n; ++i) y[i] = pick(which[i * step], a[i * step_a], b[i * step_b]);
}

// The layout of the first input that is not row-major, if all inputs with more than one element have the
// shape of the output.
LayoutPtr common_layout(const KernelContext& c) {
  LayoutPtr found;
  for (size_t i = 0; i < 3; ++i) {
    if (c.size(i) == 1) continue;
    if (c.shape(i) != c.out_shape(0)) return nullptr;
    if (!found) found = flat_layout(c, i);
  }
  return found;
}

template <typename T>
Kernel typed(KernelContext& c) {
  const LayoutPtr common = c.dtype(1) == DType::kFloat ? common_layout(c) : nullptr;
  const auto in = [&](size_t i) {
    return c.in(i, c.size(i) == 1 ? nullptr : layout_like(common, c.dtype(i), c.shape(i)));
  };
  const Slot condition = in(0), a = in(1), b = in(2),
             y = out_over(c, {1, 2}, layout_like(common, c.dtype(1), c.out_shape(0)));
  const Broadcast<3> shape({c.shape(0), c.shape(1), c.shape(2)}, c.out_shape(0));
  [[maybe_unused]] SelectWords words = nullptr;
  if constexpr (sizeof(T) == sizeof(uint32_t)) words = select_words();
  return [=](const Frame& f) {
    const bool* which = f.at<bool>(condition);
    const T *from_a = f.at<T>(a), *from_b = f.at<T>(b);
    T* to = f.at<T>(y);
    parallel_for(shape.size(), 1, [&](int64_t begin, int64_t end) {
      shape.walk(begin, end, [&](int64_t at, const std::array<int64_t, 3>& in, int64_t n) {
        if constexpr (sizeof(T) == sizeof(uint32_t))
          if (shape.step(0))
            return words(which + in[0], from_a + in[1], shape.step(1), from_b + in[2], shape.step(2), to + at,
                         n);
        select(which + in[0], shape.step(0), from_a + in[1], shape.step(1), from_b + in[2], shape.step(2),
               to + at, n);
      });
    });
  };
}

Kernel kernel(KernelContext& c) {
  switch (size_of(c.dtype(1))) {
    case 1:
      return typed<uint8_t>(c);
    case 2:
      return typed<uint16_t>(c);
    case 4:
      return typed<uint32_t>(c);
    case 8:
      return typed<uint64_t>(c);
    default:
      c.reject_dtype(1);
  }
}

void gradient(GradientContext& g) {
  const Expression condition(g, g.x(0)), dy(g, g.dy(0)), zero = dy.number(0);
  if (g.needs(1)) g.set(1, g.unbroadcast(condition.choose(dy, zero), g.y(0), 1));
  if (g.needs(2)) g.set(2, g.unbroadcast(condition.choose(zero, dy), g.y(0), 2));
}

ORTRAIN_OPERATOR({.type = "Where",
                  .rules = {.shape = shape, .gradient = gradient, .element_type = type_of_input<1>},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough, .positions = broadcast_positions},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
