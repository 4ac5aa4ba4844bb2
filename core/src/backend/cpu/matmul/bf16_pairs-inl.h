// Products of bfloat16 values in pairs: two neighbours along k are a word of 32 bits, the even one in its
// lower half, and both of their products are added to a sum in float. Words are kept in the place of floats,
// so that the tiles of backend/cpu/matmul/product_tiles-inl.h multiply them. For how it is compiled see
// backend/cpu/simd/simd_math-inl.h.

#if defined(ORTRAIN_BF16_PAIRS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_BF16_PAIRS_INL_H_
#undef ORTRAIN_BF16_PAIRS_INL_H_
#else
#define ORTRAIN_BF16_PAIRS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/bf16_rounding-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

#ifdef ORTRAIN_HAS_NATIVE_WORDS
// The words of low[i] and high[i].
template <class V>
HWY_INLINE auto NativeWords(V low, V high) {
  const hn::ScalableTag<uint32_t> word;
  const auto lanes = hn::Iota(word, 0u);
  const auto index = hn::Or(lanes, hn::ShiftLeft<16>(hn::Add(lanes, hn::Set(word, 16u))));
  return Vec<decltype(word)>{_mm512_permutexvar_epi16(index.raw, NativeHalves(low, high).raw)};
}
#endif

// The k values from `from` as words, and zeros up to the next `group` values. Not inlined, because the memory
// is read in another type.
inline HWY_NOINLINE void ToWords(const BFloat16* from, int64_t k, BFloat16* to, int64_t group = 2) {
  std::copy_n(from, k, to);
  for (; k % group; ++k) to[k] = BFloat16(0.0f);
}
inline HWY_NOINLINE void ToWords(const float* from, int64_t k, BFloat16* to, int64_t group = 2) {
  const hn::ScalableTag<float> d;
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  const hn::ScalableTag<uint16_t> half;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const bool native = has_bf16_instructions();
  for (; native && k >= 2 * kLanes; k -= 2 * kLanes, from += 2 * kLanes, to += 2 * kLanes)
    hn::StoreU(NativeHalves(hn::LoadU(d, from), hn::LoadU(d, from + kLanes)), half, &to->bits);
#endif
  ForVectors<float>(k, [&](int64_t i, int64_t count)
                           HWY_ATTR { StoreUpTo(LoadUpTo(d, from + i, count), d, to + i, count); });
  for (; k % group; ++k) to[k] = BFloat16(0.0f);
}

// to[i] = the word of low[i] and high[i] for i < n; `high` may be null, for zeros.
HWY_INLINE void JoinHalves(const BFloat16* low, const BFloat16* high, int64_t n, uint32_t* to) {
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint16_t, decltype(d)> half;
  const int64_t lanes = LanesOf<float>();
  const auto join = [&](int64_t i) HWY_ATTR {
    auto word = hn::PromoteTo(d, hn::LoadU(half, &low[i].bits));
    if (high) word = hn::Or(word, hn::ShiftLeft<16>(hn::PromoteTo(d, hn::LoadU(half, &high[i].bits))));
    hn::StoreU(word, d, to + i);
  };
  int64_t i = 0;
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  // Two vectors of words at a time.
  const hn::ScalableTag<uint16_t> both;
  const auto first = hn::Iota(d, 0u),
             places = hn::Or(first, hn::ShiftLeft<16>(hn::Add(first, hn::Set(d, 32u))));
  const auto next = hn::Add(places, hn::Set(d, 0x100010u));
  for (; high && i + 2 * lanes <= n; i += 2 * lanes) {
    const auto x = hn::LoadU(both, &low[i].bits), y = hn::LoadU(both, &high[i].bits);
    const auto choose = [&](auto from) HWY_ATTR {
      return Vec<decltype(d)>{_mm512_permutex2var_epi16(x.raw, from.raw, y.raw)};
    };
    hn::StoreU(choose(places), d, to + i);
    hn::StoreU(choose(next), d, to + i + lanes);
  }
#endif
  for (; i + lanes <= n; i += lanes) join(i);
  // The last vector may repeat some words.
  if (i < n && n >= lanes) return join(n - lanes);
  for (; i < n; ++i) to[i] = low[i].bits | (high ? static_cast<uint32_t>(high[i].bits) << 16 : 0);
}

