// The random numbers by which kernels drop elements.
#pragma once

#include <cmath>
#include <cstdint>

namespace ortrain {

// The words of `blocks` draws of the generator (runtime/random.h) from counter (high, first) on, four a draw.
void random_words(uint64_t key, uint64_t high, uint64_t first, int64_t blocks, uint32_t* words);

// Of the 2^24 numbers that the upper bits of a word can be, those below this one drop the element.
inline uint32_t drop_limit(double ratio) {
  return static_cast<uint32_t>(std::ceil(static_cast<float>(ratio) * 0x1p24f));
}
inline bool is_kept(uint32_t word, uint32_t limit) { return word >> 8 >= limit; }

// The upper half of the counter: the stream of the node and the number of the run.
inline uint64_t dropout_counter(uint64_t stream, uint64_t run) { return stream << 32 ^ run; }

}  // namespace ortrain
