// Exact products of 8-bit integers, Y = (A - a_zero) (B - b_zero), summed in 32 bits, which wrap around.
//
// Both operands are packed first: the rows of A, and the columns of B in panels. Neighbours along k form a
// word of 32 bits, four as 8-bit integers where the processor multiplies those (VNNI on x86, SDOT on arm64),
// else two as 16-bit integers. The instructions for pairs of 8-bit integers that older processors have are
// not used, because their sums saturate. Zero points are not subtracted, but accounted for afterwards:
//
//   sum (a - s) (b - t) = sum a b - s sum b - t (sum a - k s)
#pragma once

#include <cstdint>

namespace ortrain {

inline constexpr int64_t kLargestPanel = 256;  // columns, on any processor

// 8-bit integers in memory, row-major; signed ones are int8_t.
struct Codes {
  const uint8_t* data;
  bool is_signed;
  int64_t row;  // elements from one row to the next
};

// A part of a product: m rows of a packed A times a panel of a packed B.
struct IntegerPart {
  int64_t m, n, k;
  const uint32_t* left;
  // For each row: the sum of its elements, its zero point (IntegerKernels::left_zero), and what is added to
  // it (null: nothing).
  const int32_t *sums, *left_zeros, *bias;
  const uint32_t* panel;
  // Of the columns (IntegerKernels::right_zero), up to a whole vector.
  const int32_t* right_zeros;
  int32_t* y;
  int64_t y_row;
};

// What is added to 8-bit integers when they become words, so that all have the sign that the instruction
// takes: 128 to signed ones, -128 to unsigned ones, or nothing.
struct CodeShift {
  int32_t of_unsigned, of_signed;

  constexpr int32_t of(bool is_signed) const { return is_signed ? of_signed : of_unsigned; }
};

// The kernels for a processor.
struct IntegerKernels {
  int64_t group;          // elements in a word
  int64_t lanes;          // columns of B in a vector
  int64_t panel;          // columns of a panel; the last one has as many whole vectors as it needs
  CodeShift left, right;  // of the elements of A and B

  int32_t left_zero(bool is_signed, int32_t zero) const { return zero + left.of(is_signed); }
  int32_t right_zero(bool is_signed, int32_t zero) const { return zero + right.of(is_signed); }
  // Words of a row of A or a column of B.
  int64_t words(int64_t k) const { return (k + group - 1) / group; }
  // Columns up to a whole vector.
  int64_t whole(int64_t n) const { return (n + lanes - 1) / lanes * lanes; }
  // Words of n columns of a packed B, and so also where the panel that begins with column n lies: the panels,
  // each with the sums of its columns as a last row.
  int64_t right_words(int64_t k, int64_t n) const { return (words(k) + 1) * whole(n); }

  // m rows of k elements as words, and the sums of the rows.
  void (*pack_left)(int64_t m, int64_t k, Codes a, uint32_t* packed, int32_t* sums);
  // The rows [begin, begin + count) of a panel of n columns; `begin` is a multiple of the group, and b begins
  // with these rows.
  void (*pack_right)(int64_t n, int64_t begin, int64_t count, Codes b, uint32_t* panel);
  // The last row of a panel.
  void (*sum_columns)(int64_t n, int64_t k, uint32_t* panel);
  void (*multiply)(const IntegerPart& part);
  // For depthwise convolutions: lines as pairs of 16-bit integers, whose products always fit in 32 bits.
  // to[i] = x[i] - zero
  void (*shift_line)(int64_t n, const uint8_t* x, bool is_signed, int32_t zero, int16_t* to);
  // The pairs (x[i stride], x[i stride + gap]), as words.
  void (*pair_line)(int64_t n, const int16_t* x, int64_t stride, int64_t gap, uint32_t* to);
  // y[i] = start + the sum of the products of both elements of words of lines with those of their weights, or
  // y[i] + that sum. The lines are as long as whole(n).
  void (*sum_lines)(int64_t n, int64_t count, const uint32_t* const* lines, const uint32_t* weights,
                    int32_t start, bool add, int32_t* y);

  // The panel of n columns that begins with the given one, of B [k, ...].
  void pack_panel(int64_t column, int64_t n, int64_t k, Codes b, uint32_t* packed) const {
    uint32_t* to = packed + right_words(k, column);
    pack_right(n, 0, k, {b.data + column, b.is_signed, b.row}, to);
    sum_columns(n, k, to);
  }
};

// Those of this processor. Tests also ask for the ones that it would have without instructions for words of
// four.
IntegerKernels integer_kernels(bool with_quads = true);

}  // namespace ortrain
