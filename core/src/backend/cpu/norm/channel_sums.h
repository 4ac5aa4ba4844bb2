// Two sums for every channel of a tensor, in an order that does not depend on the number of threads, and a
// second pass over the rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cpu/tuning.h"
#include "runtime/threads.h"

namespace ortrain {

// How channels are stored in memory: [outer][block][row][lane], channel = block * lanes + lane. Channels last
// has one block.
struct ChannelLayout {
  int64_t outer = 0, blocks = 0, rows = 0, lanes = 0;
  int64_t channels() const { return blocks * lanes; }
  int64_t count() const { return outer * rows; }  // values of one channel
};

// The rows of a channel are cut into this many parts for any number of threads.
inline constexpr int64_t kChannelParts = 8;

// Memory that channel_sums needs.
inline size_t channel_sums_scratch(const ChannelLayout& layout) {
  return static_cast<size_t>(2 * kChannelParts * layout.channels()) * sizeof(double);
}

// add(at, rows, channel, first, second) adds what `rows` consecutive rows contribute to the sums of the
// channels from `channel` on, one for each lane; the rows begin at element `at`. Afterwards the scratch
// memory begins with the first sum of every channel, followed by the second ones.
template <typename Add>
void channel_sums(const ChannelLayout& layout, double* sums, Add&& add) {
  const int64_t channels = layout.channels(), lanes = layout.lanes, rows = layout.count();
  parallel_for(kChannelParts * layout.blocks, 2 * rows * lanes / kChannelParts,
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t part = task / layout.blocks, block = task % layout.blocks;
                   double* first = sums + 2 * part * channels + block * lanes;
                   double* second = first + channels;
                   std::fill(first, first + lanes, 0.0);
                   std::fill(second, second + lanes, 0.0);
                   const int64_t stop = rows * (part + 1) / kChannelParts;
                   for (int64_t at = rows * part / kChannelParts; at < stop;) {
                     const int64_t outer = at / layout.rows, row = at % layout.rows;
                     const int64_t count = std::min(layout.rows - row, stop - at);
                     add(((outer * layout.blocks + block) * layout.rows + row) * lanes, count, block * lanes,
                         first, second);
                     at += count;
                   }
                 }
               });
  for (int64_t part = 1; part < kChannelParts; ++part)
    for (int64_t i = 0; i < 2 * channels; ++i) sums[i] += sums[2 * part * channels + i];
}

// Calls f(at, rows, channel) for pieces of all rows: `rows` consecutive rows of the lanes from `channel` on,
// which begin at element `at`. Each thread begins with the rows that it has read last in channel_sums, since
// they may still be in a cache.
template <typename F>
void rows_from_last(const ChannelLayout& layout, F&& f) {
  const int64_t lanes = layout.lanes;
  if (lanes == 0) return;
  const int64_t most = std::max<int64_t>(1, tuning::kRowsFromLast / lanes);
  parallel_for(layout.outer * layout.blocks * layout.rows, 2 * lanes, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t first = std::max({begin, end - most, (end - 1) / layout.rows * layout.rows});
      f(first * lanes, end - first, first / layout.rows % layout.blocks * lanes);
      end = first;
    }
  });
}

}  // namespace ortrain
