// Memory plan: offsets in one block for pieces that are in use during intervals of steps.
//
// If the block is larger than the largest sum of pieces in use at one time, which no placement can beat,
// the piece at the top is placed first and the others again, up to 64 times. A test requires that the
// block exceeds this bound by at most a tenth.
#pragma once

#include <cstddef>
#include <vector>

namespace ortrain {

struct MemoryRequest {
  size_t bytes;
  int first, last;  // steps, both included
};

struct MemoryPlan {
  std::vector<size_t> offsets;  // of each request
  size_t bytes = 0;             // of the whole block
};

// Pieces whose intervals overlap get disjoint memory. Largest first, each at the lowest offset that is free
// during its whole interval: greedy by size, Pisarchyk and Lee, "Efficient memory management for deep neural
// net inference", 2020. If that leaves gaps, the piece on top is moved to the front and all are placed again,
// a number of times (squeaky wheel optimization, Joslin and Clements, 1999).
MemoryPlan plan_memory(const std::vector<MemoryRequest>& requests);

// The largest sum of bytes in use at one step: no plan can need less.
size_t most_in_use(const std::vector<MemoryRequest>& requests);

}  // namespace ortrain
