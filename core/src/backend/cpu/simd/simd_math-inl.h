// Vector mathematics shared by our kernels: functions that are valid on the whole range (infinities, NaN),
// and the loops.
//
// A vector kernel's file is compiled once for each instruction set (the build states which,
// HWY_DISABLED_TARGETS) and picks the best at run time:
//
//     #undef HWY_TARGET_INCLUDE
//     #define HWY_TARGET_INCLUDE "backend/cpu/elementwise/unary_functions.cpp"
//     #include <hwy/foreach_target.h>
//     #include "backend/cpu/simd/simd_math-inl.h"
//     HWY_BEFORE_NAMESPACE();
//     namespace ortrain { namespace HWY_NAMESPACE { ... } }
//     HWY_AFTER_NAMESPACE();
//     #if HWY_ONCE
//     ORTRAIN_DISPATCH(f)(...)  // runtime/vector_targets.h
//     #endif

#if defined(ORTRAIN_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_SIMD_MATH_INL_H_
#undef ORTRAIN_SIMD_MATH_INL_H_
#else
#define ORTRAIN_SIMD_MATH_INL_H_
#endif

#include <hwy/highway.h>
// After highway.h
#include <hwy/contrib/math/math-inl.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/half.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
using Vec = hn::Vec<D>;

// The type of arithmetic on elements stored as T.
template <typename T>
struct LaneOf {
  using Type = T;
};
template <>
struct LaneOf<BFloat16> {
  using Type = float;
};
template <typename T>
using Lane = typename LaneOf<T>::Type;

// A constant of the lane type.
template <class D>
HWY_INLINE Vec<D> C(D d, double value) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(value));
}

// Called by their qualified names, because Highway has functions of the same names.
namespace math {

// f for each lane: for functions without a vector form that is accurate everywhere.
template <class D, class F>
HWY_INLINE Vec<D> PerLane(D d, Vec<D> x, F f) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(lanes[i]);
  return hn::Load(d, lanes);
}

template <class D, class F>
HWY_INLINE Vec<D> PerLane2(D d, Vec<D> a, Vec<D> b, F f) {
  HWY_ALIGN hn::TFromD<D> u[hn::MaxLanes(d)], v[hn::MaxLanes(d)];
  hn::Store(a, d, u);
  hn::Store(b, d, v);
  for (size_t i = 0; i < hn::Lanes(d); ++i) u[i] = f(u[i], v[i]);
  return hn::Load(d, u);
}

// max and min that give NaN where an operand is NaN.
template <class D>
HWY_INLINE Vec<D> MaxNan(D, Vec<D> a, Vec<D> b) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, hn::Max(a, b)));
}
template <class D>
HWY_INLINE Vec<D> MinNan(D, Vec<D> a, Vec<D> b) {
  return hn::IfThenElse(hn::IsNaN(a), a, hn::IfThenElse(hn::IsNaN(b), b, hn::Min(a, b)));
}

// max(x, 0) that gives NaN for NaN.
template <class D>
HWY_INLINE Vec<D> Positive(D d, Vec<D> x) {
  return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);
}

// e^x. Highway's is valid for [-FLT_MAX, 104], without NaN.
template <class D>
HWY_INLINE Vec<D> Exp(D d, Vec<D> x) {
  const Vec<D> overflows =
      C(d, sizeof(hn::TFromD<D>) == 4 ? 89.0 : 710.0);  // e^89 > FLT_MAX, e^710 > DBL_MAX
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, hn::Min(x, overflows)));
}

// e^x for x <= 0, where float results below the smallest normal number are zero.
//
// float: x = n ln 2 + r with |r| <= ln 2 / 2; e^r is 1 + r + r^2 P(r), where P is the minimax polynomial of
// degree 4 (Remez exchange; relative error of e^r 1.7e-8, of the result 1.1 units in the last place). The sum
// with 1.5 2^23 rounds to a whole number and leaves n + 127, the exponent's bits of 2^n, in the lowest bits.
template <class D>
HWY_INLINE Vec<D> ExpNegative(D d, Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return math::Exp(d, x);
  } else {
    constexpr double kP[5] = {0.5000000310988867, 0.16666551287649764, 0.041664796632300105,
                              0.0083654659828038, 0.0014083076601709272};
    const Vec<D> magic = C(d, 12582912.0 + 127);
    const Vec<D> shifted = hn::MulAdd(x, C(d, 1.4426950408889634), magic);
    const Vec<D> n = hn::Sub(shifted, magic);
    Vec<D> r = hn::NegMulAdd(n, C(d, 0.693145751953125), x);  // ln 2 in two parts, the first times n is exact
    r = hn::NegMulAdd(n, C(d, 1.428606820309417e-06), r);
    Vec<D> y = C(d, kP[4]);
    for (int i = 3; i >= 0; --i) y = hn::MulAdd(y, r, C(d, kP[i]));
    y = hn::MulAdd(hn::MulAdd(y, r, C(d, 1)), r, C(d, 1));
    const hn::RebindToUnsigned<D> bits;
    const Vec<D> power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(bits, shifted)));
    // The comparison is of x and not of the product, so that NaN stays.
    return hn::IfThenElse(hn::Lt(x, C(d, -87.33654)), hn::Zero(d), hn::Mul(y, power));
  }
}

