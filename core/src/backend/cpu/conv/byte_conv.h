// Convolution of 8-bit integers with constant weights to 8-bit integers, both with channels last. Vectors
// hold neighboring filters, and the windows are read where they are: in X itself if its bytes can be
// multiplied as they are and there is no padding, else in a copy of X with its padding.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/conv/byte_conv_kernels.h"
#include "backend/cpu/conv/row_major_conv.h"

namespace ortrain {

class ByteConvolution {
 public:
  // Tests also ask for what the processor would compute without instructions for words of four.
  [[gnu::cold]] ByteConvolution(const ConvSizes& sizes, bool x_signed, bool w_signed, bool with_quads = true);

  // Whether it computes such convolutions: of one group, and depthwise with one filter for each channel.
  static bool suits(const ConvSizes& sizes);

  int64_t weight_words() const;
  int64_t work_words() const;
  // Filters up to a whole vector: the length of the arrays of FilterCodes.
  int64_t whole_filters() const { return kernels_.whole(sizes_.filters); }

  // W [filters, channels, kernel...] as words, and what has to be added to the sums of each filter, because
  // zero points are not subtracted from X. `w_zeros` has the zero point of each filter. Returns false if W
  // less its zero points does not fit in the words.
  bool pack(const uint8_t* w, const int32_t* w_zeros, int32_t x_zero, uint32_t* words,
            int32_t* offsets) const;
  // X [N, input..., C] to Y [N, output..., F]. Padding is x_zero.
  void run(const uint8_t* x, int32_t x_zero, const uint32_t* words, const FilterCodes& codes, uint8_t* y,
           uint32_t* work) const;

 private:
  void pad(const uint8_t* x, int32_t x_zero, int64_t images, uint32_t* words) const;
  void multiply(const uint32_t* x, int64_t images, const uint32_t* words, const FilterCodes& codes,
                uint8_t* y) const;
  void run_depthwise(const uint8_t* x, int32_t x_zero, const uint32_t* words, const FilterCodes& codes,
                     uint8_t* y, uint32_t* work) const;
  uint32_t zero_word(int32_t x_zero) const;  // zeros in all places
  int64_t padded(int axis) const;            // elements of an axis with its padding
  int64_t image_words() const;               // of an image as it is multiplied
  int64_t lines() const;                     // of a window
  int64_t line_groups() const { return kernels_.words(lines()); }
  int64_t line_words() const;  // of a depthwise convolution, for a worker

  ConvSizes sizes_;
  bool x_signed_, w_signed_, depthwise_, direct_;
  ByteConvKernels kernels_;
  int64_t point_words_, images_, workers_ = 1;  // images_: copied at once
  std::vector<int64_t> runs_;
  int64_t run_words_ = 0;
};

}  // namespace ortrain
