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
#include "runtime/system.h"

#undef ORTRAIN_HAS_QUADS

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

using I32 = hn::CappedTag<int32_t, kLargestPanel / 4>;
using V32 = Vec<I32>;

inline int64_t Lanes() { return static_cast<int64_t>(hn::Lanes(I32())); }

// How words are multiplied. kVectors: vectors of a panel; 6 x 4 sums of one part fit in 32 registers. `rest`
// is a second part of the sums on processors whose instructions need it.

// Pairs of 16-bit integers, whose products fit in 32 bits.
struct Pairs {
  static constexpr int64_t kGroup = 2;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  static constexpr int64_t kVectors = 4;
#else
  static constexpr int64_t kVectors = 2;
#endif
  static constexpr CodeShift kLeft = {0, 0}, kRight = {0, 0};

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

#if HWY_ARCH_X86_64 && (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2)
#define ORTRAIN_HAS_QUADS 1
#elif HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON
#define ORTRAIN_HAS_QUADS 1
// Assemblers accept the instruction only where they know that the processor may have it, and GNU's only after
// ARMv8.2, which has SVE. The directive also holds for the code that follows.
#if defined(__ARM_FEATURE_DOTPROD)
#define ORTRAIN_DOT_PRODUCTS ""
#elif defined(__ARM_FEATURE_SVE)
#define ORTRAIN_DOT_PRODUCTS ".arch_extension dotprod\n\t"
#else
#define ORTRAIN_DOT_PRODUCTS ".arch armv8.2-a+crypto+fp16+dotprod\n\t"
#endif
#else
#define ORTRAIN_HAS_QUADS 0
#endif

#if ORTRAIN_HAS_QUADS
// Four times four integers of 8 bits. Highway 1.0 has no such operation. On x86 those of A are unsigned and
// those of B are signed, on arm64 all are signed.
struct Quads {
  static constexpr int64_t kGroup = 4;
  static constexpr int64_t kVectors = HWY_ARCH_X86 ? Pairs::kVectors : 4;
  static constexpr CodeShift kLeft = HWY_ARCH_X86 ? CodeShift{0, 128} : CodeShift{-128, 0};
  static constexpr CodeShift kRight = {-128, 0};

  static HWY_INLINE void MulAdd(V32 a, V32 b, V32& sum, V32&) {
#if HWY_ARCH_ARM_A64
    asm(ORTRAIN_DOT_PRODUCTS "sdot %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(a.raw), "w"(b.raw));
#elif HWY_TARGET == HWY_AVX3
    asm("vpdpbusd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
#else
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
#endif
  }
  static HWY_INLINE V32 Total(V32 sum, V32) { return sum; }
};
#undef ORTRAIN_DOT_PRODUCTS

// Whether this processor has the instruction of Quads.
inline bool MultipliesQuads() {
#if HWY_ARCH_ARM_A64
  return system::arm_instructions().dot_products;
#elif HWY_TARGET == HWY_AVX3
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
