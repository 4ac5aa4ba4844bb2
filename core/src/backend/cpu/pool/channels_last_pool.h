// Pooling of floats with channels last: vectors hold neighboring channels.
//
// The gradients collect what each element of dX gets from the windows that contain it, so threads never add
// to the same element.
#pragma once

#include <cstdint>

#include "backend/cpu/pool/portable_pool.h"

namespace ortrain {

// Sizes of planes; `planes` is that of the images.
struct ChannelsLastPool {
  PoolSizes sizes;
  int64_t channels = 0;

  // Whether the functions below take windows of this size.
  bool suits() const;
};

// Y: the largest element of each window, NaN if one is NaN, and the lowest float for a window entirely in the
// padding. `taps`, if not null: the number of that element within the window, in the order of Y, for which
// floats are enough; -1 for a window in the padding.
void channels_last_max_pool(const ChannelsLastPool& p, const float* x, float* y, float* taps);
void channels_last_max_pool_backward(const ChannelsLastPool& p, const float* dy, const float* taps,
                                     float* dx);
void channels_last_average_pool(const ChannelsLastPool& p, const float* x, float* y);
void channels_last_average_pool_backward(const ChannelsLastPool& p, const float* dy, float* dx);
// One value for each image and channel: the mean and the largest element.
void channels_last_global_average(const ChannelsLastPool& p, const float* x, float* y);
void channels_last_global_max(const ChannelsLastPool& p, const float* x, float* y);

}  // namespace ortrain