// e^x - 1, accurate near 0.
template <class D>
HWY_INLINE Vec<D> Expm1(D d, Vec<D> x) {
  const Vec<D> overflows = C(d, sizeof(hn::TFromD<D>) == 4 ? 89.0 : 710.0);
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Expm1(d, hn::Min(x, overflows)));
}

// ln x. Highway's is valid for positive finite numbers.
template <class D>
HWY_INLINE Vec<D> Log(D d, Vec<D> x) {
  using T = hn::TFromD<D>;
  const Vec<D> infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  const Vec<D> nan = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
  const Vec<D> bad = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity), nan);
  const Vec<D> y = hn::IfThenElse(hn::Gt(x, hn::Zero(d)), hn::Log(d, x), bad);
  return hn::IfThenElse(hn::Eq(x, infinity), x, y);
}

// tanh x. In float, with t = |x|, (1 - e^-2t) / (1 + e^-2t). For small t, where 1 - e^-2t would lose digits,
// t + t^3 P(t^2), where P is the minimax polynomial of degree 4 (Remez exchange; relative error of tanh
// 1.4e-9). The largest error is 1.5 units in the last place.
template <class D>
HWY_INLINE Vec<D> Tanh(D d, Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Tanh(d, x);
  } else {
    constexpr double kSmall = 0.5625;
    constexpr double kP[5] = {-0.33333313888603535, 0.13332452285634091, -0.0538374314048957,
                              0.021007463320013747, -0.006179815465528075};
    const Vec<D> t = hn::Abs(x), one = C(d, 1), square = hn::Mul(t, t);
    Vec<D> p = C(d, kP[4]);
    for (int i = 3; i >= 0; --i) p = hn::MulAdd(p, square, C(d, kP[i]));
    const Vec<D> near = hn::MulAdd(hn::Mul(t, square), p, t);
    const Vec<D> e = math::ExpNegative(d, hn::Mul(t, C(d, -2)));
    const Vec<D> far = hn::Div(hn::Sub(one, e), hn::Add(one, e));
    return hn::CopySign(hn::IfThenElse(hn::Lt(t, C(d, kSmall)), near, far), x);
  }
}

// 1 / (1 + e^-x). In float, with e = e^-|x|, which does not overflow: 1 / (1 + e), or e / (1 + e) if x is
// negative. The largest error is 2.3 units in the last place.
template <class D>
HWY_INLINE Vec<D> Sigmoid(D d, Vec<D> x) {
  const Vec<D> one = C(d, 1);
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::Div(one, hn::Add(one, math::Exp(d, hn::Neg(x))));
  } else {
    const Vec<D> e = math::ExpNegative(d, hn::Neg(hn::Abs(x)));
    return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
  }
}

// ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)
template <class D>
HWY_INLINE Vec<D> Softplus(D d, Vec<D> x) {
  return hn::Add(math::Positive(d, x), hn::Log1p(d, math::Exp(d, hn::Neg(hn::Abs(x)))));
}

