// Elementwise operators of one value, and the gradient operators that also take the incoming gradient.
//
// An operator is a row: name, domain, cost in additions, attributes a and b with their defaults, formula on
// vectors, and for operators of one value the gradient as a formula on graph values. `d` is Highway's tag of
// the lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/math/unary.cpp"
// The per-target passes over this file come first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"

#ifndef ORTRAIN_UNARY_ROWS
// clang-format off
#define ORTRAIN_UNARY_ROWS(ROW) \
  ROW(Neg, "", 1, {}, Neg(x), RULE(-dy)) \
  ROW(Abs, "", 1, {}, Abs(x), RULE(dy * x.call("Sign"))) \
  ROW(Sign, "", 1, {}, IfThenElse(Gt(Abs(x), Zero(d)), CopySign(C(d, 1), x), x), STOPS) \
  ROW(Floor, "", 1, {}, Floor(x), STOPS) \
  ROW(Ceil, "", 1, {}, Ceil(x), STOPS) \
  ROW(Round, "", 1, {}, Round(x), STOPS) \
  ROW(Reciprocal, "", 3, {}, Div(C(d, 1), x), RULE(-(dy * y * y))) \
  ROW(Sqrt, "", 4, {}, Sqrt(x), RULE(dy * 0.5 / y)) \
  ROW(Exp, "", 8, {}, math::Exp(d, x), RULE(dy * y)) \
  ROW(Log, "", 10, {}, math::Log(d, x), RULE(dy / x)) \
  ROW(Erf, "", 12, {}, math::Erf(d, x), RULE(dy * (-(x * x)).call("Exp") * (2 / std::sqrt(std::numbers::pi)))) \
  ROW(Sin, "", 30, {}, LANES(std::sin(v)), RULE(dy * x.call("Cos"))) \
  ROW(Cos, "", 30, {}, LANES(std::cos(v)), RULE(-(dy * x.call("Sin")))) \
  ROW(Tan, "", 40, {}, LANES(std::tan(v)), RULE(dy * (y * y + 1.0))) \
  ROW(Asin, "", 40, {}, LANES(std::asin(v)), RULE(dy / (1.0 - x * x).call("Sqrt"))) \
  ROW(Acos, "", 40, {}, LANES(std::acos(v)), RULE(-(dy / (1.0 - x * x).call("Sqrt")))) \
  ROW(Atan, "", 40, {}, LANES(std::atan(v)), RULE(dy / (x * x + 1.0))) \
  ROW(Sinh, "", 40, {}, LANES(std::sinh(v)), RULE(dy * x.call("Cosh"))) \
  ROW(Cosh, "", 40, {}, LANES(std::cosh(v)), RULE(dy * x.call("Sinh"))) \
  ROW(Asinh, "", 50, {}, LANES(std::asinh(v)), RULE(dy / (x * x + 1.0).call("Sqrt"))) \
  ROW(Acosh, "", 50, {}, LANES(std::acosh(v)), RULE(dy / (x * x - 1.0).call("Sqrt"))) \
  ROW(Atanh, "", 50, {}, LANES(std::atanh(v)), RULE(dy / (1.0 - x * x))) \
  ROW(Tanh, "", 10, {}, math::Tanh(d, x), RULE(dy.call("TanhGrad", y, {}, kMicrosoft))) \
  ROW(Sigmoid, "", 10, {}, math::Sigmoid(d, x), RULE(dy.call("SigmoidGrad", y, {}, kMicrosoft))) \
  ROW(HardSigmoid, "", 2, (Defaults{{"alpha", 0.2f}, {"beta", 0.5f}}), \
      math::MaxNan(d, Zero(d), math::MinNan(d, C(d, 1), MulAdd(a, x, b))), \
      RULE(dy * a * (y > 0.0 && y < 1.0).as(x))) \
  ROW(Softplus, "", 20, {}, math::Softplus(d, x), RULE(dy * x.call("Sigmoid"))) \
  ROW(Softsign, "", 4, {}, Div(x, Add(C(d, 1), Abs(x))), RULE(dy / square(x.call("Abs") + 1.0))) \
  /* max(x, 0) */ \
  ROW(Relu, "", 1, {}, math::Positive(d, x), RULE(dy.call("ReluGrad", y, {}, kMicrosoft))) \
  /* x, below zero alpha x. Y tells the sign of X only where alpha is not negative. */ \
  ROW(LeakyRelu, "", 1, (Defaults{{"alpha", 0.01f}}), IfThenElse(Lt(x, Zero(d)), Mul(a, x), x), \
      RULE(a < 0 ? (x > 0.0).choose(dy, dy * a) \
                  : dy.call("LeakyReluGrad", y, {{"alpha", static_cast<float>(a)}}, kMicrosoft))) \
  /* x above alpha, else 0 */ \
  ROW(ThresholdedRelu, "", 1, (Defaults{{"alpha", 1.0f}}), IfThenZeroElse(Le(x, a), x), \
      RULE(dy * (x > a).as(x))) \
  /* x, below zero alpha (e^x - 1) */ \
  ROW(Elu, "", 8, (Defaults{{"alpha", 1.0f}}), IfThenElse(Lt(x, Zero(d)), Mul(a, math::Expm1(d, x)), x), \
      RULE((x > 0.0).choose(dy, dy * (y + a)))) \
  /* gamma times Elu */ \
  ROW(Selu, "", 8, (Defaults{{"alpha", 1.67326319217681884765625f}, {"gamma", 1.05070102214813232421875f}}), \
      Mul(b, IfThenElse(Lt(x, Zero(d)), Mul(a, math::Expm1(d, x)), x)), \
      RULE((x > 0.0).choose(dy * b, dy * (y + a * b)))) \
  /* max(x, 0) + min(0, alpha (e^(x/alpha) - 1)) */ \
  ROW(Celu, "", 8, (Defaults{{"alpha", 1.0f}}), \
      Add(math::Positive(d, x), math::MinNan(d, Zero(d), Mul(a, math::Expm1(d, Div(x, a))))), \
      RULE((x > 0.0).choose(dy, dy * (x / a).call("Exp")))) \
  /* x max(0, min(1, x/6 + 1/2)) */ \
  ROW(HardSwish, "", 3, {}, \
      Mul(x, math::MaxNan(d, Zero(d), math::MinNan(d, C(d, 1), MulAdd(x, C(d, 1.0 / 6), C(d, 0.5))))), \
      RULE((x > 3.0).choose(dy, (x < -3.0).choose(dy * 0.0, dy * (x / 3.0 + 0.5))))) \
  /* x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2); for x > 20 the quotient is 1 */ \
  ROW(Mish, "", 12, {}, Mish(d, x), RULE(dy * mish_slope(x, x.call("Softplus").call("Tanh")))) \
  /* x - bias above lambd, x + bias below -lambd, else 0 */ \
  ROW(Shrink, "", 2, (Defaults{{"lambd", 0.5f}, {"bias", 0.0f}}), \
      IfThenElse(Lt(x, Neg(a)), Add(x, b), IfThenElse(Gt(x, a), Sub(x, b), IfThenElse(Le(Abs(x), a), Zero(d), x))), \
      RULE(dy * (x.call("Abs") > a).as(x))) \
  /* x times the normal distribution function of x */ \
  ROW(Gelu, kMicrosoft, 15, {}, Mul(x, math::Normal<D>(d, x).cdf), RULE(dy.call("GeluGrad", x, {}, kMicrosoft))) \
  /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) */ \
  ROW(FastGelu, kMicrosoft, 15, {}, Mul(x, math::Sigmoid(d, FastGeluArgument(d, x))), \
      RULE(dy.call("FastGeluGrad", x, {}, kMicrosoft))) \
  /* x sigmoid(alpha x) */ \
  ROW(QuickGelu, kMicrosoft, 12, (Defaults{{"alpha", 1.702f}}), Mul(x, math::Sigmoid(d, Mul(a, x))), \
      RULE(dy.call("QuickGeluGrad", x, {{"alpha", static_cast<float>(a)}}, kMicrosoft))) \
  ROW(Swish, "", 12, (Defaults{{"alpha", 1.0f}}), Mul(x, math::Sigmoid(d, Mul(a, x))), \
      RULE(dy.call("QuickGeluGrad", x, {{"alpha", static_cast<float>(a)}}, kMicrosoft)))

