#include "session/mixed_precision.h"

#include "backend/cpu/onednn/dnnl.h"
#include "runtime/error.h"

namespace ortrain {

namespace {

constexpr const char* kMixedPrecision = "ortrain.mixed_precision";
constexpr const char* kProducts = "ortrain.bf16_products";

#if ORTRAIN_ONEDNN
// How well the processor multiplies bfloat16 numbers.
enum class Bf16Products { kNone, kSlow, kFast };

Bf16Products bf16_products() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [isa](dnnl::cpu_isa wanted) {
    return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
  };
  if (has(dnnl::cpu_isa::avx512_core_amx)) return Bf16Products::kFast;
  if (!has(dnnl::cpu_isa::avx512_core_bf16)) return Bf16Products::kNone;
    // Intel's cores since Golden Cove begin one VDPBF16PS every other cycle, but two float multiply-adds in
    // each cycle: half as many products in the same time. Their fast way is AMX, which a virtual machine may
    // hide. They are those with instructions for float16.
#if defined(__x86_64__) || defined(__i386__)
  if (has(dnnl::cpu_isa::avx512_core_fp16) && __builtin_cpu_is("intel")) return Bf16Products::kSlow;
#endif
  return Bf16Products::kFast;
}
#endif

}  // namespace

Precision read_precision(const SessionOptions& options) {
  const std::string mixed = config_choice(options, kMixedPrecision);
  const std::string products = config_choice(options, kProducts);
#if ORTRAIN_ONEDNN
  if (mixed == "none") return Precision::kFloat;
  const bool narrow = bf16_products() == Bf16Products::kFast ||
                      (products == "bf16" && bf16_products() == Bf16Products::kSlow);
  return narrow && products != "fp32" ? Precision::kBf16 : Precision::kBf16Storage;
#else
  return Precision::kFloat;
#endif
}

std::string precision_warning(const SessionOptions& options) {
  if (config_choice(options, kMixedPrecision) == "none") return "";
#if ORTRAIN_ONEDNN
  const bool asked = config_choice(options, kProducts) == "bf16";
  switch (bf16_products()) {
    case Bf16Products::kFast:
      return "";
    case Bf16Products::kSlow:
      return asked ? concat(kMixedPrecision,
                            " = bf16: this processor multiplies bfloat16 at half the rate of "
                            "float32 (it has AVX512_BF16, but AMX is missing or hidden), so "
                            "training is slower than without the option")
                   : concat(kMixedPrecision,
                            " = bf16: this processor multiplies bfloat16 at half the rate of "
                            "float32 (it has AVX512_BF16, but AMX is missing or hidden): "
                            "activations are kept in bfloat16, products are computed in "
                            "float32, and training takes less memory but no less time");
    case Bf16Products::kNone:
      break;
  }
  return concat(kMixedPrecision,
                " = bf16: this processor has no instructions for bfloat16: activations are "
                "kept in bfloat16, products are computed in float32, and training takes less "
                "memory but no less time");
#else
  return concat(kMixedPrecision, " = bf16: this build of ortrain has no oneDNN, and computes in float32");
#endif
}

}  // namespace ortrain
