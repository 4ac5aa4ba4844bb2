#include "session/mixed_precision.h"

#include "backend/cpu/kernel_library.h"
#include "runtime/error.h"

namespace ortrain {

namespace {

constexpr const char* kMixedPrecision = "ortrain.mixed_precision";
constexpr const char* kProducts = "ortrain.bf16_products";

}  // namespace

Precision read_precision(const SessionOptions& options) {
  const std::string mixed = config_choice(options, kMixedPrecision);
  const std::string products = config_choice(options, kProducts);
  const KernelLibrary* library = kernel_library();
  if (mixed == "none" || !library) return Precision::kFloat;
  const Bf16Products speed = library->bf16_products();
  if (speed == Bf16Products::kNotStored) return Precision::kFloat;
  const bool narrow = speed == Bf16Products::kFast || (products == "bf16" && speed == Bf16Products::kSlow);
  return narrow && products != "fp32" ? Precision::kBf16 : Precision::kBf16Storage;
}

std::string precision_warning(const SessionOptions& options) {
  if (config_choice(options, kMixedPrecision) == "none") return "";
  const KernelLibrary* library = kernel_library();
  if (!library)
    return concat(kMixedPrecision, " = bf16: this build of ortrain has no oneDNN, and computes in float32");
  const bool asked = config_choice(options, kProducts) == "bf16";
  switch (library->bf16_products()) {
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
    case Bf16Products::kNotStored:
      return concat(kMixedPrecision, " = bf16: this processor has no AVX-512, and computes in float32");
    case Bf16Products::kNone:
      break;
  }
  return concat(kMixedPrecision,
                " = bf16: this processor has no instructions for bfloat16: activations are "
                "kept in bfloat16, products are computed in float32, and training takes less "
                "memory but no less time");
}

}  // namespace ortrain
