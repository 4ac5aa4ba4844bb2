// Functions of one value, of one value and the incoming gradient, and of one value with its derivative.
//
// A row is: name, cost in additions, formula on vectors. `a` and `b` are attributes of the operator, `d` is
// Highway's tag of the lanes. The gradients are defined with the operators (ops/math/unary.cpp).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/unary_functions.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/elementwise/bf16_blocks-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/dtype.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_UNARY_ROWS
// clang-format off
#define ORTRAIN_UNARY_ROWS(ROW) \
  /* NaN stays */ \
  ROW(Clip, 2, math::MinNan(d, math::MaxNan(d, x, a), b)) \
  ROW(Neg, 1, Neg(x)) \
  ROW(Abs, 1, Abs(x)) \
  ROW(Sign, 1, IfThenElse(Gt(Abs(x), Zero(d)), CopySign(C(d, 1), x), x)) \
  ROW(Floor, 1, Floor(x)) \
  ROW(Ceil, 1, Ceil(x)) \
  ROW(Round, 1, Round(x)) \
  ROW(Reciprocal, 3, Div(C(d, 1), x)) \
  ROW(Sqrt, 4, Sqrt(x)) \
  ROW(Exp, 8, math::Exp(d, x)) \
  ROW(Log, 10, math::Log(d, x)) \
  ROW(Erf, 12, math::Erf(d, x)) \
  ROW(Sin, 12, (Wave<0>(d, x, [](auto v) { return std::sin(v); }))) \
  ROW(Cos, 12, (Wave<1>(d, x, [](auto v) { return std::cos(v); }))) \
  ROW(Tan, 40, LANES(std::tan(v))) \
  ROW(Asin, 40, LANES(std::asin(v))) \
  ROW(Acos, 40, LANES(std::acos(v))) \
  ROW(Atan, 40, LANES(std::atan(v))) \
  ROW(Sinh, 40, LANES(std::sinh(v))) \
  ROW(Cosh, 40, LANES(std::cosh(v))) \
  ROW(Asinh, 50, LANES(std::asinh(v))) \
  ROW(Acosh, 50, LANES(std::acosh(v))) \
  ROW(Atanh, 50, LANES(std::atanh(v))) \
  ROW(Tanh, 10, math::Tanh(d, x)) \
  ROW(Sigmoid, 10, math::Sigmoid(d, x)) \
  ROW(HardSigmoid, 2, math::MaxNan(d, Zero(d), math::MinNan(d, C(d, 1), MulAdd(a, x, b)))) \
  ROW(Softplus, 20, math::Softplus(d, x)) \
  ROW(Softsign, 4, Div(x, Add(C(d, 1), Abs(x)))) \
  /* max(x, 0) */ \
  ROW(Relu, 1, math::Positive(d, x)) \
  /* x, below zero alpha x. Y tells the sign of X only where alpha is not negative. */ \
  ROW(LeakyRelu, 1, IfThenElse(Lt(x, Zero(d)), Mul(a, x), x)) \
  /* x above alpha, else 0 */ \
  ROW(ThresholdedRelu, 1, IfThenZeroElse(Le(x, a), x)) \
  /* x, below zero alpha (e^x - 1) */ \
  ROW(Elu, 8, IfThenElse(Lt(x, Zero(d)), Mul(a, math::Expm1(d, x)), x)) \
  /* gamma times Elu */ \
  ROW(Selu, 8, Mul(b, IfThenElse(Lt(x, Zero(d)), Mul(a, math::Expm1(d, x)), x))) \
  /* max(x, 0) + min(0, alpha (e^(x/alpha) - 1)) */ \
  ROW(Celu, 8, Add(math::Positive(d, x), math::MinNan(d, Zero(d), Mul(a, math::Expm1(d, Div(x, a)))))) \
  /* x max(0, min(1, x/6 + 1/2)) */ \
  ROW(HardSwish, 3, Mul(x, math::MaxNan(d, Zero(d), math::MinNan(d, C(d, 1), MulAdd(x, C(d, 1.0 / 6), C(d, 0.5)))))) \
  /* x tanh(ln(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2); for x > 20 the quotient is 1 */ \
  ROW(Mish, 12, Mish(d, x)) \
  /* x - bias above lambd, x + bias below -lambd, else 0 */ \
  ROW(Shrink, 2, IfThenElse(Lt(x, Neg(a)), Add(x, b), IfThenElse(Gt(x, a), Sub(x, b), IfThenElse(Le(Abs(x), a), Zero(d), x)))) \
  /* x times the normal distribution function of x */ \
  ROW(Gelu, 15, Mul(x, math::Normal<D>(d, x).cdf)) \
  /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) */ \
  ROW(FastGelu, 15, Mul(x, math::Sigmoid(d, FastGeluArgument(d, x)))) \
  /* x sigmoid(alpha x) */ \
  ROW(QuickGelu, 12, Mul(x, math::Sigmoid(d, Mul(a, x)))) \
  ROW(Swish, 12, Mul(x, math::Sigmoid(d, Mul(a, x))))

