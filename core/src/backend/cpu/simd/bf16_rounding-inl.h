// Floats rounded to bfloat16 with the instructions of x86 processors, where has_bf16_instructions() finds
// them. For how it is compiled see backend/cpu/simd/simd_math-inl.h.

#if defined(ORTRAIN_BF16_ROUNDING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_BF16_ROUNDING_INL_H_
#undef ORTRAIN_BF16_ROUNDING_INL_H_
#else
#define ORTRAIN_BF16_ROUNDING_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

#undef ORTRAIN_HAS_NATIVE_WORDS
#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
#define ORTRAIN_HAS_NATIVE_WORDS 1
// Both vectors rounded to bfloat16, one after the other, by an instruction that Highway 1.0 does not have. It
// rounds numbers below 2^-126 to zero; products in bfloat16 treat them as zero anyway.
template <class V>
HWY_INLINE auto NativeHalves(V first, V second) {
  auto halves = hn::Zero(hn::ScalableTag<uint16_t>());
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves.raw) : "v"(first.raw), "v"(second.raw));
  return halves;
}

// The next `count` values, rounded in the same way.
template <class D>
HWY_INLINE void StoreNative(Vec<D> v, D, BFloat16* to, int64_t count) {
  const hn::Rebind<uint16_t, D> half;
  auto narrow = hn::Zero(half);
  asm("vcvtneps2bf16 %1, %0" : "=v"(narrow.raw) : "v"(v.raw));
  if (count >= static_cast<int64_t>(hn::Lanes(half))) return hn::StoreU(narrow, half, &to->bits);
  HWY_ALIGN uint16_t lanes[hn::MaxLanes(half)];
  hn::Store(narrow, half, lanes);
  std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(uint16_t));
}
#endif

// to[i] = from[i] for i < n, exactly as StoreUpTo() rounds.
inline HWY_NOINLINE void RoundAll(const float* from, int64_t n, BFloat16* to) {
  const hn::ScalableTag<float> d;
  const auto round = [&](int64_t i, int64_t count)
                         HWY_ATTR { StoreUpTo(LoadUpTo(d, from + i, count), d, to + i, count); };
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  constexpr int64_t kLanes = hn::MaxLanes(d), kDenormal = 0x20;
  const bool native = has_bf16_instructions();
  for (; native && n >= 2 * kLanes; n -= 2 * kLanes, from += 2 * kLanes, to += 2 * kLanes) {
    const auto first = hn::LoadU(d, from), last = hn::LoadU(d, from + kLanes);
    hn::StoreU(NativeHalves(first, last), hn::ScalableTag<uint16_t>(), &to->bits);
    if (HWY_UNLIKELY((_mm512_fpclass_ps_mask(first.raw, kDenormal) |
                      _mm512_fpclass_ps_mask(last.raw, kDenormal)) != 0))
      round(0, kLanes), round(kLanes, kLanes);
  }
#endif
  ForVectors<float>(n, round);
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#endif  // ORTRAIN_BF16_ROUNDING_INL_H_
