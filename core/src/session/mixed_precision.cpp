#include "session/mixed_precision.h"

#include "backend/cpu/product_instructions.h"
#include "runtime/error.h"

namespace ortrain {

namespace {

constexpr const char* kMixedPrecision = "ortrain.mixed_precision";
constexpr const char* kProducts = "ortrain.bf16_products";

}  // namespace

Precision read_precision(const SessionOptions& options) {
  const std::string mixed = config_choice(options, kMixedPrecision);
  const std::string products = config_choice(options, kProducts);
  const Bf16Products speed = bf16_products();
  if (mixed == "none") return Precision::kFloat;
  require(kHalvesPart.is_built, ErrorCode::kNotImplemented, kMixedPrecision, " = ", mixed,
          ": this build of the library leaves out ", kHalvesPart.title, ": CMake option ",
          kHalvesPart.option);
  const bool narrow = products == "bf16" || (products == "auto" && speed >= Bf16Products::kFast);
  return narrow ? Precision::kBf16 : Precision::kBf16Storage;
}

std::string precision_warning(const SessionOptions& options) {
  if (config_choice(options, kMixedPrecision) == "none") return "";
  const bool asked = config_choice(options, kProducts) == "bf16";
  switch (bf16_products()) {
    case Bf16Products::kFast:
    case Bf16Products::kTiles:
      return "";
    case Bf16Products::kSlow:
      return asked ? concat(kMixedPrecision,
                            " = bf16: this processor multiplies bfloat16 at half the rate of "
                            "float32, so "
                            "training is slower than without the option")
                   : concat(kMixedPrecision,
                            " = bf16: this processor multiplies bfloat16 at half the rate of "
                            "float32: "
                            "activations are kept in bfloat16, products are computed in "
                            "float32, and training takes less memory but no less time");
    case Bf16Products::kNone:
      if (asked)
        return concat(kMixedPrecision,
                      " = bf16: this processor has no instructions for bfloat16: products of bfloat16 are "
                      "computed with those for float32, and training is slower than without the option");
      break;
  }
  return concat(kMixedPrecision,
                " = bf16: this processor has no instructions for bfloat16: activations are "
                "kept in bfloat16, products are computed in float32, and training takes less "
                "memory but no less time");
}

}  // namespace ortrain