// Formulas of dy and x (the operator's input, or its output where the row has y).
#define ORTRAIN_PAIR_ROWS(ROW) \
  /* X may be the output as well: both are positive at the same places */ \
  ROW(ReluGrad, 1, IfThenElseZero(Gt(x, Zero(d)), dy)) \
  /* dy y (1 - y) */ \
  ROW(SigmoidGrad, 2, Mul(Mul(dy, x), Sub(C(d, 1), x))) \
  /* dy (1 - y^2) */ \
  ROW(TanhGrad, 2, Mul(dy, NegMulAdd(x, x, C(d, 1)))) \
  /* dy, where y is not positive alpha dy */ \
  ROW(LeakyReluGrad, 1, IfThenElse(Gt(x, Zero(d)), dy, Mul(a, dy))) \
  /* dy where x is within the bounds */ \
  ROW(ClipGrad, 1, IfThenElseZero(And(Ge(x, a), Le(x, b)), dy)) \
  /* dy where x > 3, 0 where x < -3, dy (x/3 + 1/2) between them */ \
  ROW(HardSwishGrad, 3, Mul(dy, IfThenElse(Gt(x, C(d, 3)), C(d, 1), IfThenElse(Lt(x, C(d, -3)), Zero(d), Add(Div(x, C(d, 3)), C(d, 0.5)))))) \
  /* dy (Phi(x) + x phi(x)), the distribution function and the density of the normal distribution */ \
  ROW(GeluGrad, 15, Mul(dy, GeluAndDerivative(d, x).derivative)) \
  /* dy (s + x s (1 - s) u'(x)), s = sigmoid(u(x)), u' = 2 sqrt(2/pi) (1 + 3 * 0.044715 x^2) */ \
  ROW(FastGeluGrad, 18, Mul(dy, FastGeluAndDerivative(d, x).derivative)) \
  /* the same with u = alpha x */ \
  ROW(QuickGeluGrad, 14, Mul(dy, SigmoidProductAndDerivative(d, x, Mul(a, x), a).derivative))

// Formulas of a value and its derivative.
#define ORTRAIN_DERIVATIVE_ROWS(ROW) \
  ROW(Gelu, 18, GeluAndDerivative(d, x)) \
  ROW(FastGelu, 20, FastGeluAndDerivative(d, x)) \
  ROW(QuickGelu, 16, SigmoidProductAndDerivative(d, x, Mul(a, x), a))
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

