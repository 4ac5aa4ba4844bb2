#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/quantization.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;
using F64 = hn::ScalableTag<double>;

int64_t LanesOf(F32 d) { return static_cast<int64_t>(hn::Lanes(d)); }
int64_t LanesOf(F64 d) { return static_cast<int64_t>(hn::Lanes(d)); }

ValueRange RangeWithZero(const float* x, int64_t n) {
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

void QuantizeToUint8(const float* x, int64_t n, float scale, uint8_t zero, uint8_t* y) {
  const F32 d;
  const hn::Rebind<int32_t, F32> integers;
  const hn::Rebind<uint8_t, F32> codes;
  const int64_t lanes = LanesOf(d);
  const auto s = hn::Set(d, scale), offset = hn::Set(d, static_cast<float>(zero));
  const auto lowest = hn::Neg(offset), highest = hn::Sub(hn::Set(d, 255.0f), offset);
  for (int64_t i = 0; i < n; i += lanes) {
    const auto v = hn::Div(LoadUpTo(d, x + i, n - i), s);
    // Written so that NaN becomes the lowest.
    const auto low = hn::IfThenElse(hn::Gt(v, lowest), v, lowest);
    const auto q = hn::Add(hn::Round(hn::IfThenElse(hn::Lt(low, highest), low, highest)), offset);
    StoreUpTo(hn::DemoteTo(codes, hn::ConvertTo(integers, q)), codes, y + i, n - i);
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
  auto factor = hn::Set(d, how.left * static_cast<double>(how.right[0]) / how.divisor);
  for (int64_t i = 0; i < n; i += lanes) {
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

void RequantizeUnsigned(const int32_t* sums, int64_t n, const Requantization& how, uint8_t* y) {
  Requantize(sums, n, how, y);
}
void RequantizeSigned(const int32_t* sums, int64_t n, const Requantization& how, int8_t* y) {
  Requantize(sums, n, how, y);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {
HWY_EXPORT(RangeWithZero);
HWY_EXPORT(QuantizeToUint8);
HWY_EXPORT(RequantizeUnsigned);
HWY_EXPORT(RequantizeSigned);
}  // namespace

ValueRange range_with_zero(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(RangeWithZero)(x, n); }

DynamicQuantization dynamic_quantization(const ValueRange& range) {
  const float scale = range.high > range.low ? (range.high - range.low) / 255 : 1;
  // Written so that NaN, of infinite values, becomes 0.
  const float zero = -range.low / scale > 0 ? std::min(-range.low / scale, 255.0f) : 0.0f;
  return {scale, static_cast<uint8_t>(std::nearbyint(zero))};
}

void quantize_to_uint8(const float* x, int64_t n, float scale, uint8_t zero, uint8_t* y) {
  HWY_DYNAMIC_DISPATCH(QuantizeToUint8)(x, n, scale, zero, y);
}

template <>
void requantize<uint8_t>(const int32_t* sums, int64_t n, const Requantization& how, uint8_t* y) {
  HWY_DYNAMIC_DISPATCH(RequantizeUnsigned)(sums, n, how, y);
}
template <>
void requantize<int8_t>(const int32_t* sums, int64_t n, const Requantization& how, int8_t* y) {
  HWY_DYNAMIC_DISPATCH(RequantizeSigned)(sums, n, how, y);
}

}  // namespace ortrain
#endif