// erf x = 2/sqrt(pi) * the integral of e^(-t^2) from 0 to x.
//
// float: for |x| < 1, x P(x^2); beyond, 1 - e^(-Q(|x|)), which is 1 from 4 on. P and Q are minimax
// polynomials of degree 6 (Remez exchange; relative error of P 1.3e-9, absolute error of the result from
// Q 1.1e-9). double: the C library's.
template <class D>
HWY_INLINE Vec<D> Erf(D d, Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return math::PerLane(d, x, [](double v) { return std::erf(v); });
  } else {
    const auto horner = [d](Vec<D> t, const double(&c)[7]) HWY_ATTR {
      Vec<D> y = C(d, c[6]);
      for (int i = 5; i >= 0; --i) y = hn::MulAdd(y, t, C(d, c[i]));
      return y;
    };
    constexpr double kP[7] = {1.1283791065216064,    -0.3761262595653534,  0.1128358542919159,
                              -0.026853812858462334, 0.005188327748328447, -8.010193705558777e-4,
                              7.853860734030604e-05};
    constexpr double kQ[7] = {3.5372046987835017e-4, 1.1270400319494562,    0.6382256841371484,
                              0.10303736268788913,   -0.021805315393571677, 0.002939606563816436,
                              -1.855739340243973e-4};
    const Vec<D> t = hn::Abs(x);
    const Vec<D> near = hn::Mul(x, horner(hn::Mul(x, x), kP));
    const Vec<D> far = hn::Sub(C(d, 1), hn::Exp(d, hn::Neg(horner(hn::Min(t, C(d, 4)), kQ))));
    const Vec<D> y = hn::IfThenElse(hn::Lt(t, C(d, 1)), near, hn::CopySign(far, x));
    return hn::IfThenElse(hn::IsNaN(x), x, y);
  }
}

// The standard normal distribution: cdf(x) = (1 + erf(x / sqrt 2)) / 2 and bell(x) = e^(-x^2/2), its density
// except for a factor.
//
// float: with t = |x| / sqrt 2 the smaller tail is bell(x) P(u) / 2, u = 1 / (1 + 0.4 t), where P is the
// minimax polynomial of degree 9 of e^(t^2) erfc(t) for t <= 10 (Remez exchange, relative error 3e-8; the
// form is that of C. Hastings, "Approximations for digital computers", 1955). double: the C library's erfc.
template <class D>
struct Normal {
  Vec<D> cdf, bell;

  HWY_INLINE Normal(D d, Vec<D> x) {
    bell = math::ExpNegative(d, hn::Mul(C(d, -0.5), hn::Mul(x, x)));
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      cdf = math::PerLane(d, x, [](double v) { return 0.5 * std::erfc(v * -0.70710678118654752440); });
    } else {
      constexpr double kP[10] = {2.640600610932842e-05, 0.2250825591453788,   0.231355307282993,
                                 0.17741550141340337,   0.26864021462242893,  -0.06857181744698344,
                                 0.2757944914098828,    -0.06369107337139263, -0.07474693013235904,
                                 0.028695371305172537};
      const Vec<D> u = hn::Div(C(d, 1), hn::MulAdd(hn::Abs(x), C(d, 0.4 * 0.70710678118654752440), C(d, 1)));
      Vec<D> y = C(d, kP[9]);
      for (int i = 8; i >= 0; --i) y = hn::MulAdd(y, u, C(d, kP[i]));
      const Vec<D> tail = hn::Mul(hn::Mul(C(d, 0.5), bell), y);
      cdf = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(C(d, 1), tail));
    }
  }
};

}  // namespace math

// Whether loads and stores under a mask leave the memory of the other lanes alone, for float and double.
#if !HWY_MEM_OPS_MIGHT_FAULT || HWY_TARGET == HWY_AVX2
constexpr bool kMasksMemory = true;
#else
constexpr bool kMasksMemory = false;
#endif

// v with values below `low` replaced by `low` and values above `high` by `high`; NaN stays.
template <class D>
HWY_INLINE Vec<D> ClipTo(D, Vec<D> v, Vec<D> low, Vec<D> high) {
#if HWY_ARCH_X86
  return hn::Min(high, hn::Max(low, v));  // these instructions return the second operand if one is NaN
#else
  return hn::IfThenElse(hn::Lt(v, low), low, hn::IfThenElse(hn::Gt(v, high), high, v));
#endif
}

// The next `count` elements; lanes beyond them hold `fill`, and memory beyond them is not touched.
template <class D, typename T>
HWY_INLINE Vec<D> LoadUpTo(D d, const T* p, int64_t count, T fill = 0) {
  if (count >= static_cast<int64_t>(hn::Lanes(d))) return hn::LoadU(d, p);
  if constexpr (kMasksMemory) {
    const auto mask = hn::FirstN(d, static_cast<size_t>(count));
    return hn::IfThenElse(mask, hn::MaskedLoad(mask, d, p), hn::Set(d, fill));
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(d)];
    hn::Store(hn::Set(d, fill), d, lanes);
    for (int64_t k = 0; k < count; ++k) lanes[k] = p[k];
    return hn::Load(d, lanes);
  }
}

template <class D, typename T>
HWY_INLINE void StoreUpTo(Vec<D> v, D d, T* p, int64_t count) {
  if (count >= static_cast<int64_t>(hn::Lanes(d))) {
    hn::StoreU(v, d, p);
  } else if constexpr (kMasksMemory) {
    hn::BlendedStore(v, hn::FirstN(d, static_cast<size_t>(count)), d, p);
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (int64_t k = 0; k < count; ++k) p[k] = lanes[k];
  }
}

