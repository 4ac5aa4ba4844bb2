// ORTRAIN_DISPATCH(function): the function of that name that is compiled for the best instruction set of the
// processor. Highway's HWY_EXPORT and HWY_DYNAMIC_DISPATCH find the same function in a table of 17 addresses,
// most of them null, which takes 370 bytes with its relocations and with the function that asks the processor
// at the first call; the library has 160 such functions. Used after <hwy/highway.h>.
#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace ortrain {

// The first of the functions that the processor can run. A function is null if the build has no such
// instruction set.
template <typename Function>
inline Function chosen(Function avx3, Function avx2, Function baseline) {
  const int64_t supported = hwy::SupportedTargets();
  if (avx3 && supported & HWY_AVX3) return avx3;
  if (avx2 && supported & HWY_AVX2) return avx2;
  return baseline;
}

}  // namespace ortrain

#if HWY_ARCH_X86 && (HWY_TARGETS & (HWY_TARGETS - 1)) != 0
#define ORTRAIN_DISPATCH(function)                               \
  (*::ortrain::chosen<decltype(&HWY_STATIC_DISPATCH(function))>( \
      HWY_CHOOSE_AVX3(function), HWY_CHOOSE_AVX2(function), &HWY_STATIC_DISPATCH(function)))
#else  // a build for one instruction set, as on other processors (vector_targets.cpp)
#define ORTRAIN_DISPATCH(function) HWY_STATIC_DISPATCH(function)
#endif
