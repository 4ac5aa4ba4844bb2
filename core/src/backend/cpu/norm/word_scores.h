// Exponentials of the scores of a vocabulary, in float or bfloat16. The largest score of a row is known only
// once all its scores are computed, so the exponentials of each group are relative to a reference of the
// group.
#pragma once

#include <cstdint>

#include "runtime/half.h"

namespace ortrain {

// Scores of neighbouring words that share a reference.
inline constexpr int64_t kScoreGroup = 64;

struct ScoreGroup {
  float reference = 0, sum = 0;  // of e^(score - reference)
};

// For each group of scores[0 .. n), the last of which may be smaller: the least multiple of 16 that no score
// exceeds, or the largest score where floats are farther apart than 16; the sum; and to[i] = e^(scores[i] -
// reference), unless `to` is null. The sum is NaN if a score is NaN or +infinity, and 0 if all are -infinity.
void word_exponentials(const float* scores, int64_t n, ScoreGroup* groups, float* to);
void word_exponentials(const float* scores, int64_t n, ScoreGroup* groups, BFloat16* to);
// e^x for x <= 0, as above but not rounded to bfloat16.
float word_exponential(float x);
// values[i] *= factor for i < n.
void scale_exponentials(float* values, int64_t n, float factor);
void scale_exponentials(BFloat16* values, int64_t n, float factor);

}  // namespace ortrain