// Name, cost, attribute a, formula of dy and of x (the operator's input, or its output where the row says y), and
// what d/dx makes of the factor of dy; FLAT where that is zero.
#define ORTRAIN_PAIR_ROWS(ROW) \
  /* X may be the output as well: both are positive at the same places */ \
  ROW(ReluGrad, 1, {}, IfThenElseZero(Gt(x, Zero(d)), dy), FLAT) \
  /* dy y (1 - y) */ \
  ROW(SigmoidGrad, 2, {}, Mul(Mul(dy, x), Sub(C(d, 1), x)), SLOPE(1.0 - 2.0 * x)) \
  /* dy (1 - y^2) */ \
  ROW(TanhGrad, 2, {}, Mul(dy, NegMulAdd(x, x, C(d, 1))), SLOPE(-2.0 * x)) \
  /* dy, where y is not positive alpha dy */ \
  ROW(LeakyReluGrad, 1, (Defaults{{"alpha", 0.01f}}), IfThenElse(Gt(x, Zero(d)), dy, Mul(a, dy)), FLAT) \
  /* dy (Phi(x) + x phi(x)), the distribution function and the density of the normal distribution */ \
  ROW(GeluGrad, 15, {}, Mul(dy, GeluAndSlope(d, x).slope), SLOPE(gelu_curvature(x))) \
  /* dy (s + x s (1 - s) u'(x)), s = sigmoid(u(x)), u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2) */ \
  ROW(FastGeluGrad, 18, {}, Mul(dy, FastGeluAndSlope(d, x).slope), SLOPE(fast_gelu_curvature(x))) \
  /* the same with u = alpha x */ \
  ROW(QuickGeluGrad, 14, (Defaults{{"alpha", 1.702f}}), Mul(dy, SigmoidProductAndSlope(d, x, Mul(a, x), a).slope), \
      SLOPE(quick_gelu_curvature(x, a)))

