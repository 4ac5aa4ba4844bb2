// Mean and variance of every channel of a float tensor, or of one stored in bfloat16, in one pass that is
// accurate even for long channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/half.h"

namespace ortrain {

// How channels are stored in memory: [outer][block][row][lane], channel = block * lanes + lane. Channels last
// has one block.
struct ChannelLayout {
  int64_t outer = 0, blocks = 0, rows = 0, lanes = 0;
  int64_t channels() const { return blocks * lanes; }
};

// Memory that channel_statistics needs.
size_t channel_statistics_scratch(const ChannelLayout& layout);

// mean and (biased) variance, channels() values each.
void channel_statistics(const ChannelLayout& layout, const float* x, float* mean, float* variance,
                        void* scratch);
void channel_statistics(const ChannelLayout& layout, const BFloat16* x, float* mean, float* variance,
                        void* scratch);

}  // namespace ortrain
