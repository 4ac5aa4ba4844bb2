#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/quantization.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/elementwise/requantize-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_QUANTIZATION_TYPES
#define ORTRAIN_QUANTIZATION_TYPES
namespace ortrain {

template <typename Q>
struct QuantizationLoops {
  void (*quantize)(const float* x, int64_t n, float scale, Q zero, Q* y);
  void (*dequantize)(const Q* x, int64_t n, float scale, Q zero, float* y);
  void (*requantize)(const int32_t* sums, int64_t n, const Requantization& how, Q* y);
};

struct QuantizationFunctions {
  FloatRange (*range)(const float* x, int64_t n);
  QuantizationLoops<uint8_t> of_unsigned;
  QuantizationLoops<int8_t> of_signed;
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;
using F64 = hn::ScalableTag<double>;

int64_t LanesOf(F32 d) { return static_cast<int64_t>(hn::Lanes(d)); }
int64_t LanesOf(F64 d) { return static_cast<int64_t>(hn::Lanes(d)); }

FloatRange RangeWithZero(const float* x, int64_t n) {
  const F32 d;
  const int64_t lanes = LanesOf(d);
  auto low0 = hn::Zero(d), low1 = low0, high0 = low0, high1 = low0;
  // Comparisons with NaN are false.
  const auto include = [&](Vec<F32> v, Vec<F32>& low, Vec<F32>& high) HWY_ATTR {
    low = hn::IfThenElse(hn::Lt(v, low), v, low);
    high = hn::IfThenElse(hn::Gt(v, high), v, high);
  };
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    include(hn::LoadU(d, x + i), low0, high0);
    include(hn::LoadU(d, x + i + lanes), low1, high1);
  }
  for (; i < n; i += lanes) include(LoadUpTo(d, x + i, n - i), low0, high0);
  return {hn::GetLane(hn::MinOfLanes(d, hn::Min(low0, low1))),
          hn::GetLane(hn::MaxOfLanes(d, hn::Max(high0, high1)))};
}

template <typename Q>
void Quantize(const float* x, int64_t n, float scale, Q zero, Q* y) {
  const F32 d;
  const hn::Rebind<int32_t, F32> integers;
  const hn::Rebind<Q, F32> codes;
  const int64_t lanes = LanesOf(d);
  const auto s = hn::Set(d, scale), offset = hn::Set(d, static_cast<float>(zero));
  const auto lowest = hn::Sub(hn::Set(d, float{std::numeric_limits<Q>::min()}), offset);
  const auto highest = hn::Sub(hn::Set(d, float{std::numeric_limits<Q>::max()}), offset);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto v = hn::Div(LoadUpTo(d, x + i, n - i), s);
    // Written so that NaN becomes the lowest.
    const auto low = hn::IfThenElse(hn::Gt(v, lowest), v, lowest);
    const auto q = hn::Add(hn::Round(hn::IfThenElse(hn::Lt(low, highest), low, highest)), offset);
    StoreUpTo(hn::DemoteTo(codes, hn::ConvertTo(integers, q)), codes, y + i, n - i);
  }
}

template <typename Q>
void Dequantize(const Q* x, int64_t n, float scale, Q zero, float* y) {
  const F32 d;
  const hn::Rebind<int32_t, F32> integers;
  const hn::Rebind<Q, F32> codes;
  const int64_t lanes = LanesOf(d);
  const auto s = hn::Set(d, scale);
  const auto offset = hn::Set(integers, int32_t{zero});
  for (int64_t i = 0; i < n; i += lanes) {
    const auto q = hn::Sub(hn::PromoteTo(integers, LoadUpTo(codes, x + i, n - i)), offset);
    StoreUpTo(hn::Mul(hn::ConvertTo(d, q), s), d, y + i, n - i);
  }
}