// sin(x + kQuarters pi/2); `exact` is the function of the C library, for doubles and for large numbers.
template <int kQuarters, class D, class F>
HWY_INLINE Vec<D> Wave(D d, Vec<D> x, F exact) {
  if constexpr (sizeof(hn::TFromD<D>) != sizeof(float)) {
    return math::PerLane(d, x, exact);
  } else {
    const hn::RebindToSigned<D> whole;
    // x = n pi/2 + r with |r| <= pi/4. Up to this limit, n has 13 bits, and its products with the first two
    // parts of pi/2, of 8 and 11 bits, are exact.
    const auto inside = hn::Le(hn::Abs(x), C(d, 8192));
    const auto near = hn::IfThenElseZero(inside, x);
    const auto quarter = hn::NearestInt(hn::Mul(near, C(d, 0.63661977236758134308)));
    const auto n = hn::ConvertTo(d, quarter);
    auto r = hn::NegMulAdd(n, C(d, 1.5703125), near);
    r = hn::NegMulAdd(n, C(d, 4.837512969970703125e-4), r);
    r = hn::NegMulAdd(n, C(d, 7.549789954891882e-8), r);
    // Minimax polynomials of the sine and the cosine: S. L. Moshier, Cephes Math Library, 1984.
    const auto z = hn::Mul(r, r);
    auto sine = hn::MulAdd(z, C(d, -1.9515295891e-4), C(d, 8.3321608736e-3));
    sine = hn::MulAdd(hn::Mul(hn::MulAdd(z, sine, C(d, -1.6666654611e-1)), z), r, r);
    auto cosine = hn::MulAdd(z, C(d, 2.443315711809948e-5), C(d, -1.388731625493765e-3));
    cosine = hn::MulAdd(hn::MulAdd(z, cosine, C(d, 4.166664568298827e-2)), hn::Mul(z, z),
                        hn::NegMulAdd(z, C(d, 0.5), C(d, 1)));
    const auto turns = hn::Add(quarter, hn::Set(whole, kQuarters));
    const auto odd = hn::RebindMask(d, hn::TestBit(turns, hn::Set(whole, 1)));
    const auto sign = hn::BitCast(d, hn::ShiftLeft<30>(hn::And(turns, hn::Set(whole, 2))));
    // The sine of -0 is -0.
    const auto wave = hn::Xor(hn::IfThenElse(odd, cosine, hn::CopySign(sine, r)), sign);
    if (hn::AllTrue(d, inside)) return wave;
    return hn::IfThenElse(inside, wave, math::PerLane(d, x, exact));
  }
}

constexpr double kTwiceSqrtTwoOverPi = 1.5957691216057307117597842397375;

template <class D>
HWY_INLINE Vec<D> FastGeluArgument(D d, Vec<D> x) {
  const Vec<D> square = hn::Mul(x, x);
  return hn::Mul(hn::Mul(x, C(d, kTwiceSqrtTwoOverPi)), hn::MulAdd(square, C(d, 0.044715), C(d, 1)));
}

template <class D>
HWY_INLINE Vec<D> FastGeluDerivative(D d, Vec<D> x) {
  return hn::Mul(C(d, kTwiceSqrtTwoOverPi), hn::MulAdd(hn::Mul(x, x), C(d, 3 * 0.044715), C(d, 1)));
}

// The value and the derivative of a function.
template <class V>
struct WithDerivative {
  V value, derivative;
};

// x cdf(x), the derivative is cdf(x) + x bell(x) / sqrt(2 pi).
template <class D>
HWY_INLINE WithDerivative<Vec<D>> GeluAndDerivative(D d, Vec<D> x) {
  const math::Normal<D> normal(d, x);
  return {hn::Mul(x, normal.cdf),
          hn::MulAdd(hn::Mul(x, C(d, 0.39894228040143267794)), normal.bell, normal.cdf)};
}

// x sigmoid(u), the derivative is s + x s (1 - s) u'.
template <class D>
HWY_INLINE WithDerivative<Vec<D>> SigmoidProductAndDerivative(D d, Vec<D> x, Vec<D> u, Vec<D> derivative) {
  const Vec<D> s = math::Sigmoid(d, u);
  const Vec<D> bend = hn::Mul(s, hn::Sub(C(d, 1), s));
  // Where s (1 - s) has become 0, x u' may be infinite, and 0 times infinity is NaN.
  return {hn::Mul(x, s),
          hn::IfThenElse(hn::Eq(bend, hn::Zero(d)), s, hn::MulAdd(hn::Mul(x, derivative), bend, s))};
}

template <class D>
HWY_INLINE WithDerivative<Vec<D>> FastGeluAndDerivative(D d, Vec<D> x) {
  return SigmoidProductAndDerivative(d, x, FastGeluArgument(d, x), FastGeluDerivative(d, x));
}

