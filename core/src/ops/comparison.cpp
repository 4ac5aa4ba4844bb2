// Comparisons and boolean logic with broadcasting: Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And,
// Or, Xor, Not, IsNaN, IsInf. Gradients stop here.

#include <cmath>
#include <string_view>
#include <type_traits>

#include "ops/broadcast.h"
#include "ops/elementwise.h"
#include "ops/operator.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) { c.output(0, DType::kBool, broadcast_inputs(c)); }

template <typename T, typename F>
Kernel typed(KernelContext& c, F holds) {
  const Slot a = c.in(0), b = c.in(1), y = c.out(0);
  const Broadcast<2> shape({c.shape(0), operand_shape(c, 1)}, c.out_shape(0));
  return [=](const Frame& f) {
    const T *from_a = f.at<T>(a), *from_b = f.at<T>(b);
    bool* to = f.at<bool>(y);
    parallel_for(shape.size(), 1, [&](int64_t begin, int64_t end) {
      shape.walk(begin, end, [&](int64_t at, const std::array<int64_t, 2>& in, int64_t n) {
        const T *u = from_a + in[0], *v = from_b + in[1];
        const int64_t step_u = shape.step(0), step_v = shape.step(1);
        // Without steps in the common cases, so that the compiler makes vectors of them.
        if (step_u && step_v)
          for (int64_t i = 0; i < n; ++i) to[at + i] = holds(u[i], v[i]);
        else if (step_u)
          for (int64_t i = 0; i < n; ++i) to[at + i] = holds(u[i], *v);
        else
          for (int64_t i = 0; i < n; ++i) to[at + i] = holds(*u, v[i * step_v]);
      });
    });
  };
}

// Less and its kin, one formula for all types that have an order.
template <typename F>
Kernel compare(KernelContext& c) {
  Kernel kernel;
  if (!visit_numeric(c.dtype(0), [&](auto zero) { kernel = typed<decltype(zero)>(c, F{}); }))
    c.reject_dtype(0);
  return kernel;
}

template <typename F>
Kernel equal(KernelContext& c) {
  return c.dtype(0) == DType::kBool ? typed<bool>(c, F{}) : compare<F>(c);
}

template <typename F>
Kernel logic(KernelContext& c) {
  if (c.dtype(0) != DType::kBool) c.reject_dtype(0);
  return typed<bool>(c, F{});
}

#define ORTRAIN_ROW(name, maker, formula) \
  struct name {                           \
    template <typename T>                 \
    bool operator()(T a, T b) const {     \
      return formula;                     \
    }                                     \
  };                                      \
  ORTRAIN_OPERATOR({.type = #name, .shape = shape, .kernel = maker<name>, .stops_gradient = true})
ORTRAIN_ROW(Equal, equal, a == b);
ORTRAIN_ROW(Less, compare, a < b);
ORTRAIN_ROW(LessOrEqual, compare, a <= b);
ORTRAIN_ROW(Greater, compare, a > b);
ORTRAIN_ROW(GreaterOrEqual, compare, a >= b);
ORTRAIN_ROW(And, logic, a&& b);
ORTRAIN_ROW(Or, logic, a || b);
ORTRAIN_ROW(Xor, logic, a != b);

void shape_of_test(ShapeContext& c) { c.output(0, DType::kBool, c.shape(0)); }

template <typename T, typename F>
Kernel test(KernelContext& c, F holds) {
  const Slot x = c.in(0), y = c.out(0);
  const int64_t n = c.out_size(0);
  return [=](const Frame& f) {
    const T* from = f.at<T>(x);
    bool* to = f.at<bool>(y);
    parallel_for(n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = holds(from[i]);
    });
  };
}

Kernel not_kernel(KernelContext& c) {
  if (c.dtype(0) != DType::kBool) c.reject_dtype(0);
  return test<bool>(c, [](bool x) { return !x; });
}

template <typename F>
Kernel floating_test(KernelContext& c, F holds) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = test<decltype(zero)>(c, holds); }))
    c.reject_dtype(0);
  return kernel;
}

Kernel is_nan_kernel(KernelContext& c) {
  return floating_test(c, [](auto x) { return std::isnan(x); });
}

Kernel is_inf_kernel(KernelContext& c) {
  const bool positive = c.node().int_or("detect_positive", 1) != 0;
  const bool negative = c.node().int_or("detect_negative", 1) != 0;
  return floating_test(c, [=](auto x) { return std::isinf(x) && (x > 0 ? positive : negative); });
}

ORTRAIN_OPERATOR({.type = "Not", .shape = shape_of_test, .kernel = not_kernel, .stops_gradient = true});
ORTRAIN_OPERATOR({.type = "IsNaN", .shape = shape_of_test, .kernel = is_nan_kernel, .stops_gradient = true});
ORTRAIN_OPERATOR({.type = "IsInf", .shape = shape_of_test, .kernel = is_inf_kernel, .stops_gradient = true});

}  // namespace
}  // namespace ortrain
