// Convolution of 8-bit integers, summed in 32 bits: windows are laid out as columns of a matrix, a panel at a
// time, and exact products do the rest (backend/cpu/matmul/integer_product.h).
#pragma once

#include <cstdint>
#include <functional>

#include "backend/cpu/conv/row_major_conv.h"
#include "backend/cpu/matmul/integer_product.h"

namespace ortrain {

class WindowColumns;

// Y = (X - x_zero) * (W - w_zero) + bias. Padding is x_zero.
class IntegerConvolution {
 public:
  // Takes sums of Y while they are in the cache: `count` of them, from the point `first` of a plane on.
  // Planes count the filters of all images. Several threads call it.
  using Sink = std::function<void(int64_t plane, int64_t first, int64_t count, const int32_t* sums)>;

  [[gnu::cold]] IntegerConvolution(const ConvSizes& sizes, bool x_signed, bool w_signed);

  // Elements of the memory that it needs: packed weights with the sums of the filters, and work.
  int64_t weight_words() const {
    const int64_t rows = sizes_.column_rows();
    return sizes_.filters * (depthwise_ ? rows / sizes_.window[2].kernel * pairs() : kernels_.words(rows));
  }
  int64_t work_words() const { return workers_ * (panel_words_ + tile_words_); }

  // W as words, or for depthwise convolutions pairs of W - w_zero; the sum of each filter, and its zero
  // point. There is one zero point, or one for each filter if `each`; `w_zeros` null: zero.
  void pack(const uint8_t* w, const uint8_t* w_zeros, bool each, uint32_t* words, int32_t* sums,
            int32_t* zeros) const;
  // With weights that pack() has packed; `bias` may be null.
  void run(const uint8_t* x, uint8_t x_zero, const uint32_t* words, const int32_t* sums, const int32_t* zeros,
           const int32_t* bias, const Sink& sink, uint32_t* work) const;

 private:
  void pack_columns(const WindowColumns& columns, uint32_t* panel) const;
  // One filter for each channel: products of a single row do not pay for laying out windows.
  void run_depthwise(const uint8_t* x, uint8_t x_zero, const uint32_t* weights, const int32_t* bias,
                     const Sink& sink, uint32_t* work) const;
  // Pairs of neighbours along the innermost axis of a window.
  int64_t pairs() const { return (sizes_.window[2].kernel + 1) / 2; }

  ConvSizes sizes_;
  bool x_signed_, w_signed_, depthwise_, pointwise_;
  IntegerKernels kernels_;
  int64_t workers_, panel_words_, tile_words_;
  int64_t block_;  // points whose sums are handed over together
};

}  // namespace ortrain