// The next `count` values that are stored in bfloat16, as floats; a store rounds to the nearest, ties to
// even.
template <class D>
HWY_INLINE Vec<D> LoadUpTo(D d, const BFloat16* p, int64_t count, float fill = 0) {
  const hn::Rebind<uint16_t, D> half;
  const hn::RebindToUnsigned<D> bits;
  const auto widen = [&](auto v)
                         HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(bits, v))); };
  const auto* words = reinterpret_cast<const uint16_t*>(p);
  if (count >= static_cast<int64_t>(hn::Lanes(d))) return widen(hn::LoadU(half, words));
  HWY_ALIGN uint16_t lanes[hn::MaxLanes(d)];
  hn::Store(hn::Set(half, BFloat16(fill).bits), half, lanes);
  for (int64_t k = 0; k < count; ++k) lanes[k] = words[k];
  return widen(hn::Load(half, lanes));
}

template <class D>
HWY_INLINE void StoreUpTo(Vec<D> v, D d, BFloat16* p, int64_t count) {
  const hn::Rebind<uint16_t, D> half;
  const hn::RebindToUnsigned<D> bits;
  const auto x = hn::BitCast(bits, v);
  const auto odd = hn::And(hn::ShiftRight<16>(x), hn::Set(bits, 1));
  const auto rounded = hn::Add(x, hn::Add(odd, hn::Set(bits, 0x7fff)));
  // Rounding could turn a NaN into an infinity, so it is made a quiet NaN instead.
  const auto quiet = hn::Or(x, hn::Set(bits, 0x400000));
  const auto result = hn::IfThenElse(hn::RebindMask(bits, hn::IsNaN(v)), quiet, rounded);
  const auto narrow = hn::TruncateTo(half, hn::ShiftRight<16>(result));
  auto* words = reinterpret_cast<uint16_t*>(p);
  if (count >= static_cast<int64_t>(hn::Lanes(d))) return hn::StoreU(narrow, half, words);
  HWY_ALIGN uint16_t lanes[hn::MaxLanes(d)];
  hn::Store(narrow, half, lanes);
  for (int64_t k = 0; k < count; ++k) words[k] = lanes[k];
}

// Calls f(i, count) for vectors that cover [0, n): count is the number of lanes, less for the last one.
template <typename T, class F>
HWY_INLINE void ForVectors(int64_t n, F f) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) f(i, lanes);
  if (i < n) f(i, n - i);
}

// The sum of all lanes of term(i, count) over [0, n), where lanes beyond count must be 0. Blocks are added in
// double, so that the relative error does not grow with n.
template <typename T, class F>
HWY_INLINE double SumOver(int64_t n, F term) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = HWY_MIN(n, begin + kBlock);
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = begin;
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      s0 = hn::Add(s0, term(i, lanes));
      s1 = hn::Add(s1, term(i + lanes, lanes));
      s2 = hn::Add(s2, term(i + 2 * lanes, lanes));
      s3 = hn::Add(s3, term(i + 3 * lanes, lanes));
    }
    for (; i < end; i += lanes) s0 = hn::Add(s0, term(i, HWY_MIN(lanes, end - i)));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)))));
  }
  return total;
}

// y[i] = f(x[i]) for i < n; x and y may be the same.
template <typename T, class F>
HWY_INLINE void Map(const T* x, T* y, int64_t n, F f) {
  const hn::ScalableTag<Lane<T>> d;
  ForVectors<Lane<T>>(n, [&](int64_t i, int64_t count)
                             HWY_ATTR { StoreUpTo(f(d, LoadUpTo(d, x + i, count)), d, y + i, count); });
}

// y[i] = f(a[i * A], b[i * B]), where A and B are 1 or 0 (0: one value for all).
template <int A, int B, typename TA, typename TB, typename T, class F>
HWY_INLINE void Map2(const TA* a, const TB* b, T* y, int64_t n, F f) {
  if (n <= 0) return;
  const hn::ScalableTag<Lane<T>> d;
  const auto a0 = hn::Set(d, static_cast<Lane<T>>(*a)), b0 = hn::Set(d, static_cast<Lane<T>>(*b));
  ForVectors<Lane<T>>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    auto va = a0, vb = b0;
    if constexpr (A) va = LoadUpTo(d, a + i, count);
    if constexpr (B) vb = LoadUpTo(d, b + i, count);
    StoreUpTo(f(d, va, vb), d, y + i, count);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#endif