// Operators with their derivative as a second output, made by a pass (passes/save_activation_derivatives.cpp): name, cost,
// attribute a, value and slope.
#define ORTRAIN_SLOPE_ROWS(ROW) \
  ROW(Gelu, 18, {}, GeluAndSlope(d, x)) \
  ROW(FastGelu, 20, {}, FastGeluAndSlope(d, x)) \
  ROW(QuickGelu, 16, (Defaults{{"alpha", 1.702f}}), SigmoidProductAndSlope(d, x, Mul(a, x), a))
// clang-format on
#define LANES(...) math::PerLane(d, x, [](auto v) { return __VA_ARGS__; })
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

template <class D>
HWY_INLINE Vec<D> Mish(D d, Vec<D> x) {
  const Vec<D> e = math::Exp(d, math::MinNan(d, x, C(d, 20)));
  const Vec<D> n = hn::Mul(e, hn::Add(e, C(d, 2)));
  return hn::Mul(x, hn::Div(n, hn::Add(n, C(d, 2))));
}

constexpr double kTwiceSqrtTwoOverPi = 1.5957691216057307117597842397375;

template <class D>
HWY_INLINE Vec<D> FastGeluArgument(D d, Vec<D> x) {
  const Vec<D> square = hn::Mul(x, x);
  return hn::Mul(hn::Mul(x, C(d, kTwiceSqrtTwoOverPi)), hn::MulAdd(square, C(d, 0.044715), C(d, 1)));
}

