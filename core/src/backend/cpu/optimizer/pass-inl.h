// The loops of optimizers over contiguous memory. A declaration states the update of one element:
//
//     struct Lion {
//       static constexpr size_t kStates = 1;
//       template <typename T> struct Factors { T rate, kept, beta1, beta2; };  // nothing but T
//       template <class S>                                                     // once per step
//       static Factors<typename S::Number> factors(const S& s);
//       template <class E, class F> static void update(E& e, const F& f) {     // e.w, e.g, e.s[0]
//         e.w = e.w * f.kept - f.rate * sign(mix(e.s[0], e.g, f.beta1));
//         e.s[0] = mix(e.s[0], e.g, f.beta2);
//       }
//     };
//
// An expression handles one vector of elements, and is compiled for each instruction set
// (simd/simd_math-inl.h says how). e.g is scaled already, except where kScaledRate says that the rate has the
// scale. Both functions also run with symbols, which records the step as a formula (formula.h): whatever
// depends on the rate, the step or a scalar is computed with operators and the functions of rule.h, and
// `choose` takes the place of a branch.
#if defined(ORTRAIN_OPTIMIZER_PASS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_OPTIMIZER_PASS_INL_H_
#undef ORTRAIN_OPTIMIZER_PASS_INL_H_
#else
#define ORTRAIN_OPTIMIZER_PASS_INL_H_
#endif

#include <hwy/highway.h>
// After highway.h
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu/optimizer/formula.h"
#include "backend/cpu/optimizer/rule.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A vector of elements as a number.
template <class D>
struct Number {
  using T = hn::TFromD<D>;
  hn::Vec<D> v;

  Number() = default;
  HWY_INLINE Number(T value) : v(hn::Set(D(), value)) {}
  HWY_INLINE Number(hn::Vec<D> value) : v(value) {}

  friend HWY_INLINE Number operator+(Number a, Number b) { return hn::Add(a.v, b.v); }
  friend HWY_INLINE Number operator-(Number a, Number b) { return hn::Sub(a.v, b.v); }
  friend HWY_INLINE Number operator*(Number a, Number b) { return hn::Mul(a.v, b.v); }
  friend HWY_INLINE Number operator/(Number a, Number b) { return hn::Div(a.v, b.v); }
  friend HWY_INLINE Number sqrt(Number a) { return hn::Sqrt(a.v); }
  friend HWY_INLINE Number abs(Number a) { return hn::Abs(a.v); }
  friend HWY_INLINE Number max(Number a, Number b) { return hn::Max(a.v, b.v); }
  friend HWY_INLINE Number sign(Number a) {
    return hn::IfThenZeroElse(hn::Eq(a.v, hn::Zero(D())), hn::CopySign(hn::Set(D(), T(1)), a.v));
  }
  friend HWY_INLINE Number at_least_normal(Number a) { return max(a, std::numeric_limits<T>::min()); }
  // a b + c and c - a b, rounded once where the instruction set allows it.
  friend HWY_INLINE Number mul_add(Number a, Number b, Number c) { return hn::MulAdd(a.v, b.v, c.v); }
  friend HWY_INLINE Number neg_mul_add(Number a, Number b, Number c) { return hn::NegMulAdd(a.v, b.v, c.v); }
  // The moving average: kept · average + (1 - kept) · x.
  friend HWY_INLINE Number mix(Number average, Number x, T kept) {
    return mul_add(kept, average, Number(1 - kept) * x);
  }
  friend HWY_INLINE Number mix_squares(Number average, Number x, T kept) {
    return mul_add(kept, average, Number(1 - kept) * (x * x));
  }
};

// The states of a weight whose gradient is zero, after a dead Relu or for a token that does not occur, decay
// until they are denormal, and arithmetic on denormals takes a hundred times as long.
template <class D>
HWY_INLINE Number<D> without_denormals(Number<D> x) {
  const auto normal = hn::Set(D(), std::numeric_limits<hn::TFromD<D>>::min());
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(x.v), normal), x.v);
}

template <class D, size_t kStates>
struct Element {
  Number<D> w, g;
  std::array<Number<D>, kStates> s;
};

