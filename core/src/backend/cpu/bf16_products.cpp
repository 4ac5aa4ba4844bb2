#include "backend/cpu/bf16_products.h"

#include "runtime/system.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace ortrain {
// Instructions of AMX, which only Intel's processors have, are not used.
Bf16Products bf16_products() {
#if defined(__x86_64__) || defined(__i386__)
  if (!__builtin_cpu_supports("avx512bf16")) return Bf16Products::kNone;
  // Intel's cores since Golden Cove begin one VDPBF16PS every other cycle, but two float multiply-adds in
  // each cycle: half as many products in the same time. They are recognized by their float16 instructions,
  // which not all compilers know by name.
  unsigned a = 0, b = 0, c = 0, features = 0;
  const bool has_float16 = __get_cpuid_count(7, 0, &a, &b, &c, &features) != 0 && (features >> 23 & 1) != 0;
  return has_float16 && __builtin_cpu_is("intel") ? Bf16Products::kSlow : Bf16Products::kFast;
#else
  // BFMMLA adds 16 products, an instruction for floats adds 4. Nothing here was measured on such a processor.
  return system::arm_instructions().bf16 ? Bf16Products::kFast : Bf16Products::kNone;
#endif
}

}  // namespace ortrain