template <typename Q>
void Requantize(const int32_t* sums, int64_t n, const Requantization& how, Q* y) {
  const F64 d;
  const hn::Rebind<int32_t, F64> integers;
  const hn::Rebind<float, F64> floats;
  const hn::Rebind<Q, F64> codes;
  const int64_t lanes = LanesOf(d);
  const auto left = hn::Set(d, how.left), divisor = hn::Set(d, how.divisor), zero = hn::Set(d, how.zero);
  const auto lowest = hn::Set(d, double{std::numeric_limits<Q>::min()});
  const auto highest = hn::Set(d, double{std::numeric_limits<Q>::max()});
  const double one = how.left * static_cast<double>(how.right[0]) / how.divisor;
  auto factor = hn::Set(d, one);
  int64_t i = 0;
  if (!how.each && std::abs(one) <= kLargestFactor) {
    const hn::ScalableTag<int32_t> words;
    const hn::Rebind<uint8_t, decltype(words)> bytes;
    const CodeRange range = {static_cast<int32_t>(how.zero), std::numeric_limits<Q>::min(),
                             std::numeric_limits<Q>::max()};
    const auto narrow = hn::Set(hn::Rebind<float, decltype(words)>(), static_cast<float>(one));
    const auto step = static_cast<int64_t>(hn::Lanes(words));
    for (; i < n; i += step) {
      const int64_t count = std::min(step, n - i);
      StoreUpTo(RequantizedBytes(words, LoadUpTo(words, sums + i, n - i), narrow, &one, 0, count, range),
                bytes, reinterpret_cast<uint8_t*>(y) + i, count);
    }
  }
  for (; i < n; i += lanes) {
    if (how.each)
      factor = hn::Div(hn::Mul(left, hn::PromoteTo(d, LoadUpTo(floats, how.right + i, n - i))), divisor);
    const auto sum = hn::PromoteTo(d, LoadUpTo(integers, sums + i, n - i));
    const auto q = hn::Add(hn::Round(hn::Mul(sum, factor)), zero);
    // Written so that NaN becomes the lowest.
    const auto low = hn::IfThenElse(hn::Gt(q, lowest), q, lowest);
    const auto in_range = hn::IfThenElse(hn::Lt(low, highest), low, highest);
    StoreUpTo(hn::DemoteTo(codes, hn::DemoteTo(integers, in_range)), codes, y + i, n - i);
  }
}

QuantizationFunctions FindQuantization() {
  return {RangeWithZero,
          {Quantize<uint8_t>, Dequantize<uint8_t>, Requantize<uint8_t>},
          {Quantize<int8_t>, Dequantize<int8_t>, Requantize<int8_t>}};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

template <typename Q>
QuantizationLoops<Q> loops() {
  const QuantizationFunctions functions = ORTRAIN_DISPATCH(FindQuantization)();
  if constexpr (std::is_signed_v<Q>)
    return functions.of_signed;
  else
    return functions.of_unsigned;
}

}  // namespace

FloatRange range_with_zero(const float* x, int64_t n) {
  return ORTRAIN_DISPATCH(FindQuantization)().range(x, n);
}

DynamicQuantization dynamic_quantization(const FloatRange& range) {
  const float scale = range.high > range.low ? (range.high - range.low) / 255 : 1;
  // Written so that NaN, of infinite values, becomes 0.
  const float zero = -range.low / scale > 0 ? std::min(-range.low / scale, 255.0f) : 0.0f;
  return {scale, static_cast<uint8_t>(std::nearbyint(zero))};
}

template <typename Q>
void quantize(const float* x, int64_t n, float scale, Q zero, Q* y) {
  loops<Q>().quantize(x, n, scale, zero, y);
}

template <typename Q>
void dequantize(const Q* x, int64_t n, float scale, Q zero, float* y) {
  loops<Q>().dequantize(x, n, scale, zero, y);
}

template <typename Q>
void requantize(const int32_t* sums, int64_t n, const Requantization& how, Q* y) {
  loops<Q>().requantize(sums, n, how, y);
}

template <typename Q>
Requantizer<Q> requantizer() {
  return loops<Q>().requantize;
}

#define ORTRAIN_QUANTIZATION(Q)                                     \
  template void quantize<Q>(const float*, int64_t, float, Q, Q*);   \
  template void dequantize<Q>(const Q*, int64_t, float, Q, float*); \
  template Requantizer<Q> requantizer<Q>();                         \
  template void requantize<Q>(const int32_t*, int64_t, const Requantization&, Q*)
ORTRAIN_QUANTIZATION(uint8_t);
ORTRAIN_QUANTIZATION(int8_t);

}  // namespace ortrain
#endif
