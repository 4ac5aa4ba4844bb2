// The gradients of batch normalization by the statistics of the batch, on a float tensor, or on one stored in
// bfloat16.
#pragma once

#include "backend/cpu/norm/channel_sums.h"
#include "runtime/half.h"

namespace ortrain {

// Arguments and results, one value per channel. The results may be null.
struct ChannelGradients {
  const float *scale, *mean, *inverse_deviation;
  float *dscale, *dbias;
};

// Memory that channel_gradients needs.
size_t channel_gradients_scratch(const ChannelLayout& layout);

// dX may be dY, or null.
void channel_gradients(const ChannelLayout& layout, const float* dy, const float* x, float* dx,
                       const ChannelGradients& channels, void* scratch);
void channel_gradients(const ChannelLayout& layout, const BFloat16* dy, const BFloat16* x, BFloat16* dx,
                       const ChannelGradients& channels, void* scratch);

}  // namespace ortrain
