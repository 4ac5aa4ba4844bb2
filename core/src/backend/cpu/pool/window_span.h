// Which elements of a pooling window are inside the input.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/pool/row_major_pool.h"

namespace ortrain {

// The kernel elements [first, last) of window `o` that are inside the input.
struct WindowSpan {
  int64_t start, first, last;
};

inline WindowSpan inside(const WindowAxis& a, int64_t o) {
  const int64_t start = o * a.stride - a.before;
  const int64_t first = start >= 0 ? 0 : (-start + a.dilation - 1) / a.dilation;
  const int64_t room = a.input - start;
  const int64_t last = room <= 0 ? 0 : std::min(a.kernel, (room + a.dilation - 1) / a.dilation);
  return {start, std::min(first, a.kernel), std::max(last, std::min(first, a.kernel))};
}

// How many kernel elements of window `o` are inside the input or the padding that the node states.
inline int64_t inside_padded(const WindowAxis& a, int64_t o) {
  const int64_t room = a.input + a.after - (o * a.stride - a.before);
  return room <= 0 ? 0 : std::min(a.kernel, (room + a.dilation - 1) / a.dilation);
}

// The number by which the sum of a window is divided.
inline int64_t window_divisor(const PoolSizes& s, int64_t i, int64_t j, int64_t k, const WindowSpan& d,
                              const WindowSpan& h, const WindowSpan& v) {
  if (s.count_padding)
    return inside_padded(s.window[0], i) * inside_padded(s.window[1], j) * inside_padded(s.window[2], k);
  return (d.last - d.first) * (h.last - h.first) * (v.last - v.first);
}

}  // namespace ortrain
