// Pooling of row-major values, plane by plane: one plane is one channel of one image.
#pragma once

#include <cstdint>

#include "geometry/sliding_window.h"

namespace ortrain {

struct PoolSizes {
  int64_t planes = 0;  // batch * channels
  Window window;       // three axes
  // Whether averages count the padding that the node states, as zeros.
  bool count_padding = false;
  // Whether indices count along the first spatial axis first (storage_order 1) instead of the last.
  bool column_major = false;

  int64_t input_points() const;
  int64_t output_points() const;
};

// Y: the largest element of each window, NaN if one is NaN. `indices`, if not null: its position in X,
// counted from X's first element; -1 for a window entirely in the padding, whose Y is the lowest value.
template <typename T>
void max_pool(const PoolSizes& s, const T* x, T* y, int64_t* indices);
// dX: every element of dY is added at its index. Throws if an index is not in its plane.
template <typename T>
void max_pool_backward(const PoolSizes& s, const T* dy, const int64_t* indices, T* dx);
// Y: the mean of each window.
template <typename T>
void average_pool(const PoolSizes& s, const T* x, T* y);
template <typename T>
void average_pool_backward(const PoolSizes& s, const T* dy, T* dx);
// One value per plane of `points` elements: the mean and the largest element.
template <typename T>
void global_average(int64_t planes, int64_t points, const T* x, T* y);
template <typename T>
void global_max(int64_t planes, int64_t points, const T* x, T* y);

}  // namespace ortrain
