// Batch normalization by given statistics, on channels that are stored side by side, and an activation.
#pragma once

#include "backend/cpu/norm/channel_sums.h"
#include "backend/cpu/norm/clip_range.h"
#include "runtime/half.h"

namespace ortrain {

// One value for each channel.
struct ChannelScaling {
  const float *mean, *variance, *scale, *bias;
  float epsilon;
  const ClipRange* range = nullptr;  // of the activation, if there is one
};

// Y = scale (X - mean) / sqrt(variance + epsilon) + bias, clipped to the range. Y may be X. `factors` is
// memory for a float per channel.
void channel_normalize(const ChannelLayout& layout, const float* x, const ChannelScaling& channels,
                       float* factors, float* y);
void channel_normalize(const ChannelLayout& layout, const BFloat16* x, const ChannelScaling& channels,
                       float* factors, BFloat16* y);

}  // namespace ortrain
