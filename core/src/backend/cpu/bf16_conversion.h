// Conversions between float and bfloat16, which round to the nearest value, ties to even; NaN stays NaN.
#pragma once

#include <cstdint>

#include "runtime/half.h"

namespace ortrain {

// to[i] = from[i] for i < n, on this thread.
void widen_bf16(const BFloat16* from, float* to, int64_t n);
void narrow_bf16(const float* from, BFloat16* to, int64_t n);

// to[c * to_row + r] = from[r * from_row + c] for r < rows and c < columns, on this thread.
void widen_bf16_transposed(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                           int64_t to_row);
void narrow_bf16_transposed(const float* from, int64_t from_row, int64_t rows, int64_t columns, BFloat16* to,
                            int64_t to_row);

}  // namespace ortrain
