// The vector code of convolutions of 8-bit integers with channels last (backend/cpu/conv/byte_conv.h). Words
// of 32 bits hold neighbors: four 8-bit integers where the processor multiplies those, else two 16-bit ones
// (backend/cpu/matmul/integer_product.h).
#pragma once

#include <cstdint>

#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/matmul/integer_product.h"

namespace ortrain {

// How sums become codes: code = clamp(round((sum + offset) factor) + zero). Each filter has an offset and a
// factor, as float and as double; the arrays are as long as whole vectors.
struct FilterCodes {
  const int32_t* offsets;
  const float* narrow;
  const double* factors;
  CodeRange range;

  FilterCodes from(int64_t filter) const {
    return {offsets + filter, narrow + filter, factors + filter, range};
  }
};

// Windows times a panel of filters.
struct BytePanel {
  const uint32_t* const* windows;  // where the window of each point begins
  int64_t points;
  // A window consists of runs of words, at these offsets.
  const int64_t* runs;
  int64_t run_count, run_words;
  const uint32_t* weights;  // [words of a window, filters up to a whole vector]
  int64_t filters;
  FilterCodes codes;
  uint8_t* y;
  int64_t y_row;  // bytes from one point to the next
};

// A line of a depthwise convolution. Each word holds one column and channel of neighboring lines of X.
struct ByteLine {
  const uint32_t* words;  // [groups of lines, columns, channels]
  int64_t groups, group_words;
  int64_t channels, points, kernel, stride, dilation;
  const uint32_t* weights;  // [groups of lines, kernel, channels up to a whole vector]
  FilterCodes codes;
  uint8_t* y;
};

struct ByteConvKernels {
  int64_t group;   // elements of a word
  int64_t lanes;   // filters in a vector
  int64_t panel;   // filters of a panel; the last panel has as many whole vectors as it needs
  CodeShift left;  // of X; the weights are signed

  int64_t words(int64_t n) const { return (n + group - 1) / group; }
  int64_t whole(int64_t filters) const { return (filters + lanes - 1) / lanes * lanes; }

  // n points of `channels` bytes as words; each point begins with a word.
  void (*to_words)(int64_t n, int64_t channels, const uint8_t* x, bool is_signed, uint32_t* to);
  // to[i] = the word of rows[0][i], rows[1][i] ..., as many as a word has.
  void (*combine)(int64_t n, const uint8_t* const* rows, bool is_signed, uint32_t* to);
  void (*multiply)(const BytePanel& panel);
  void (*sum_line)(const ByteLine& line);
};

// Those of this processor. Tests also ask for the ones that it would have without instructions for words of
// four.
ByteConvKernels byte_conv_kernels(bool with_quads = true);

}  // namespace ortrain