template <class D>
HWY_INLINE Vec<D> FastGeluSlope(D d, Vec<D> x) {
  return hn::Mul(C(d, kTwiceSqrtTwoOverPi), hn::MulAdd(hn::Mul(x, x), C(d, 3 * 0.044715), C(d, 1)));
}

// The value and the derivative of a function.
template <class V>
struct WithSlope {
  V value, slope;
};

// x cdf(x), the derivative is cdf(x) + x bell(x) / sqrt(2 pi).
template <class D>
HWY_INLINE WithSlope<Vec<D>> GeluAndSlope(D d, Vec<D> x) {
  const math::Normal<D> normal(d, x);
  return {hn::Mul(x, normal.cdf),
          hn::MulAdd(hn::Mul(x, C(d, 0.39894228040143267794)), normal.bell, normal.cdf)};
}

// x sigmoid(u), the derivative is s + x s (1 - s) u'.
template <class D>
HWY_INLINE WithSlope<Vec<D>> SigmoidProductAndSlope(D d, Vec<D> x, Vec<D> u, Vec<D> slope) {
  const Vec<D> s = math::Sigmoid(d, u);
  const Vec<D> bend = hn::Mul(s, hn::Sub(C(d, 1), s));
  // Where s (1 - s) has become 0, x u' may be infinite, and 0 times infinity is NaN.
  return {hn::Mul(x, s),
          hn::IfThenElse(hn::Eq(bend, hn::Zero(d)), s, hn::MulAdd(hn::Mul(x, slope), bend, s))};
}

template <class D>
HWY_INLINE WithSlope<Vec<D>> FastGeluAndSlope(D d, Vec<D> x) {
  return SigmoidProductAndSlope(d, x, FastGeluArgument(d, x), FastGeluSlope(d, x));
}

#define ORTRAIN_ROW(type, domain, cost, defaults, formula, ...)         \
  struct Row##type {                                                    \
    template <class D>                                                  \
    static HWY_INLINE Vec<D> Apply(D d, Vec<D> x, Vec<D> a, Vec<D> b) { \
      (void)d, (void)a, (void)b;                                        \
      return formula;                                                   \
    }                                                                   \
  };
ORTRAIN_UNARY_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, cost, defaults, formula, slope)                \
  struct Row##type {                                                     \
    template <class D>                                                   \
    static HWY_INLINE Vec<D> Apply(D d, Vec<D> dy, Vec<D> x, Vec<D> a) { \
      (void)d, (void)a;                                                  \
      return formula;                                                    \
    }                                                                    \
  };
ORTRAIN_PAIR_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, cost, defaults, formula)                       \
  struct Row##type##AndSlope {                                           \
    template <class D>                                                   \
    static HWY_INLINE WithSlope<Vec<D>> Apply(D d, Vec<D> x, Vec<D> a) { \
      (void)d, (void)a;                                                  \
      return formula;                                                    \
    }                                                                    \
  };
ORTRAIN_SLOPE_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

template <class Row, typename T>
void RunUnary(const void* x, void* y, int64_t n, double a, double b) {
  const hn::ScalableTag<Lane<T>> d;
  const auto va = C(d, a), vb = C(d, b);
  Map(static_cast<const T*>(x), static_cast<T*>(y), n,
      [d, va, vb](auto, auto v) HWY_ATTR { return Row::Apply(d, v, va, vb); });
}

template <class Row, typename T>
void RunPair(const void* u, const void* v, void* y, int64_t n, double a) {
  const hn::ScalableTag<Lane<T>> d;
  const auto va = C(d, a);
  Map2<1, 1>(static_cast<const T*>(u), static_cast<const T*>(v), static_cast<T*>(y), n,
             [d, va](auto, auto p, auto q) HWY_ATTR { return Row::Apply(d, p, q, va); });
}