template <class Rule>
constexpr bool scales_rate() {
  if constexpr (requires { Rule::kScaledRate; }) return Rule::kScaledRate;
  return false;
}

template <class Rule, class D, typename T = hn::TFromD<D>>
HWY_INLINE Element<D, Rule::kStates> load(D d, const T* w, const T* g, T* const* s, int64_t i, T scale) {
  Element<D, Rule::kStates> e;
  e.w = hn::LoadU(d, w + i);
  e.g = hn::LoadU(d, g + i);
  if constexpr (!scales_rate<Rule>()) e.g = e.g * scale;
  for (size_t k = 0; k < Rule::kStates; ++k) e.s[k] = hn::LoadU(d, s[k] + i);
  return e;
}

template <class D, size_t kStates, typename T = hn::TFromD<D>>
HWY_INLINE void store_states(D d, const Element<D, kStates>& e, T* const* s, int64_t i) {
  for (size_t k = 0; k < kStates; ++k) hn::StoreU(without_denormals(e.s[k]).v, d, s[k] + i);
}

// Copies of the values that the loops read, so that stores to the arrays cannot change them.
template <class Rule, typename T>
struct Given {
  typename Rule::template Factors<T> factors;
  std::array<T*, Rule::kStates + 1> states{};

  Given(const T* from, T* const* s) {
    std::memcpy(static_cast<void*>(&factors), from, sizeof factors);
    for (size_t k = 0; k < Rule::kStates; ++k) states[k] = s[k];
  }
};

template <class Rule, typename T>
void pass(T* w, const T* g, T* const* s, int64_t n, const T* factors, T scale) {
  const Given<Rule, T> given(factors, s);
  const auto at = [&](auto d, int64_t i) HWY_ATTR {
    auto e = load<Rule>(d, w, g, given.states.data(), i, scale);
    Rule::update(e, given.factors);
    store_states(d, e, given.states.data(), i);
    hn::StoreU(e.w.v, d, w + i);
  };
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) at(d, i);
  for (; i < n; ++i) at(hn::CappedTag<T, 1>(), i);
}

// The first pass of a rule with sums: Rule::measure(e, f, sum).
template <class Rule, typename T>
void measure_pass(const T* w, const T* g, T* const* s, int64_t n, const T* factors, T scale, double* sums) {
  const Given<Rule, T> given(factors, s);
  const auto at = [&](auto d, int64_t i, auto& sum) HWY_ATTR {
    auto e = load<Rule>(d, w, g, given.states.data(), i, scale);
    Rule::measure(e, given.factors, sum);
    store_states(d, e, given.states.data(), i);
  };
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  std::array<Number<hn::ScalableTag<T>>, Rule::kSums> sum;
  std::array<Number<hn::CappedTag<T, 1>>, Rule::kSums> rest;
  for (size_t k = 0; k < Rule::kSums; ++k) sum[k] = T(0), rest[k] = T(0);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) at(d, i, sum);
  for (; i < n; ++i) at(one, i, rest);
  for (size_t k = 0; k < Rule::kSums; ++k)
    sums[k] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum[k].v))) +
               static_cast<double>(hn::GetLane(rest[k].v));
}

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle

// In the namespace of an instruction set: the functions of a rule for the two types.
#undef ORTRAIN_PASSES
#define ORTRAIN_PASSES(Rule)                                                                             \
  void Rule##_float(float* w, const float* g, float* const* s, int64_t n, const float* f, float scale) { \
    pass<Rule>(w, g, s, n, f, scale);                                                                    \
  }                                                                                                      \
  void Rule##_double(double* w, const double* g, double* const* s, int64_t n, const double* f,           \
                     double scale) {                                                                     \
    pass<Rule>(w, g, s, n, f, scale);                                                                    \
  }
#undef ORTRAIN_MEASURES
#define ORTRAIN_MEASURES(Rule)                                                                               \
  void Rule##_measure_float(const float* w, const float* g, float* const* s, int64_t n, const float* f,      \
                            float scale, double* sums) {                                                     \
    measure_pass<Rule>(w, g, s, n, f, scale, sums);                                                          \
  }                                                                                                          \
  void Rule##_measure_double(const double* w, const double* g, double* const* s, int64_t n, const double* f, \
                             double scale, double* sums) {                                                   \
    measure_pass<Rule>(w, g, s, n, f, scale, sums);                                                          \
  }

