// One axis of a pass of a convolution: results that read the same elements of the window. The results of a
// forward pass are all elements of Y. Those of the gradient of X are the elements of dX with one offset
// within the stride.
#pragma once

#include <cstdint>
#include <vector>

#include "geometry/sliding_window.h"

namespace ortrain {

// Result i is element first + i * every of the target. It reads the elements i * step +
// offset of the source for all offsets, which increase by a constant difference; beside each is its element
// of the window.
struct PassAxis {
  int64_t source = 1, target = 1, count = 1, first = 0, every = 1, step = 1;
  std::vector<int64_t> offsets, taps;

  // If a result reads one element, only such elements are copied.
  bool sparse() const { return offsets.size() == 1; }
  int64_t copied_step() const { return sparse() ? 1 : step; }
  // How far the element of tap k is from that of the first tap.
  int64_t copied_offset(size_t k) const { return offsets[k] - offsets[0]; }
  // Elements that `results` results read.
  int64_t copied(int64_t results) const {
    return sparse() ? results : (results - 1) * step + offsets.back() - offsets.front() + 1;
  }
};

inline PassAxis forward_axis(const WindowAxis& a) {
  PassAxis p{a.input, a.output, a.output, 0, 1, a.stride, {}, {}};
  for (int64_t k = 0; k < a.kernel; ++k) {
    p.offsets.push_back(k * a.dilation - a.before);
    p.taps.push_back(k);
  }
  return p;
}

// The elements of dX first, first + stride, ..., from dY.
inline PassAxis backward_axis(const WindowAxis& a, int64_t first) {
  PassAxis p{a.output, a.input,  a.input > first ? (a.input - first + a.stride - 1) / a.stride : 0,
             first,    a.stride, 1,
             {},       {}};
  for (int64_t k = a.kernel; k-- > 0;) {
    const int64_t distance = first + a.before - k * a.dilation;
    if (distance % a.stride != 0) continue;
    p.offsets.push_back(distance / a.stride);
    p.taps.push_back(k);
  }
  return p;
}

}  // namespace ortrain