template <class Row, typename T>
void RunWithSlope(const void* x, void* y, void* slope, int64_t n, double a) {
  const hn::ScalableTag<Lane<T>> d;
  const auto va = C(d, a);
  const T* from = static_cast<const T*>(x);
  T *to = static_cast<T*>(y), *to_slope = static_cast<T*>(slope);
  ForVectors<Lane<T>>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto result = Row::Apply(d, LoadUpTo(d, from + i, count), va);
    StoreUpTo(result.value, d, to + i, count);
    StoreUpTo(result.slope, d, to_slope + i, count);
  });
}

using UnaryRun = void (*)(const void*, void*, int64_t, double, double);
using WithSlopeRun = void (*)(const void*, void*, void*, int64_t, double);
using PairRun = void (*)(const void*, const void*, void*, int64_t, double);

// `kind`: 0 for float, 1 for double, 2 for float kept in bfloat16.
UnaryRun FindUnary(size_t row, size_t kind) {
#define ORTRAIN_ROW(type, ...) \
  {RunUnary<Row##type, float>, RunUnary<Row##type, double>, RunUnary<Row##type, BFloat16>},
  static constexpr UnaryRun kRuns[][3] = {ORTRAIN_UNARY_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW
  return kRuns[row][kind];
}

PairRun FindPair(size_t row, size_t kind) {
#define ORTRAIN_ROW(type, ...) \
  {RunPair<Row##type, float>, RunPair<Row##type, double>, RunPair<Row##type, BFloat16>},
  static constexpr PairRun kRuns[][3] = {ORTRAIN_PAIR_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW
  return kRuns[row][kind];
}

WithSlopeRun FindWithSlope(size_t row, size_t kind) {
#define ORTRAIN_ROW(type, ...)                                                          \
  {RunWithSlope<Row##type##AndSlope, float>, RunWithSlope<Row##type##AndSlope, double>, \
   RunWithSlope<Row##type##AndSlope, BFloat16>},
  static constexpr WithSlopeRun kRuns[][3] = {ORTRAIN_SLOPE_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW
  return kRuns[row][kind];
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cmath>
#include <numbers>
#include <vector>

#include "backend/cpu/bf16_storage.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/session_domain.h"
#include "ops/common/elementwise.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

HWY_EXPORT(FindUnary);
HWY_EXPORT(FindPair);
HWY_EXPORT(FindWithSlope);

// A float attribute and its default.
struct Default {
  const char* name = nullptr;
  float value = 0;
};
struct Defaults {
  Default a, b;
  double value(const Node& node, const Default& which) const {
    return which.name ? node.float_or(which.name, which.value) : 0;
  }
};

using Rule = void (*)(GradientContext& g, const Expression& dy, const Expression& x, const Expression& y,
                      double a, double b);

struct UnaryRow {
  std::string_view type, domain;
  int64_t cost;
  Defaults defaults;
  Rule rule;  // null: gradients stop here
};

using Slope = Expression (*)(const Expression& x, double a);

struct PairRow {
  std::string_view type;
  int64_t cost;
  Defaults defaults;
  Slope slope;  // null: zero
};

Expression square(const Expression& x) { return x * x; }

// d/dx x w with w = tanh(softplus(x)): w + x sigmoid(x) (1 - w^2).
Expression mish_slope(const Expression& x, const Expression& w) {
  return w + x * x.call("Sigmoid") * (1.0 - w * w);
}

// The second derivative of x Phi(x): (2 - x^2) phi(x).
Expression gelu_curvature(const Expression& x) {
  return (2.0 - x * x) * (x * x * -0.5).call("Exp") * (1 / std::sqrt(2 * std::numbers::pi));
}

// The second derivative of x s with s = sigmoid(u(x)): s (1 - s) (2 u' + x ((1 - 2 s) u'^2 + u'')).
Expression sigmoid_product_curvature(const Expression& x, const Expression& u, const Expression& slope,
                                     const Expression& curvature) {
  const Expression s = u.call("Sigmoid");
  return s * (1.0 - s) * (2.0 * slope + x * ((1.0 - 2.0 * s) * slope * slope + curvature));
}

Expression fast_gelu_curvature(const Expression& x) {
  const double a = 2 * std::sqrt(2 / std::numbers::pi), b = 0.044715;
  const Expression x2 = x * x;
  return sigmoid_product_curvature(x, a * x * (1.0 + b * x2), a * (1.0 + 3 * b * x2), 6 * a * b * x);
}

Expression quick_gelu_curvature(const Expression& x, double a) {
  return sigmoid_product_curvature(x, a * x, x.number(a), x.number(0));
}

#define STOPS nullptr
#define RULE(...)                                                                                     \
  [](GradientContext& g, [[maybe_unused]] const Expression& dy, [[maybe_unused]] const Expression& x, \
     [[maybe_unused]] const Expression& y, [[maybe_unused]] double a,                                 \
     [[maybe_unused]] double b) { g.set(0, __VA_ARGS__); }
#define ORTRAIN_ROW(type, domain, cost, defaults, formula, rule) {#type, domain, cost, defaults, rule},
const UnaryRow kUnaryRows[] = {ORTRAIN_UNARY_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW
#define FLAT nullptr
#define SLOPE(...) [](const Expression& x, [[maybe_unused]] double a) { return __VA_ARGS__; }
#define ORTRAIN_ROW(type, cost, defaults, formula, slope) {#type, cost, defaults, slope},
const PairRow kPairRows[] = {ORTRAIN_PAIR_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW
#define ORTRAIN_ROW(type, cost, defaults, formula) {#type "AndSlope", cost, defaults, nullptr},
const PairRow kSlopeRows[] = {ORTRAIN_SLOPE_ROWS(ORTRAIN_ROW)};
#undef ORTRAIN_ROW

template <typename Row, size_t N>
size_t find_row(const Row (&rows)[N], std::string_view type) {
  for (size_t i = 0; i < N; ++i)
    if (rows[i].type == type) return i;
  fail(ErrorCode::kFail, "there is no elementwise formula of the name ", type);
}

// The row of a node: that of its type, except that Gelu(approximate = "tanh") is FastGelu.
std::string_view row_name(const Node& node) {
  if (node.op_type != "Gelu") return node.op_type;
  const std::string approximate = node.string_or("approximate", "none");
  require(approximate == "none" || approximate == "tanh", ErrorCode::kInvalidGraph, node.label(),
          ": approximate must be 'none' or 'tanh', found '", approximate, "'");
  return approximate == "tanh" ? "FastGelu" : "Gelu";
}

size_t kind_of(DType dtype) { return dtype == DType::kDouble ? 1 : dtype == DType::kBFloat16 ? 2 : 0; }

bool is_float_or_double(DType t) { return t == DType::kFloat || t == DType::kDouble; }

// Operators that ONNX also has on integers.
template <typename T>
T integer_formula(char op, T x) {
  switch (op) {
    case 'N':
      return static_cast<T>(T{0} - x);
    case 'A':
      return x < 0 ? static_cast<T>(T{0} - x) : x;
    case 'S':
      return static_cast<T>((x > 0) - (x < 0));
    default:
      return x > 0 ? x : T{0};
  }
}

Kernel integer_kernel(KernelContext& c) {
  const std::string& type = c.node().op_type;
  const bool shrink = type == "Shrink", erf = type == "Erf";
  if (!shrink && !erf && type != "Neg" && type != "Abs" && type != "Sign" && type != "Relu")
    c.reject_dtype(0);
  const char op = type[0];
  const auto limit = static_cast<double>(c.node().float_or("lambd", 0.5f)),
             bias = static_cast<double>(c.node().float_or("bias", 0));
  Kernel kernel;
  const bool known = visit_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out_inplace(0, {0});
    const int64_t n = c.out_size(0);
    kernel = [=](const Frame& f) {
      const T* from = f.at<T>(x);
      T* to = f.at<T>(y);
      for (int64_t i = 0; i < n; ++i) {
        const auto v = static_cast<double>(from[i]);
        to[i] = erf          ? cast_number<T>(static_cast<float>(std::erf(v)))
                : !shrink    ? integer_formula(op, from[i])
                : v < -limit ? cast_number<T>(v + bias)
                : v > limit  ? cast_number<T>(v - bias)
                             : T{0};
      }
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

Kernel unary_kernel(KernelContext& c) {
  if (!is_float_or_double(c.dtype(0))) return integer_kernel(c);
  const size_t row = find_row(kUnaryRows, row_name(c.node()));
  const Defaults& defaults = kUnaryRows[row].defaults;
  const bool narrow = follows_bf16(c, {0});
  const DType kept = narrow ? DType::kBFloat16 : c.dtype(0);
  UnaryFunction function = unary_function(kUnaryRows[row].type, kept);
  function.a = defaults.value(c.node(), defaults.a);
  function.b = defaults.value(c.node(), defaults.b);
  const LayoutPtr layout = narrow ? bf16_layout(c, 0) : flat_layout(c, 0);
  const Slot x = c.in(0, layout), y = c.out_inplace(0, {0}, layout);
  const int64_t n = c.out_size(0);
  const int64_t width = static_cast<int64_t>(size_of(kept));
  return [=](const Frame& f) {
    const std::byte* from = f.at<std::byte>(x);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(n, function.cost, [&](int64_t begin, int64_t end) {
      function(from + begin * width, to + begin * width, end - begin);
    });
  };
}

void unary_gradient(GradientContext& g) {
  const UnaryRow& row = kUnaryRows[find_row(kUnaryRows, row_name(g.node()))];
  row.rule(g, {g, g.dy(0)}, {g, g.x(0)}, {g, g.y(0)}, row.defaults.value(g.node(), row.defaults.a),
           row.defaults.value(g.node(), row.defaults.b));
}

// dX = dY s(X): dX is s u for dY and u dY s'(X) for X, with u the gradient of dX.
void pair_gradient(GradientContext& g) {
  const PairRow& row = kPairRows[find_row(kPairRows, g.node().op_type)];
  const Expression u(g, g.dy(0)), dy(g, g.x(0)), x(g, g.x(1));
  if (g.needs(0)) g.set(0, u.call(g.node().op_type, x, g.node().attributes, kMicrosoft));
  if (g.needs(1) && row.slope) g.set(1, u * dy * row.slope(x, row.defaults.value(g.node(), row.defaults.a)));
}

void pair_shape(ShapeContext& c) {
  expect_same(c, 0, 1);
  shape_like_first(c);
}

Kernel pair_kernel(KernelContext& c) {
  if (!is_float_or_double(c.dtype(0))) c.reject_dtype(0);
  const size_t row = find_row(kPairRows, c.node().op_type);
  const Defaults& defaults = kPairRows[row].defaults;
  const bool narrow = follows_bf16(c, {0, 1});
  const DType kept = narrow ? DType::kBFloat16 : c.dtype(0);
  PairFunction function = pair_function(kPairRows[row].type, kept);
  function.a = defaults.value(c.node(), defaults.a);
  // The value from the forward pass decides: other kernels read it too.
  LayoutPtr layout = narrow ? bf16_layout(c, lies_in_bf16(c, 1) ? 1 : 0) : flat_layout(c, 1);
  if (!layout) layout = flat_layout(c, 0);
  const Slot u = c.in(0, layout), v = c.in(1, layout), y = c.out_inplace(0, {0, 1}, layout);
  const int64_t n = c.out_size(0);
  const int64_t width = static_cast<int64_t>(size_of(kept));
  return [=](const Frame& f) {
    const std::byte *from_u = f.at<std::byte>(u), *from_v = f.at<std::byte>(v);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(n, function.cost, [&](int64_t begin, int64_t end) {
      function(from_u + begin * width, from_v + begin * width, to + begin * width, end - begin);
    });
  };
}

void slope_shape(ShapeContext& c) {
  shape_like_first(c);
  c.output(1, c.dtype(0), c.shape(0));
}

Kernel slope_kernel(KernelContext& c) {
  if (!is_float_or_double(c.dtype(0))) c.reject_dtype(0);
  const size_t row = find_row(kSlopeRows, c.node().op_type);
  const Defaults& defaults = kSlopeRows[row].defaults;
  const bool narrow = follows_bf16(c, {0});
  const DType kept = narrow ? DType::kBFloat16 : c.dtype(0);
  const LayoutPtr layout = narrow ? bf16_layout(c, 0) : flat_layout(c, 0);
  const Slot x = c.in(0, layout), slope = c.out_inplace(1, {0}, layout), y = c.out(0, layout);
  const int64_t n = c.out_size(0), cost = kSlopeRows[row].cost;
  const int64_t width = static_cast<int64_t>(size_of(kept));
  return [=, run = HWY_DYNAMIC_DISPATCH(FindWithSlope)(row, kind_of(kept)),
          a = defaults.value(c.node(), defaults.a)](const Frame& f) {
    const std::byte* from = f.at<std::byte>(x);
    std::byte *to = f.at<std::byte>(y), *to_slope = f.at<std::byte>(slope);
    parallel_for(n, cost, [&](int64_t begin, int64_t end) {
      run(from + begin * width, to + begin * width, to_slope + begin * width, end - begin, a);
    });
  };
}

// ONNX has Gelu and, in its first form, FastGelu may have a bias: see bias_gelu.cpp for the latter.
const bool registered = [] {
  for (const UnaryRow& row : kUnaryRows) {
    if (row.type == "FastGelu") continue;
    RegisterOperator({.domain = row.domain,
                      .type = row.type,
                      .rules = {.shape = shape_like_first, .gradient = row.rule ? unary_gradient : nullptr},
                      .traits = {.stops_gradient = !row.rule,
                                 .since = row.type == "Selu" ? 6 : 1,  // its constants were rounded already
                                 .takes_bf16 = true,
                                 .positions = elementwise_positions},
                      .kernels = {.cpu = unary_kernel}});
  }
  RegisterOperator({.type = "Gelu",
                    .rules = {.shape = shape_like_first, .gradient = unary_gradient},
                    .traits = {.takes_bf16 = true, .positions = elementwise_positions},
                    .kernels = {.cpu = unary_kernel}});
  for (const PairRow& row : kPairRows)
    RegisterOperator({.domain = kMicrosoft,
                      .type = row.type,
                      .rules = {.shape = pair_shape, .gradient = pair_gradient},
                      .traits = {.takes_bf16 = true},
                      .kernels = {.cpu = pair_kernel}});
  for (const PairRow& row : kSlopeRows)
    RegisterOperator({.domain = kSessionDomain,
                      .type = row.type,
                      .rules = {.shape = slope_shape},
                      .traits = {.takes_bf16 = true},
                      .kernels = {.cpu = slope_kernel}});
  return true;
}();

}  // namespace

UnaryFunction unary_function(std::string_view type, DType dtype) {
  const size_t row = find_row(kUnaryRows, type);
  const Defaults& defaults = kUnaryRows[row].defaults;
  return {HWY_DYNAMIC_DISPATCH(FindUnary)(row, kind_of(dtype)), kUnaryRows[row].cost, defaults.a.value,
          defaults.b.value};
}

PairFunction pair_function(std::string_view type, DType dtype) {
  const size_t row = find_row(kPairRows, type);
  return {HWY_DYNAMIC_DISPATCH(FindPair)(row, kind_of(dtype)), kPairRows[row].cost,
          kPairRows[row].defaults.a.value};
}

}  // namespace ortrain
#endif