#if HWY_ONCE && !defined(ORTRAIN_EXPORT_PASSES)
namespace ortrain {

// The passes of a rule, from the functions that choose the instruction set.
template <class Rule, class Float, class Double>
OptimizerPasses passes_of(Float of_float, Double of_double) {
  using Factors = typename Rule::template Factors<double>;
  static_assert(sizeof(Factors) <= kMostFactors * sizeof(double) && Rule::kStates <= kMostStates);
  const auto prepare = [](const OptimizerStep& step, double* factors) {
    const Factors made = Rule::factors(step);
    std::memcpy(factors, &made, sizeof made);
  };
  constexpr int64_t kCost = Rule::kStates == 0 ? 1 : 2 + static_cast<int64_t>(Rule::kStates);
  OptimizerPasses passes{Rule::kStates, sizeof(Factors) / sizeof(double), 0, kCost, prepare, of_float,
                         of_double};
  if constexpr (kArtifactsPart.is_built) passes.record = record_step<Rule>;
  return passes;
}

template <class Rule, class Float, class Double>
OptimizerPasses with_sums(OptimizerPasses passes, Float measure_float, Double measure_double) {
  static_assert(Rule::kSums <= kMostSums);
  passes.sums = Rule::kSums;
  passes.measure_float = measure_float;
  passes.measure_double = measure_double;
  passes.combine = [](const double* sums, double* factors) {
    typename Rule::template Factors<double> made;
    std::memcpy(static_cast<void*>(&made), factors, sizeof made);
    Rule::combine(sums, made);
    std::memcpy(factors, &made, sizeof made);
  };
  return passes;
}

}  // namespace ortrain

// Defines Rule##_passes().
#define ORTRAIN_EXPORT_PASSES(Rule)                                                                  \
  OptimizerPasses Rule##_passes() {                                                                  \
    return passes_of<HWY_NAMESPACE::Rule>(                                                           \
        [](float* w, const float* g, float* const* s, int64_t n, const float* f, float scale) {      \
          ORTRAIN_DISPATCH(Rule##_float)(w, g, s, n, f, scale);                                      \
        },                                                                                           \
        [](double* w, const double* g, double* const* s, int64_t n, const double* f, double scale) { \
          ORTRAIN_DISPATCH(Rule##_double)(w, g, s, n, f, scale);                                     \
        });                                                                                          \
  }
// Defines Rule##_passes() of a rule with sums.
#define ORTRAIN_EXPORT_PASSES_WITH_SUMS(Rule)                                                            \
  OptimizerPasses Rule##_passes() {                                                                      \
    const OptimizerPasses passes = passes_of<HWY_NAMESPACE::Rule>(                                       \
        [](float* w, const float* g, float* const* s, int64_t n, const float* f, float scale) {          \
          ORTRAIN_DISPATCH(Rule##_float)(w, g, s, n, f, scale);                                          \
        },                                                                                               \
        [](double* w, const double* g, double* const* s, int64_t n, const double* f, double scale) {     \
          ORTRAIN_DISPATCH(Rule##_double)(w, g, s, n, f, scale);                                         \
        });                                                                                              \
    return with_sums<HWY_NAMESPACE::Rule>(                                                               \
        passes,                                                                                          \
        [](const float* w, const float* g, float* const* s, int64_t n, const float* f, float scale,      \
           double* sums) {                                                                               \
          ORTRAIN_DISPATCH(Rule##_measure_float)                                                         \
          (w, g, s, n, f, scale, sums);                                                                  \
        },                                                                                               \
        [](const double* w, const double* g, double* const* s, int64_t n, const double* f, double scale, \
           double* sums) {                                                                               \
          ORTRAIN_DISPATCH(Rule##_measure_double)                                                        \
          (w, g, s, n, f, scale, sums);                                                                  \
        });                                                                                              \
  }
#endif
