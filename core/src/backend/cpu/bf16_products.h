// How well the processor multiplies bfloat16 values.
#pragma once

namespace ortrain {

enum class Bf16Products {
  kNone,  // no instructions
  kSlow,  // fewer products in the same time than of floats
  kFast,
};

Bf16Products bf16_products();

}  // namespace ortrain
