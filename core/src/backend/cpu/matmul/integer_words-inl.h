// How words of neighboring 8-bit integers are multiplied and summed on each instruction set. For how it is
// compiled see backend/cpu/simd/simd_math-inl.h.

#if defined(ORTRAIN_INTEGER_WORDS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_INTEGER_WORDS_INL_H_
#undef ORTRAIN_INTEGER_WORDS_INL_H_
#else
#define ORTRAIN_INTEGER_WORDS_INL_H_
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "backend/cpu/matmul/integer_product.h"
#include "backend/cpu/simd/simd_math-inl.h"

#undef ORTRAIN_HAS_QUADS

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

using I32 = hn::CappedTag<int32_t, kLargestPanel / 4>;
using V32 = Vec<I32>;

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr int64_t kVectors = 4;  // of a panel; with 32 registers: 6 x 4 sums
#else
constexpr int64_t kVectors = 2;
#endif

inline int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(I32())); }

// How words are multiplied. `rest` is a second part of the sums on processors whose instructions need one.

// Pairs of 16-bit integers, whose products fit in 32 bits.
struct Pairs {
  static constexpr int64_t kGroup = 2;
  static constexpr int32_t kShift = 0;

  static HWY_INLINE void MulAdd(V32 a, V32 b, V32& sum, V32& rest) {
#if HWY_TARGET == HWY_SCALAR
    const V32 low_a = hn::ShiftRight<16>(hn::ShiftLeft<16>(a)),
              low_b = hn::ShiftRight<16>(hn::ShiftLeft<16>(b));
    sum = hn::Add(sum, hn::Mul(low_a, low_b));
    rest = hn::Add(rest, hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b)));
#else
    const hn::Repartition<int16_t, I32> d;
    sum = hn::ReorderWidenMulAccumulate(I32(), hn::BitCast(d, a), hn::BitCast(d, b), sum, rest);
#endif
  }
  static HWY_INLINE V32 Total(V32 sum, V32 rest) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Add(sum, rest);
#else
    return hn::RearrangeToOddPlusEven(sum, rest);
#endif
  }
};

// Four unsigned times four signed integers of 8 bits. Highway 1.0 has no such operation. Signed elements of A
// and unsigned ones of B are shifted by 128.
#if HWY_ARCH_X86_64 && (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2)
#define ORTRAIN_HAS_QUADS 1
struct Quads {
  static constexpr int64_t kGroup = 4;
  static constexpr int32_t kShift = 128;

  static HWY_INLINE void MulAdd(V32 a, V32 b, V32& sum, V32&) {
#if HWY_TARGET == HWY_AVX3
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
#endif
  }
  static HWY_INLINE V32 Total(V32 sum, V32) { return sum; }
};
#else
#define ORTRAIN_HAS_QUADS 0
#endif

#if ORTRAIN_HAS_QUADS
// Whether this processor has the instruction of Quads.
inline bool MultipliesQuads() {
#if HWY_TARGET == HWY_AVX3
  return __builtin_cpu_supports("avx512vnni");
#else
  // Not all compilers know the name of this extension, AVX-VNNI.
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
#endif
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();
#endif  // ORTRAIN_INTEGER_WORDS_INL_H_
