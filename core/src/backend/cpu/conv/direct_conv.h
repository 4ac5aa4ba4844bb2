// Convolution with few filters. Blocks of filters fill a vector of a convolution library only in part; here
// neighbours in a row of the output do.
//
// The input rows that an output row reads are laid out with their padding. The micro-kernel multiplies
// them in place, shifted by one element for each column of the window.
#pragma once

#include <cstdint>

#include "backend/cpu/conv/row_major_conv.h"

namespace ortrain {

class DirectConvolution {
 public:
  explicit DirectConvolution(const ConvSizes& sizes);

  // Whether it is faster than others.
  bool suits() const;
  // Floats of packed weights, and of memory for all workers.
  int64_t weights_size() const { return turns_ * sizes_.filters * sizes_.column_rows(); }
  int64_t work_size() const { return workers_ * lines_size(); }

  void pack(const float* w, float* packed) const;
  // Y = X * W + bias + addend, and 0 for what is negative if `relu`; bias and addend may be null.
  void run(const float* x, const float* packed, const float* bias, const float* addend, bool relu, float* y,
           float* work) const;

 private:
  // One product of the sums: `depth` lines of the input, or neighbouring elements of one.
  struct Step {
    int64_t from;     // the first element of B, from the beginning of the lines
    int64_t b_row;    // elements between rows of B
    int64_t depth;    // rows of B
    int64_t weights;  // where the weights of a group are, [filters, depth]
  };

  int64_t lines() const;       // of the input that an output line reads
  int64_t lines_size() const;  // floats
  template <typename F>
  void each_step(F&& f) const;
  int64_t turn_of(int64_t line) const;
  void write_lines(const float* x, int64_t line, int64_t first_row, float* to) const;

  ConvSizes sizes_;
  int64_t workers_;
  int64_t phases_;  // of the innermost stride: elements of a line that are stored one after another
  int64_t length_;  // of a phase
  // Lines that the next output line reads too stay where they are, so the rows of the window are turned: row
  // r is at place (r + turn) % rows. The number of turns, for each of which there are weights.
  int64_t turns_;
  bool by_taps_;  // whether the depth of a product is along the innermost axis of the window
};

}  // namespace ortrain
