// Highway's choice of the best instruction set. These few functions are all that the core needs of Highway
// beside its headers, so that the core does not link Highway's library.
#include <hwy/targets.h>

#include <atomic>
#include <cstdint>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace hwy {

namespace {

#if HWY_ARCH_X86
struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf) {
  Registers r;
  __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// Finds which registers the operating system saves when it switches between threads.
uint64_t saved_registers() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

template <typename... Bits>
bool has(unsigned flags, Bits... bits) {
  return ((flags >> bits & 1) && ...);
}

int64_t found_targets() {
  constexpr int kPclmul = 1, kSsse3 = 9, kFma = 12, kSse41 = 19, kSse42 = 20, kPopcnt = 23, kAes = 25,
                kXsave = 27, kAvx = 28, kF16c = 29;  // of leaf 1, register c
  constexpr int kBmi = 3, kAvx2 = 5, kBmi2 = 8, kAvx512f = 16, kAvx512dq = 17, kAvx512cd = 28, kAvx512bw = 30,
                kAvx512vl = 31;  // of leaf 7, register b
  constexpr int kLzcnt = 5;      // of leaf 0x80000001, register c
  constexpr uint64_t kAvxState = 0x6, kAvx512State = 0xE6;
  const unsigned basic = cpuid(1).c, extended = cpuid(7).b, amd = cpuid(0x80000001).c;
  int64_t targets = 0;
  const bool sse4 = has(basic, kSsse3, kSse41, kSse42, kPclmul, kAes);
  if (has(basic, kSsse3)) targets |= HWY_SSSE3;
  if (sse4) targets |= HWY_SSE4;
  if (!sse4 || !has(basic, kXsave, kAvx, kFma, kF16c, kPopcnt) || !has(amd, kLzcnt) ||
      !has(extended, kBmi, kAvx2, kBmi2))
    return targets;
  const uint64_t saved = saved_registers();
  if ((saved & kAvxState) == kAvxState) targets |= HWY_AVX2;
  if ((saved & kAvx512State) == kAvx512State &&
      has(extended, kAvx512f, kAvx512dq, kAvx512cd, kAvx512bw, kAvx512vl))
    targets |= HWY_AVX3;
  return targets;
}
#else
// Elsewhere the instruction set of the compiler's options is the only one that is compiled.
int64_t found_targets() { return 0; }
#endif

std::atomic<int64_t> for_test{0};

}  // namespace

int64_t SupportedTargets() {
  static const int64_t found = found_targets() | HWY_STATIC_TARGET | HWY_SCALAR | HWY_EMU128;
  const int64_t chosen = for_test;
  return chosen != 0 ? chosen : found;
}

void SetSupportedTargetsForTest(int64_t targets) {
  for_test = targets;
  GetChosenTarget().DeInit();
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