#define ORTRAIN_ROW(type, cost, formula)                                \
  struct Row##type {                                                    \
    static constexpr int kCost = cost;                                  \
    template <class D>                                                  \
    static HWY_INLINE Vec<D> Apply(D d, Vec<D> x, Vec<D> a, Vec<D> b) { \
      (void)d, (void)a, (void)b;                                        \
      return formula;                                                   \
    }                                                                   \
  };
ORTRAIN_UNARY_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, cost, formula)                                           \
  struct Row##type {                                                               \
    static constexpr int kCost = cost;                                             \
    template <class D>                                                             \
    static HWY_INLINE Vec<D> Apply(D d, Vec<D> dy, Vec<D> x, Vec<D> a, Vec<D> b) { \
      (void)d, (void)a, (void)b;                                                   \
      return formula;                                                              \
    }                                                                              \
  };
ORTRAIN_PAIR_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, cost, formula)                                      \
  struct Row##type##AndDerivative {                                           \
    template <class D>                                                        \
    static HWY_INLINE WithDerivative<Vec<D>> Apply(D d, Vec<D> x, Vec<D> a) { \
      (void)d, (void)a;                                                       \
      return formula;                                                         \
    }                                                                         \
  };
ORTRAIN_DERIVATIVE_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

template <class Row, typename T>
void RunUnary(const void* x, void* y, int64_t n, double a, double b) {
  const hn::ScalableTag<Lane<T>> d;
  const auto va = C(d, a), vb = C(d, b);
  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(y);
  if constexpr (Row::kCost < 4)
    return Map(from, to, n, [d, va, vb](auto, auto v) HWY_ATTR { return Row::Apply(d, v, va, vb); });
  // Long formulas are compiled once, for whole vectors and for the last one.
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t count = HWY_MIN(lanes, n - i);
    StoreUpTo(Row::Apply(d, LoadUpTo(d, from + i, count), va, vb), d, to + i, count);
  }
}

template <class Row, typename T>
void RunPair(const void* u, const void* v, void* y, int64_t n, double a, double b) {
  const hn::ScalableTag<Lane<T>> d;
  const auto va = C(d, a), vb = C(d, b);
  Map2<1, 1>(static_cast<const T*>(u), static_cast<const T*>(v), static_cast<T*>(y), n,
             [d, va, vb](auto, auto p, auto q) HWY_ATTR { return Row::Apply(d, p, q, va, vb); });
}

template <class Row, typename T>
void RunWithDerivative(const void* x, void* y, void* derivative, int64_t n, double a) {
  const hn::ScalableTag<Lane<T>> d;
  const auto va = C(d, a);
  const T* from = static_cast<const T*>(x);
  T *to = static_cast<T*>(y), *to_derivative = static_cast<T*>(derivative);
  ForVectors<Lane<T>>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto result = Row::Apply(d, LoadUpTo(d, from + i, count), va);
    StoreUpTo(result.value, d, to + i, count);
    StoreUpTo(result.derivative, d, to_derivative + i, count);
  });
}

using UnaryRun = void (*)(const void*, void*, int64_t, double, double);
using WithDerivativeRun = void (*)(const void*, void*, void*, int64_t, double);
using PairRun = void (*)(const void*, const void*, void*, int64_t, double, double);

void RunUnaryInBlocks(UnaryRun run, const void* x, void* y, int64_t n, double a, double b) {
  Block block;
  ForBlocks(n, [&](int64_t i, int64_t count) {
    block.Widen(x, i, count);
    run(block.values, block.values, count, a, b);
    block.RoundTo(y, i, count);
  });
}

void RunPairInBlocks(PairRun run, const void* u, const void* v, void* y, int64_t n, double a, double b) {
  Block p, q;
  ForBlocks(n, [&](int64_t i, int64_t count) {
    p.Widen(u, i, count);
    q.Widen(v, i, count);
    run(p.values, q.values, p.values, count, a, b);
    p.RoundTo(y, i, count);
  });
}

