// Matrices whose rows are packed in codes of 2, 4 or 8 bits, with a scale and a zero point for each block of
// neighbours in a row: element i of block b is (code - zero point) scale. What nodes declare about them is
// described in ops/quantized/quantized_weights.cpp.
#pragma once

#include <cstdint>

#include "runtime/half.h"

namespace ortrain {

struct BlockCodes {
  int64_t rows, columns, block, bits;
  int64_t blocks;  // of a row
  const uint8_t* codes;
  const float* scales;
  const uint8_t* packed_zeros;  // in codes too; null: `zeros` or the middle of the codes
  const float* zeros;           // null: `packed_zeros` or the middle of the codes

  // Rows [first, first + count).
  BlockCodes of_rows(int64_t first, int64_t count) const {
    BlockCodes part = *this;
    part.rows = count;
    part.codes += first * blocks * block * bits / 8;
    part.scales += first * blocks;
    if (part.packed_zeros) part.packed_zeros += first * ((blocks * bits + 7) / 8);
    if (part.zeros) part.zeros += first * blocks;
    return part;
  }
};

struct CodesPart {
  int64_t row = 0, rows = 0, column = 0, columns = 0;
};

// to[r * to_row + c] = element (row + r, column + c) of a part of W, on this thread; in bfloat16 rounded to
// the nearest. The part that is unpacked next is prefetched: its rows are too short for processors to do
// that.
void unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, float* to, int64_t to_row);
void unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, BFloat16* to, int64_t to_row);

// Packs a part of W, or its transpose, as a right operand (backend/cpu/matmul/product_tiles-inl.h): in
// floats, or in words of two bfloat16 values (backend/cpu/matmul/bf16_pairs-inl.h). The packed values have
// the bits of unpacked ones. False if these codes must be unpacked instead.
bool pack_floats(const BlockCodes& w, const CodesPart& part, const CodesPart& next, bool transposed,
                 float* packed);
bool pack_pairs(const BlockCodes& w, const CodesPart& part, const CodesPart& next, bool transposed,
                float* packed);

}  // namespace ortrain
