// The vector functions of elementwise operators, by name.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "runtime/dtype.h"

namespace ortrain {

// y[i] = f(x[i]; a, b) for i < n. x and y may be the same memory.
struct UnaryFunction {
  void (*run)(const void* x, void* y, int64_t n, double a, double b) = nullptr;
  int64_t cost = 1;  // of one element, in additions
  double a = 0, b = 0;
  void operator()(const void* x, void* y, int64_t n) const { run(x, y, n, a, b); }
};

// y[i] = f(u[i], v[i]; a, b) for i < n. y may be the memory of u or v.
struct PairFunction {
  void (*run)(const void* u, const void* v, void* y, int64_t n, double a, double b) = nullptr;
  int64_t cost = 1;
  double a = 0, b = 0;
  void operator()(const void* u, const void* v, void* y, int64_t n) const { run(u, v, y, n, a, b); }
};

// y[i] = f(x[i]; a) and derivative[i] = f'(x[i]; a) for i < n. `derivative` may be the memory of x.
struct WithDerivativeFunction {
  void (*run)(const void* x, void* y, void* derivative, int64_t n, double a) = nullptr;
  int64_t cost = 1;
  double a = 0;
  void operator()(const void* x, void* y, void* derivative, int64_t n) const { run(x, y, derivative, n, a); }
};

// y[i] = f(a[i * step_a], b[i * step_b]) for i < n, with steps of 1 or 0. y may be the memory of an operand
// of step 1.
using BinaryFunction = void (*)(const void* a, int64_t step_a, const void* b, int64_t step_b, void* y,
                                int64_t n);

// The functions of the rows of unary_functions.cpp, in float or double, or in float on values stored in
// bfloat16. Their attributes are 0: the caller sets those that the formula uses. A build contains those that
// one of its operators names.
namespace unary {
UnaryFunction Clip(DType), Neg(DType), Abs(DType), Sign(DType), Floor(DType), Ceil(DType), Round(DType),
    Reciprocal(DType), Sqrt(DType), Exp(DType), Log(DType), Erf(DType), Sin(DType), Cos(DType), Tan(DType),
    Asin(DType), Acos(DType), Atan(DType), Sinh(DType), Cosh(DType), Asinh(DType), Acosh(DType), Atanh(DType),
    Tanh(DType), Sigmoid(DType), HardSigmoid(DType), Softplus(DType), Softsign(DType), Relu(DType),
    LeakyRelu(DType), ThresholdedRelu(DType), Elu(DType), Selu(DType), Celu(DType), HardSwish(DType),
    Mish(DType), Shrink(DType), Gelu(DType), FastGelu(DType), QuickGelu(DType), Swish(DType);
}
namespace pair {
PairFunction ReluGrad(DType), SigmoidGrad(DType), TanhGrad(DType), LeakyReluGrad(DType), ClipGrad(DType),
    HardSwishGrad(DType), GeluGrad(DType), FastGeluGrad(DType), QuickGeluGrad(DType);
}
namespace with_derivative {
WithDerivativeFunction Gelu(DType), FastGelu(DType), QuickGelu(DType);
}
// The function of Add, Sub, Mul, Div, Max, Min, Mod or PRelu on a numeric type; null for other types.
// Integers wrap around; the caller ensures that no integer divisor is zero.
BinaryFunction binary_function(std::string_view type, DType dtype);
// The same in float, producing bfloat16 from operands each of which is stored in bfloat16 or float.
BinaryFunction bf16_function(std::string_view type, bool bf16_a, bool bf16_b);

// The BinaryFunction of a stateless scalar formula, F{}(a, b), from elements T to elements Y.
template <typename T, typename Y, class F>
void plain_loop(const void* a, int64_t step_a, const void* b, int64_t step_b, void* y, int64_t n) {
  const T *u = static_cast<const T*>(a), *v = static_cast<const T*>(b);
  Y* out = static_cast<Y*>(y);
  // No steps in the common cases of the common types, so that the compiler can vectorize them.
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

}  // namespace ortrain
