// Sums of products of 8-bit integers become codes: code = clamp(round(sum factor) + zero), halves to even, as
// if computed in double. The product is computed in float; where it is so near to the middle between two
// integers that float may round it to the other one, the vector is computed again in double. For how it is
// compiled see backend/cpu/simd/simd_math-inl.h.

#if defined(ORTRAIN_REQUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_REQUANTIZE_INL_H_
#undef ORTRAIN_REQUANTIZE_INL_H_
#else
#define ORTRAIN_REQUANTIZE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

// The first `count` lanes, by the rule itself; factors are `step` apart.
template <class D>
HWY_NOINLINE Vec<D> RequantizeExactly(D d, Vec<D> sums, const double* factors, int64_t step, int64_t count,
                                      CodeRange range) {
  HWY_ALIGN int32_t lanes[hn::MaxLanes(d)];
  hn::Store(sums, d, lanes);
  for (int64_t i = 0; i < count; ++i) {
    const double code = std::nearbyint(lanes[i] * factors[i * step]) + range.zero;
    lanes[i] = static_cast<int32_t>(
        std::clamp(code, static_cast<double>(range.lowest), static_cast<double>(range.highest)));
  }
  return hn::Load(d, lanes);
}

// The bytes of the codes of a vector of sums. `narrow` are the factors as floats, of which none is greater
// than kLargestFactor. Lanes from `count` on are undefined.
template <class D>
HWY_INLINE Vec<hn::Rebind<uint8_t, D>> RequantizedBytes(D d, Vec<D> sums, Vec<hn::Rebind<float, D>> narrow,
                                                        const double* factors, int64_t step, int64_t count,
                                                        const CodeRange& range) {
  const hn::Rebind<float, D> floats;
  const hn::RebindToUnsigned<D> words;
  const hn::Rebind<uint8_t, D> bytes;
  // Numbers of this size have no bits for a fraction, and the lowest bits of zero + kShift are those of zero.
  constexpr float kShift = 0x1.8p23f;
  // The sum, the factor and the product are rounded, each by 2^-24 of a magnitude that is at most 2^8 after
  // the clamping, so that the error is below 2^-13.
  const auto least = hn::Set(floats, static_cast<float>(range.lowest - range.zero));
  const auto most = hn::Set(floats, static_cast<float>(range.highest - range.zero));
  const auto shift = hn::Set(floats, kShift + static_cast<float>(range.zero));
  const auto product = hn::Min(hn::Max(hn::Mul(hn::ConvertTo(floats, sums), narrow), least), most);
  const auto shifted = hn::Add(product, shift);
  const auto distance = hn::Abs(hn::Sub(product, hn::Sub(shifted, shift)));
  auto codes = hn::BitCast(words, shifted);
  if (HWY_UNLIKELY(!hn::AllFalse(floats, hn::Ge(distance, hn::Set(floats, 0.5f - 0x1p-12f)))))
    codes = hn::BitCast(words, RequantizeExactly(d, sums, factors, step, count, range));
  return hn::TruncateTo(bytes, codes);
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();
#endif  // ORTRAIN_REQUANTIZE_INL_H_
