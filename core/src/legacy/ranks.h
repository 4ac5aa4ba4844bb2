// Which part of the work a process has when several train together. The core does not communicate: it hands
// out buffers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "legacy/generated/training_parameters.h"

namespace ortrain {

// Throws kInvalidArgument where the sizes and options of several processes do not fit each other.
void check_ranks(const TrainingParameters& parameters);

// A process among those that share a batch, among those that share a layer, and its stage of the pipeline.
struct RankPlace {
  int64_t data = 0, horizontal = 0, stage = 0;
};
// Ranks that share a layer are neighbours, then come those that share a batch.
RankPlace place_of(const TrainingParameters& parameters);

// The elements [first, first + count) of something flat.
struct Range {
  int64_t first = 0, count = 0;
};
// ZeRO: the elements that a process updates of each of several arrays, which are thought of as one, in this
// order. All processes have equally many, a multiple of 32, but the last ones, which may have fewer.
std::vector<Range> zero_ranges(const std::vector<int64_t>& counts, int64_t processes, int64_t process);
// The name of such a part: <weight>_view_<i>, with i the number of cuts before it that this process sees.
std::string zero_view_name(const std::string& weight, const Range& range);

}  // namespace ortrain
