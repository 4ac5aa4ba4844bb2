// Philox-4x32-10 on vectors: each lane has its own counter.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dropout_random.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/random.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

void RandomWords(uint64_t key, uint64_t high, uint64_t first, int64_t blocks, uint32_t* words) {
  int64_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  // One counter per lane; the rounds are those of philox().
  const hn::ScalableTag<uint32_t> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto word = [d](uint64_t value) HWY_ATTR { return hn::Set(d, static_cast<uint32_t>(value)); };
  const auto upper = [d](auto a, auto b) HWY_ATTR {
    const auto even = hn::BitCast(d, hn::MulEven(a, b));
    const auto odd = hn::BitCast(d, hn::MulEven(hn::DupOdd(a), b));
    return hn::OddEven(odd, hn::DupOdd(even));
  };
  const auto multiplier0 = word(0xD2511F53u), multiplier1 = word(0xCD9E8D57u);
  for (; done + lanes <= blocks; done += lanes) {
    const uint64_t start = first + static_cast<uint64_t>(done);
    auto c0 = hn::Iota(d, static_cast<uint32_t>(start)), c1 = word(start >> 32);
    // Lanes that passed the end of the lower word carry into the next.
    c1 = hn::IfThenElse(hn::Lt(c0, word(start)), hn::Add(c1, word(1)), c1);
    auto c2 = word(high), c3 = word(high >> 32);
    uint64_t k0 = key & 0xFFFFFFFFu, k1 = key >> 32;
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const auto n0 = hn::Xor(hn::Xor(upper(c2, multiplier1), c1), word(k0));
      const auto n2 = hn::Xor(hn::Xor(upper(c0, multiplier0), c3), word(k1));
      c1 = hn::Mul(c2, multiplier1);
      c3 = hn::Mul(c0, multiplier0);
      c0 = n0;
      c2 = n2;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, d, words + 4 * done);
  }
#endif
  for (; done < blocks; ++done) {
    const auto drawn = philox(key, high, first + static_cast<uint64_t>(done));
    for (int k = 0; k < 4; ++k) words[4 * done + k] = drawn[static_cast<size_t>(k)];
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "backend/cpu/dropout_random.h"

namespace ortrain {

void random_words(uint64_t key, uint64_t high, uint64_t first, int64_t blocks, uint32_t* words) {
  ORTRAIN_DISPATCH(RandomWords)(key, high, first, blocks, words);
}

}  // namespace ortrain
#endif
