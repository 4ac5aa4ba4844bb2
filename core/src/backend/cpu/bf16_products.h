// How well the processor multiplies bfloat16 values.
#pragma once

namespace ortrain {

enum class Bf16Products {
  kNotStored,  // oneDNN does not even store them on it
  kNone,       // no instructions
  kSlow,       // fewer products in the same time than of floats
  kFast,
};

Bf16Products bf16_products();

}  // namespace ortrain
