#include "backend/cpu/product_instructions.h"

#include "runtime/system.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace ortrain {
#if defined(__x86_64__) || defined(__i386__)
namespace {

// The features that CPUID names in its leaf 7, of which not all compilers know the names.
struct Features {
  bool float16 = false, pairs_in_tiles = false, bytes_in_tiles = false;

  Features() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
    const bool tiles = (d >> 24 & 1) != 0 && __builtin_cpu_supports("avx512bw");
    float16 = (d >> 23 & 1) != 0;
    pairs_in_tiles = tiles && (d >> 22 & 1) != 0;
    bytes_in_tiles = tiles && (d >> 25 & 1) != 0;
    if (pairs_in_tiles || bytes_in_tiles)
      if (!system::ask_for_tile_registers()) pairs_in_tiles = bytes_in_tiles = false;
  }
};

const Features& features() {
  static const Features found;
  return found;
}

}  // namespace
#endif

bool byte_products_in_tiles() {
#if defined(__x86_64__) || defined(__i386__)
  return features().bytes_in_tiles;
#else
  return false;
#endif
}

Bf16Products bf16_products() {
#if defined(__x86_64__) || defined(__i386__)
  if (!__builtin_cpu_supports("avx512bf16")) return Bf16Products::kNone;
  if (features().pairs_in_tiles) return Bf16Products::kTiles;
  // Intel's cores since Golden Cove begin one VDPBF16PS every other cycle, but two float multiply-adds in
  // each cycle: half as many products in the same time. They are recognized by their float16 instructions.
  return features().float16 && __builtin_cpu_is("intel") ? Bf16Products::kSlow : Bf16Products::kFast;
#else
  // BFMMLA adds 16 products, an instruction for floats adds 4. Nothing here was measured on such a processor.
  return system::arm_instructions().bf16 ? Bf16Products::kFast : Bf16Products::kNone;
#endif
}

bool has_bf16_instructions() {
  static const bool has = bf16_products() >= Bf16Products::kSlow;
  return has;
}

}  // namespace ortrain
