// Functions on floats, for values stored in bfloat16: a block of values is widened, computed and rounded in
// the cache. So such a function is compiled only for floats.
#if defined(ORTRAIN_BF16_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_BF16_BLOCKS_INL_H_
#undef ORTRAIN_BF16_BLOCKS_INL_H_
#else
#define ORTRAIN_BF16_BLOCKS_INL_H_
#endif

#include "backend/cpu/simd/bf16_rounding-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// The floats of a block.
struct alignas(64) Block {
  static constexpr int64_t kSize = 512;

  void Widen(const void* from, int64_t begin, int64_t n) {
    const hn::ScalableTag<float> d;
    const auto* halves = static_cast<const BFloat16*>(from) + begin;
    ForVectors<float>(n, [&](int64_t i, int64_t count)
                             HWY_ATTR { StoreUpTo(LoadUpTo(d, halves + i, count), d, values + i, count); });
  }
  void RoundTo(void* to, int64_t begin, int64_t n) const {
    RoundAll(values, n, static_cast<BFloat16*>(to) + begin);
  }

  float values[kSize];
};

// Calls f(begin, count) for the blocks of [0, n).
template <class F>
void ForBlocks(int64_t n, F f) {
  for (int64_t i = 0; i < n; i += Block::kSize) f(i, HWY_MIN(Block::kSize, n - i));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();
#endif
