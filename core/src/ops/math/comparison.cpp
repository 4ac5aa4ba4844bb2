// Comparisons and boolean logic with broadcasting: Equal, Less, LessOrEqual, Greater, GreaterOrEqual, And,
// Or, Xor, Not, IsNaN, IsInf. Gradients stop here.

#include <cmath>
#include <string_view>

#include "op/operator.h"
#include "op/wide_integers.h"
#include "ops/common/elementwise.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) { c.output(0, DType::kBool, broadcast_inputs(c)); }

// A formula as a function on T to bool.
template <typename T, class F>
constexpr BinaryFunction kFunction = plain_loop<T, bool, F>;

// The formula with its operands swapped.
template <typename T, class F>
constexpr BinaryFunction kSwapped = [](const void* a, int64_t step_a, const void* b, int64_t step_b, void* y,
                                       int64_t n) { plain_loop<T, bool, F>(b, step_b, a, step_a, y, n); };

// Less and related operators: all ordered types.
template <typename F, bool kSwap = false>
Kernel compare(KernelContext& c) {
  BinaryFunction function = nullptr;
  const bool known = visit_wide_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    function = kSwap ? kSwapped<T, F> : kFunction<T, F>;
  });
  if (!known) c.reject_dtype(0);
  return broadcast_kernel(c, function, 1);
}

template <typename F>
Kernel logic(KernelContext& c) {
  if (c.dtype(0) != DType::kBool) c.reject_dtype(0);
  return broadcast_kernel(c, kFunction<bool, F>, 1);
}

struct EqualTexts {
  bool operator()(Text a, Text b) const { return a == b || text(a) == text(b); }
};

template <typename F>
Kernel equal(KernelContext& c) {
  if (c.dtype(0) == DType::kString) return broadcast_kernel(c, kFunction<Text, EqualTexts>, 4);
  return c.dtype(0) == DType::kBool ? logic<F>(c) : compare<F>(c);
}

#define ORTRAIN_ROW(name, maker, formula)                                                 \
  struct name {                                                                           \
    template <typename T>                                                                 \
    bool operator()(T a, T b) const {                                                     \
      return formula;                                                                     \
    }                                                                                     \
  };                                                                                      \
  ORTRAIN_OPERATOR({.type = #name,                                                        \
                    .rules = {.shape = shape, .element_type = always<DType::kBool>},      \
                    .traits = {.stops_gradient = true, .positions = broadcast_positions}, \
                    .kernels = {.cpu = wide_integers<maker<name>>}})
ORTRAIN_ROW(Equal, equal, a == b);
ORTRAIN_ROW(Less, compare, a < b);
ORTRAIN_ROW(LessOrEqual, compare, a <= b);
ORTRAIN_ROW(And, logic, a&& b);
ORTRAIN_ROW(Or, logic, a || b);
ORTRAIN_ROW(Xor, logic, a != b);
#undef ORTRAIN_ROW
// a > b is b < a.
ORTRAIN_OPERATOR({.type = "Greater",
                  .rules = {.shape = shape, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true, .positions = broadcast_positions},
                  .kernels = {.cpu = wide_integers<compare<Less, true>>}});
ORTRAIN_OPERATOR({.type = "GreaterOrEqual",
                  .rules = {.shape = shape, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = wide_integers<compare<LessOrEqual, true>>}});

void shape_of_test(ShapeContext& c) { c.output(0, DType::kBool, c.shape(0)); }

template <typename T, typename F>
Kernel test(KernelContext& c, F holds) {
  const LayoutPtr layout = flat_layout(c, 0);
  const Slot x = c.in(0, layout), y = c.out(0, layout_like(layout, DType::kBool, c.shape(0)));
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

ORTRAIN_OPERATOR({.type = "Not",
                  .rules = {.shape = shape_of_test, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true, .positions = elementwise_positions},
                  .kernels = {.cpu = not_kernel}});
ORTRAIN_OPERATOR({.type = "IsNaN",
                  .rules = {.shape = shape_of_test, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true, .positions = elementwise_positions},
                  .kernels = {.cpu = is_nan_kernel}});
ORTRAIN_OPERATOR({.type = "IsInf",
                  .rules = {.shape = shape_of_test, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true, .positions = elementwise_positions},
                  .kernels = {.cpu = is_inf_kernel}});

}  // namespace
}  // namespace ortrain
