// Products in bfloat16 with a narrow dimension, as adapters of low rank have them: A is [m, r], B is [r, n],
// or Y is [m, r] or [r, n], for a small r. The large operand is read once where it is: packing it would take
// longer than multiplying it.
#pragma once

#include "backend/cpu/matmul/mixed_product.h"

namespace ortrain {

// The rows [row, row_end) and columns [column, column_end) of Y, on this thread. False if the product is not
// narrow, or the processor has no suitable instruction. No bit depends on how Y is divided.
bool narrow_product(const MixedProduct& p, int64_t row, int64_t row_end, int64_t column, int64_t column_end);

}  // namespace ortrain
