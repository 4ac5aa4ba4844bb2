// Which instructions for products the processor has: of bfloat16 values, and of 8-bit integers in tile
// registers.
#pragma once

namespace ortrain {

enum class Bf16Products {
  kNone,  // no instructions
  kSlow,  // fewer products in the same time than of floats
  kFast,
  kTiles,  // with the tile registers of AMX, which the system granted
};

Bf16Products bf16_products();
// Whether the processor has instructions for bfloat16, slow ones included. Found once.
bool has_bf16_instructions();
// Whether the processor multiplies 8-bit integers with the tile registers of AMX.
bool byte_products_in_tiles();

}  // namespace ortrain
