// How well the processor multiplies bfloat16 values.
#pragma once

namespace ortrain {

enum class Bf16Products {
  kNone,  // no instructions
  kSlow,  // fewer products in the same time than of floats
  kFast,
};

Bf16Products bf16_products();

// Whether the instruction multiplies quads of values (BFMMLA of arm64) or pairs (VDPBF16PS of x86).
#if defined(__aarch64__)
inline constexpr bool kBf16InQuads = true;
#else
inline constexpr bool kBf16InQuads = false;
#endif

}  // namespace ortrain
