// Matrix products in mixed precision: operands and results are floats or bfloat16 in memory, and sums are in
// float.
//
// Operands are converted while blocks of them are packed, so no other copy of them exists. They are either
// widened and multiplied as floats, or rounded to bfloat16 and multiplied in pairs: two neighbors along k are
// a word of 32 bits, and an instruction adds both products to a sum in float. On arm64 four neighbors are a
// quad of 64 bits (backend/cpu/matmul/bf16_tiles-inl.h). Without these instructions (Bf16Products) the same
// is computed with those for floats, more slowly. The sums of a block of results stay in memory of the thread
// until what follows the product is applied to them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "backend/cpu/matmul/block_codes.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/stored_values.h"

namespace ortrain {

// Element (i, j) is i * row + j * column; one of the strides or sizes is 1.
struct StoredMatrix {
  StoredInput values;
  int64_t row = 0, column = 0;
};

// What is added to a product, times a factor, or multiplied with it.
struct MixedTerm {
  StoredInput values;
  Bias kind = Bias::kFull;
  float factor = 1;
  bool multiplies = false;
};

// Takes columns [column, column + n) of a row of Y, on the thread that computed them. `column` is a multiple
// of kTakenColumns.
inline constexpr int64_t kTakenColumns = 64;
using TakeLine = std::function<void(int64_t row, int64_t column, int64_t n, const float* line)>;

// A product that is added to another: A B with A [m, k], B [k, n].
struct AddedProduct {
  StoredMatrix a, b;
  int64_t k = 0;  // 0: none
};

// Y = alpha A B with A [m, k], B [k, n], Y [m, n] row-major, plus `added`, and then the terms in their order.
struct MixedProduct {
  int64_t m = 0, n = 0, k = 0;
  float alpha = 1;
  StoredMatrix a, b;
  bool pairs = false;  // multiplied in bfloat16
  StoredOutput y;
  std::span<const MixedTerm> terms;
  const BlockCodes* codes = nullptr;  // W, in place of b: B = W, or Wᵀ with codes_by_column
  bool codes_by_column = false;
  const TakeLine* take = nullptr;  // of results, in place of y
  AddedProduct added = {};
};

// The rows [row, row_end) and columns [column, column_end) of Y on this thread. No bit of them depends on how
// Y is divided if rows are divided at multiples of mixed_rows() and columns at multiples of mixed_columns().
void mixed_product(const MixedProduct& p, int64_t row, int64_t row_end, int64_t column, int64_t column_end);
int64_t mixed_rows();
int64_t mixed_columns();
// All of Y on all threads, which divide its columns: each block of B is packed once. No bit of Y depends on
// the number of threads.
void mixed_product_by_columns(const MixedProduct& p);

// Y [m, n] = A B of packed weights, plus `added`, and then the terms, on all threads. B is W, or Wᵀ if
// `transposed`; blocks of W are unpacked right before they are packed. A and Y are row-major.
struct CodedProduct {
  int64_t m = 0;
  StoredInput a;
  const BlockCodes* w = nullptr;
  bool transposed = false, pairs = false;
  std::span<const MixedTerm> terms;
  StoredOutput y;
  const TakeLine* take = nullptr;  // of results, in place of y
  AddedProduct added = {};
};
void coded_product(const CodedProduct& p);
// The least m that it is meant for. Derived: unpacking a block of W and then packing it, which codes other
// than those of 4 bits need, takes about as long as multiplying 40 rows with it, and unpacking is half of
// that.
inline constexpr int64_t kLeastCodedRows = 16;
// Unpacking W takes about as long as multiplying this many rows with it. Measured for codes of 4 bits, which
// are packed directly: 18 to 20 rows in bfloat16, at the 234 GFLOP/s of a core, and 10 to 16 in float.
inline constexpr int64_t kUnpackingRows = 20;

std::optional<Kernel> mixed_matmul(KernelContext& c);
std::optional<Kernel> mixed_gemm(KernelContext& c);
std::optional<Kernel> mixed_fused_product(KernelContext& c);

}  // namespace ortrain
