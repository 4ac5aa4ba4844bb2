// Copies a line of a convolution's input with its padding, split by the stride: then the elements that
// consecutive windows read are contiguous.
#pragma once

#include <algorithm>
#include <cstdint>

#include "geometry/sliding_window.h"

namespace ortrain {

// Elements phase, phase + stride, phase + 2 stride, ... of the padded line, `length` of them; zeros if `from`
// is null, for lines of padding.
inline void write_padded_line(const WindowAxis& axis, int64_t phase, const float* from, int64_t length,
                              float* to) {
  // Element j is element j * stride + shift of the line.
  const int64_t stride = axis.stride, shift = phase - axis.before;
  const int64_t first = from ? std::min(shift < 0 ? (-shift + stride - 1) / stride : 0, length) : length;
  const int64_t past =
      std::clamp(axis.input > shift ? (axis.input - shift + stride - 1) / stride : 0, first, length);
  std::fill_n(to, first, 0.0f);
  if (stride == 1)
    std::copy_n(from + (first < past ? first + shift : 0), past - first, to + first);
  else
    for (int64_t j = first; j < past; ++j) to[j] = from[j * stride + shift];
  std::fill(to + past, to + length, 0.0f);
}

}  // namespace ortrain
