// What follows the sums of a product, applied to each tile while its sums are in registers or in a cache.
#pragma once

#include <cstdint>
#include <limits>

namespace ortrain {

// C = clip(C + bias + addend, low, high) * factor, where NaN stays. The bias has an element for each column;
// the addend's and the factor's elements are at the same offsets as those of C. Each of the three may be
// null.
template <typename T>
struct TileEnd {
  const T *bias = nullptr, *addend = nullptr;
  T low = -std::numeric_limits<T>::infinity(), high = std::numeric_limits<T>::infinity();
  const T* factor = nullptr;

  TileEnd at(int64_t column) const {
    TileEnd end = later(column);
    if (bias) end.bias = bias + column;
    return end;
  }
  // For the same columns, `elements` of C later.
  TileEnd later(int64_t elements) const {
    return {bias, addend ? addend + elements : nullptr, low, high, factor ? factor + elements : nullptr};
  }
};

}  // namespace ortrain
