// Pooling with channels last: vectors hold neighboring channels.
//
// The gradients collect what each element of dX gets from the windows that contain it, so threads never add
// to the same element.
#pragma once

#include <cstdint>

#include "backend/cpu/pool/row_major_pool.h"
#include "runtime/half.h"

namespace ortrain {

// Sizes of planes; `planes` is that of the images.
struct ChannelsLastPool {
  PoolSizes sizes;
  int64_t channels = 0;

  // Whether the functions below take windows of this size.
  bool suits() const;
};

// Values are floats or BFloat16, sums are in float.

// Y: the largest element of each window, NaN if one is NaN, and the lowest number for a window entirely in
// the padding. `taps`, if not null: the number of that element within the window, in the order of Y, for
// which floats are enough; -1 for a window in the padding.
template <typename T>
void channels_last_max_pool(const ChannelsLastPool& p, const T* x, T* y, float* taps);
template <typename T>
void channels_last_max_pool_backward(const ChannelsLastPool& p, const T* dy, const float* taps, T* dx);
template <typename T>
void channels_last_average_pool(const ChannelsLastPool& p, const T* x, T* y);
template <typename T>
void channels_last_average_pool_backward(const ChannelsLastPool& p, const T* dy, T* dx);
// The largest element of each image and channel.
template <typename T>
void channels_last_global_max(const ChannelsLastPool& p, const T* x, float* y);

}  // namespace ortrain
