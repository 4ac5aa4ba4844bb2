// Mean and variance of every channel of a float tensor, or of one stored in bfloat16, in one pass that is
// accurate even for long channels.
#pragma once

#include "backend/cpu/norm/channel_sums.h"
#include "runtime/half.h"

namespace ortrain {

// mean and (biased) variance, channels() values each. The scratch memory is that of channel_sums.
void channel_statistics(const ChannelLayout& layout, const float* x, float* mean, float* variance,
                        void* scratch);
void channel_statistics(const ChannelLayout& layout, const BFloat16* x, float* mean, float* variance,
                        void* scratch);

}  // namespace ortrain
