// The activation after a batch normalization, Relu or Clip, as bounds.
#pragma once

#include <limits>

namespace ortrain {

// NaN stays. The derivative is 1 for values within the bounds, bounds included, and 0 for other values and
// for `excluded`.
struct ClipRange {
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  float excluded = std::numeric_limits<float>::quiet_NaN();  // 0 for Relu

  template <typename T>
  T clip(T y) const {
    return y < T(low) ? T(low) : y > T(high) ? T(high) : y;
  }
  template <typename T>
  bool passes(T y) const {
    return y >= T(low) && y <= T(high) && y != T(excluded);
  }
};

}  // namespace ortrain
