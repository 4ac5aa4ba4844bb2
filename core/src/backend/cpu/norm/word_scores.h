// Exponentials of the scores of a vocabulary, in bfloat16: what they are in relation to each other is known
// only once all scores of a row are, so those of each group have a power of two beside them.
#pragma once

#include <bit>
#include <cstdint>

#include "runtime/half.h"

namespace ortrain {

// Scores of neighbouring words that share a power.
inline constexpr int64_t kScoreGroup = 64;

struct ScoreGroup {
  int32_t power = 0;
  float sum = 0;  // of e^score 2^-power
};

// For each group of scores[0 .. n), the last of which may be smaller: the least power that is a multiple of
// 16 and leaves no term of the sum larger than 1; that sum; and to[i] = e^scores[i] 2^-power, unless `to` is
// null. The sum is NaN if a score is, or if one is 5 10^8 or more.
void word_exponentials(const float* scores, int64_t n, ScoreGroup* groups, BFloat16* to);
// e^score 2^-power, as above but not rounded to bfloat16.
float word_exponential(float score, int32_t power);
// The logarithm of 2^power, as the two functions above round it.
float log_of_power(int32_t power);
// 2^power for power <= 0, or 0 where that is less than the smallest normal number.
inline float power_of_two(int32_t power) {
  return power < -126 ? 0.0f : std::bit_cast<float>(static_cast<uint32_t>(power + 127) << 23);
}
// values[i] *= 2^power for i < n and power <= 0.
void scale_by_power(BFloat16* values, int64_t n, int32_t power);

}  // namespace ortrain
