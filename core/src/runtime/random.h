// Counter-based random numbers: the value at a position depends only on (seed, stream, position), so it does
// not depend on the number of threads or on the order in which values are drawn.
//
// Philox-4x32-10: J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>

namespace ortrain {

// Four random 32-bit words for a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_high, uint64_t counter_low);

// The seed of the process (SetSeed); sessions and operators without their own seed draw from it.
void set_seed(int64_t seed);
int64_t seed();

}  // namespace ortrain
