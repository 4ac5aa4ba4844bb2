// The gradients of batch normalization by the statistics of the batch, and of an activation after it, on a
// float tensor, or on one stored in bfloat16.
#pragma once

#include "backend/cpu/norm/channel_sums.h"
#include "backend/cpu/norm/clip_range.h"
#include "runtime/half.h"

namespace ortrain {

// Arguments and results, one value per channel. The results may be null.
struct ChannelGradients {
  const float *scale, *mean, *inverse_deviation;
  float *dscale, *dbias;
  // If there is an activation: dY is the gradient of its result, and the bias is that of the normalization.
  const ClipRange* range = nullptr;
  const float* bias = nullptr;
};

// Memory that channel_gradients needs.
size_t channel_gradients_scratch(const ChannelLayout& layout);

// dX may be dY, or null.
void channel_gradients(const ChannelLayout& layout, const float* dy, const float* x, float* dx,
                       const ChannelGradients& channels, void* scratch);
void channel_gradients(const ChannelLayout& layout, const BFloat16* dy, const BFloat16* x, BFloat16* dx,
                       const ChannelGradients& channels, void* scratch);

}  // namespace ortrain