void RunWithDerivativeInBlocks(WithDerivativeRun run, const void* x, void* y, void* derivative, int64_t n,
                               double a) {
  Block values, derivatives;
  ForBlocks(n, [&](int64_t i, int64_t count) {
    derivatives.Widen(x, i, count);
    run(derivatives.values, values.values, derivatives.values, count, a);
    values.RoundTo(y, i, count);
    derivatives.RoundTo(derivative, i, count);
  });
}

// A function for elements of T, if the build has such tensors.
template <typename T, typename Function>
constexpr Function IfBuilt(Function function) {
  return kHasKernels<T> ? function : nullptr;
}

// Rows that cost less than the conversions are compiled for bfloat16 too.
template <class Row>
void UnaryBf16(const void* x, void* y, int64_t n, double a, double b) {
  if constexpr (Row::kCost <= 1)
    RunUnary<Row, BFloat16>(x, y, n, a, b);
  else
    RunUnaryInBlocks(RunUnary<Row, float>, x, y, n, a, b);
}

template <class Row>
void PairBf16(const void* u, const void* v, void* y, int64_t n, double a, double b) {
  if constexpr (Row::kCost <= 1)
    RunPair<Row, BFloat16>(u, v, y, n, a, b);
  else
    RunPairInBlocks(RunPair<Row, float>, u, v, y, n, a, b);
}

template <class Row>
void WithDerivativeBf16(const void* x, void* y, void* derivative, int64_t n, double a) {
  RunWithDerivativeInBlocks(RunWithDerivative<Row, float>, x, y, derivative, n, a);
}

// `kind`: 0 for float, 1 for double, 2 for float kept in bfloat16. One function for each row: the linker then
// drops the rows that no operator of a build uses.
#define ORTRAIN_ROW(type, ...)                                                         \
  UnaryRun Unary##type(size_t kind) {                                                  \
    static constexpr UnaryRun kRuns[] = {RunUnary<Row##type, float>,                   \
                                         IfBuilt<double>(RunUnary<Row##type, double>), \
                                         IfBuilt<BFloat16>(UnaryBf16<Row##type>)};     \
    return kRuns[kind];                                                                \
  }
ORTRAIN_UNARY_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, ...)                                                       \
  PairRun Pair##type(size_t kind) {                                                  \
    static constexpr PairRun kRuns[] = {RunPair<Row##type, float>,                   \
                                        IfBuilt<double>(RunPair<Row##type, double>), \
                                        IfBuilt<BFloat16>(PairBf16<Row##type>)};     \
    return kRuns[kind];                                                              \
  }
ORTRAIN_PAIR_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, ...)                                                                     \
  WithDerivativeRun WithDerivative##type(size_t kind) {                                            \
    using Row = Row##type##AndDerivative;                                                          \
    static constexpr WithDerivativeRun kRuns[] = {RunWithDerivative<Row, float>,                   \
                                                  IfBuilt<double>(RunWithDerivative<Row, double>), \
                                                  IfBuilt<BFloat16>(WithDerivativeBf16<Row>)};     \
    return kRuns[kind];                                                                            \
  }
ORTRAIN_DERIVATIVE_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "backend/cpu/elementwise/functions.h"

namespace ortrain {
namespace {

size_t kind_of(DType dtype) { return dtype == DType::kDouble ? 1 : dtype == DType::kBFloat16 ? 2 : 0; }

}  // namespace

#define ORTRAIN_ROW(type, cost, formula) \
  UnaryFunction unary::type(DType dtype) { return {ORTRAIN_DISPATCH(Unary##type)(kind_of(dtype)), cost}; }
ORTRAIN_UNARY_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, cost, formula) \
  PairFunction pair::type(DType dtype) { return {ORTRAIN_DISPATCH(Pair##type)(kind_of(dtype)), cost}; }
ORTRAIN_PAIR_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

#define ORTRAIN_ROW(type, cost, formula)                                   \
  WithDerivativeFunction with_derivative::type(DType dtype) {              \
    return {ORTRAIN_DISPATCH(WithDerivative##type)(kind_of(dtype)), cost}; \
  }
ORTRAIN_DERIVATIVE_ROWS(ORTRAIN_ROW)
#undef ORTRAIN_ROW

}  // namespace ortrain
#endif