inline HWY_NOINLINE void JoinRows(const BFloat16* low, const BFloat16* high, int64_t n, uint32_t* to) {
  JoinHalves(low, high, n, to);
}
inline HWY_NOINLINE void JoinRows(const float* low, const float* high, int64_t n, uint32_t* to) {
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> word;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const bool native = high && has_bf16_instructions();
  for (; native && n >= kLanes; n -= kLanes, low += kLanes, high += kLanes, to += kLanes)
    hn::StoreU(NativeWords(hn::LoadU(d, low), hn::LoadU(d, high)), word, to);
#endif
  constexpr int64_t kRun = 64;
  BFloat16 halves[2][kRun];
  for (int64_t i = 0; i < n; i += kRun) {
    const int64_t count = HWY_MIN(kRun, n - i);
    ToWords(low + i, count, halves[0]);
    if (high) ToWords(high + i, count, halves[1]);
    JoinHalves(halves[0], high ? halves[1] : nullptr, count, to + i);
  }
}

// Whether rows of k values, `row` apart, can be read as words without a copy.
template <typename T>
bool AreWords(const T* from, int64_t row, int64_t k) {
  return std::is_same_v<T, BFloat16> && k % 2 == 0 && row % 2 == 0 &&
         reinterpret_cast<uintptr_t>(from) % sizeof(uint32_t) == 0;
}

// Words of the matrix B [k, n], whose row i begins at b + i * row, as a packed right operand.
template <typename T>
void PackPairsAlong(const T* b, int64_t row, int64_t k, int64_t n, float* packed) {
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(T);
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes, words = (k + 1) / 2;
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j), stored = (used + lanes - 1) / lanes * lanes;
    uint32_t* to = reinterpret_cast<uint32_t*>(packed + j * words);
    for (int64_t w = 0; w < words; ++w, to += stored) {
      const T* low = b + 2 * w * row + j;
      // Rows are far apart, so processors do not prefetch the next ones. Rows of bfloat16 are half as long;
      // there, prefetching took 1.04 of the time.
      for (int64_t c = 0; std::is_same_v<T, float> && c < used; c += kLine)
        for (int64_t r = 0; r < 2; ++r) hwy::Prefetch(low + (2 * kAhead + r) * row + c);
      JoinRows(low, 2 * w + 1 < k ? low + row : nullptr, used, to);
      std::fill(to + used, to + stored, 0u);
    }
  }
}

// Packs the words of the matrix Bᵀ, whose column j begins at b + j * row. `turned` is memory for a panel of
// it.
template <typename T>
void PackPairsAcross(const T* b, int64_t row, int64_t k, int64_t n, float* turned, float* packed) {
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes, words = (k + 1) / 2;
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j);
    uint32_t* to = reinterpret_cast<uint32_t*>(packed + j * words);
    if (AreWords(b + j * row, row, k)) {
      PackAcross(reinterpret_cast<const uint32_t*>(b + j * row), row / 2, words, used, uint32_t{1}, to);
      continue;
    }
    for (int64_t c = 0; c < used; ++c)
      ToWords(b + (j + c) * row, k, reinterpret_cast<BFloat16*>(turned + c * words));
    PackAcross(reinterpret_cast<const uint32_t*>(turned), words, words, used, uint32_t{1}, to);
  }
}

// Both products of two words are added to the sum.
struct WidenedPairs {
  template <class V>
  static HWY_INLINE V Run(V a, V b, V sum) {
    const hn::ScalableTag<float> d;
    const hn::RebindToUnsigned<decltype(d)> bits;
    const auto even = [&](V v) HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(bits, v))); };
    const auto odd = [&](V v) HWY_ATTR { return hn::And(v, hn::BitCast(d, hn::Set(bits, 0xffff0000u))); };
    return hn::MulAdd(odd(a), odd(b), hn::MulAdd(even(a), even(b), sum));
  }
};

// Multiplies with the processor's instruction, which Highway 1.0 does not have, where bf16_products() finds
// it.
#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
constexpr bool kHasNativePairs = true;
struct NativePairs {
  template <class V>
  static HWY_INLINE V Run(V a, V b, V sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
    return sum;
  }
};
#else
constexpr bool kHasNativePairs = false;
using NativePairs = WidenedPairs;
#endif

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#endif  // ORTRAIN_BF16_PAIRS_INL_H_
