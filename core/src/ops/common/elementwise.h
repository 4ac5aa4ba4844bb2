// What elementwise operators share: their vector functions by name, and what their kernel makers ask of a
// node.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <type_traits>

#include "op/operator.h"

namespace ortrain {

// y[i] = f(x[i]; a, b) for i < n. x and y may be the same memory.
struct UnaryFunction {
  void (*run)(const void* x, void* y, int64_t n, double a, double b) = nullptr;
  int64_t cost = 1;  // of one element, in additions
  double a = 0, b = 0;
  void operator()(const void* x, void* y, int64_t n) const { run(x, y, n, a, b); }
};

// y[i] = f(u[i], v[i]; a) for i < n. y may be the memory of u or v.
struct PairFunction {
  void (*run)(const void* u, const void* v, void* y, int64_t n, double a) = nullptr;
  int64_t cost = 1;
  double a = 0;
  void operator()(const void* u, const void* v, void* y, int64_t n) const { run(u, v, y, n, a); }
};

// y[i] = f(a[i * step_a], b[i * step_b]) for i < n, with steps of 1 or 0. y may be the memory of an operand
// of step 1.
using BinaryFunction = void (*)(const void* a, int64_t step_a, const void* b, int64_t step_b, void* y,
                                int64_t n);

// The function of an operator of unary.cpp with the default attributes, in float or double, or in float on
// values that are kept in bfloat16.
UnaryFunction unary_function(std::string_view type, DType dtype);
PairFunction pair_function(std::string_view type, DType dtype);
// The function of Add, Sub, Mul, Div, Max, Min, Mod or PRelu on a numeric type, null for other types.
// Integers wrap around; the caller sees to it that no integer divisor is zero.
BinaryFunction binary_function(std::string_view type, DType dtype);
// The same in float, giving bfloat16 from operands each of which is kept in bfloat16 or in float.
BinaryFunction bf16_function(std::string_view type, bool bf16_a, bool bf16_b);

// The BinaryFunction of a formula without state on single numbers, F{}(a, b), from elements T to elements Y.
template <typename T, typename Y, class F>
void plain_loop(const void* a, int64_t step_a, const void* b, int64_t step_b, void* y, int64_t n) {
  const T *u = static_cast<const T*>(a), *v = static_cast<const T*>(b);
  Y* out = static_cast<Y*>(y);
  // Without steps in the common cases of the common types, so that the compiler makes vectors of them.
  constexpr bool kCommon = std::is_same_v<T, bool> || (sizeof(T) >= 4 && std::is_signed_v<T>);
  if (kCommon && step_a && step_b) {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Y>(F{}(u[i], v[i]));
  } else if (kCommon && step_a) {
    const T w = *v;
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Y>(F{}(u[i], w));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Y>(F{}(u[i * step_a], v[i * step_b]));
  }
}

// A kernel that applies the function to inputs 0 and 1, which broadcast to output 0. `cost` is that of one
// element, in additions.
Kernel broadcast_kernel(KernelContext& c, BinaryFunction function, int64_t cost);

// Rejects the node unless inputs i and j have the same type and shape.
void expect_same(const NodeContext& c, size_t i, size_t j);

// The axis of the first operand, of the given rank, at which the second one stands; nothing where the two are
// aligned at their ends, as they always are since version 7 of the ONNX operators. `slopes`: the second one
// is a vector of more than one element.
std::optional<int64_t> operand_axis(const Node& node, int64_t opset, int64_t rank, bool slopes);
// The shape with which input i broadcasts: its own, or that of an operand at an axis with ones behind it.
Shape operand_shape(const NodeContext& c, size_t i);

// The shape that all inputs broadcast to; rejects the node where they do not or differ in type (`first` and
// later ones).
Shape broadcast_inputs(const NodeContext& c, size_t first = 0);

// The layout in which a flat walk over the floats of input i may run: its own where that holds the elements
// only, else row-major.
LayoutPtr flat_layout(const KernelContext& c, size_t i);

// Output 0, over the memory of the first of the candidates that has the output's type and shape and may be
// overwritten. For kernels that write an element after they have read the same element of the candidate.
Slot out_over(KernelContext& c, std::initializer_list<size_t> candidates, const LayoutPtr& layout = nullptr);

}  // namespace ortrain
