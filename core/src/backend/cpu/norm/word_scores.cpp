#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/word_scores.cpp"
#include <hwy/foreach_target.h>

#include <cmath>

#include "backend/cpu/norm/word_scores.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;

float LargestOf(const float* x, int64_t n) {
  const F32 d;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  auto largest = hn::Set(d, kLowest);
  ForVectors<float>(n, [&](int64_t i, int64_t count)
                           HWY_ATTR { largest = hn::Max(largest, LoadUpTo(d, x + i, count, kLowest)); });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// The power of a group: the least multiple of 16 whose 2^power no e^score exceeds; 0 if the largest score is
// NaN or very large. Scores of such a group become NaN.
int32_t PowerOf(float largest) {
  constexpr float kMost = 5e8f, kStep = 16;
  constexpr double kLog2 = 1.4426950408889634;
  if (!(std::abs(largest) < kMost)) return 0;
  return static_cast<int32_t>(kStep * std::ceil(static_cast<double>(largest) * kLog2 / kStep));
}

float LogOf(int32_t power) { return static_cast<float>(power * 0.6931471805599453); }

void Exponentials(const float* scores, int64_t n, ScoreGroup* groups, BFloat16* to) {
  const F32 d;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kFar = 64;
  for (int64_t begin = 0; begin < n; begin += kScoreGroup, ++groups) {
    const int64_t count = HWY_MIN(kScoreGroup, n - begin);
    const float largest = LargestOf(scores + begin, count);
    groups->power = PowerOf(largest);
    const auto reference = hn::Set(d, LogOf(groups->power));
    auto sum = hn::Zero(d);
    ForVectors<float>(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
      const auto x = LoadUpTo(d, scores + begin + i, lanes, -std::numeric_limits<float>::infinity());
      const auto e = math::ExpNegative(d, hn::Sub(x, reference));
      sum = hn::Add(sum, e);
      if (to) StoreUpTo(e, d, to + begin + i, lanes);
    });
    groups->sum =
        largest - LogOf(groups->power) < kFar || largest < 0 ? hn::GetLane(hn::SumOfLanes(d, sum)) : kNaN;
  }
}

float Exponential(float score, int32_t power) {
  const F32 d;
  return hn::GetLane(math::ExpNegative(d, hn::Set(d, score - LogOf(power))));
}

void ScaleByPower(BFloat16* values, int64_t n, int32_t power) {
  const F32 d;
  const auto factor = hn::Set(d, power_of_two(power));
  Map(values, values, n, [&](auto, auto v) HWY_ATTR { return hn::Mul(v, factor); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

void word_exponentials(const float* scores, int64_t n, ScoreGroup* groups, BFloat16* to) {
  ORTRAIN_DISPATCH(Exponentials)(scores, n, groups, to);
}

float word_exponential(float score, int32_t power) { return ORTRAIN_DISPATCH(Exponential)(score, power); }

float log_of_power(int32_t power) { return ORTRAIN_DISPATCH(LogOf)(power); }

void scale_by_power(BFloat16* values, int64_t n, int32_t power) {
  ORTRAIN_DISPATCH(ScaleByPower)(values, n, power);
}

}  // namespace ortrain
#endif
