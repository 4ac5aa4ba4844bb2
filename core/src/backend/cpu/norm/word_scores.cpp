#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/word_scores.cpp"
#include <hwy/foreach_target.h>

#include <cmath>
#include <limits>

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

// A multiple of 16: most groups have equal references, and differences between scores and references are
// exact.
float ReferenceOf(float largest) {
  constexpr float kStep = 16;
  return largest == -std::numeric_limits<float>::infinity() ? 0 : kStep * std::ceil(largest / kStep);
}

template <typename E>
void Exponentials(const float* scores, int64_t n, ScoreGroup* groups, E* to) {
  const F32 d;
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  for (int64_t begin = 0; begin < n; begin += kScoreGroup, ++groups) {
    const int64_t count = HWY_MIN(kScoreGroup, n - begin);
    groups->reference = ReferenceOf(LargestOf(scores + begin, count));
    const auto reference = hn::Set(d, groups->reference);
    auto sum = hn::Zero(d);
    ForVectors<float>(count, [&](int64_t i, int64_t lanes) HWY_ATTR {
      const auto x = LoadUpTo(d, scores + begin + i, lanes, kLowest);
      const auto e = math::ExpNegative(d, hn::Sub(x, reference));
      sum = hn::Add(sum, e);
      if (to) StoreUpTo(e, d, to + begin + i, lanes);
    });
    groups->sum = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

void ToFloats(const float* scores, int64_t n, ScoreGroup* groups, float* to) {
  Exponentials(scores, n, groups, to);
}
void ToHalves(const float* scores, int64_t n, ScoreGroup* groups, BFloat16* to) {
  Exponentials(scores, n, groups, to);
}

float Exponential(float x) {
  const F32 d;
  return hn::GetLane(math::ExpNegative(d, hn::Set(d, x)));
}

template <typename E>
void ScaleBy(E* values, int64_t n, float factor) {
  const F32 d;
  const auto by = hn::Set(d, factor);
  Map(values, values, n, [&](auto, auto v) HWY_ATTR { return hn::Mul(v, by); });
}
void ScaleFloats(float* values, int64_t n, float factor) { ScaleBy(values, n, factor); }
void ScaleHalves(BFloat16* values, int64_t n, float factor) { ScaleBy(values, n, factor); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

void word_exponentials(const float* scores, int64_t n, ScoreGroup* groups, float* to) {
  ORTRAIN_DISPATCH(ToFloats)(scores, n, groups, to);
}

void word_exponentials(const float* scores, int64_t n, ScoreGroup* groups, BFloat16* to) {
  ORTRAIN_DISPATCH(ToHalves)(scores, n, groups, to);
}

float word_exponential(float x) { return ORTRAIN_DISPATCH(Exponential)(x); }

void scale_exponentials(float* values, int64_t n, float factor) {
  ORTRAIN_DISPATCH(ScaleFloats)(values, n, factor);
}

void scale_exponentials(BFloat16* values, int64_t n, float factor) {
  ORTRAIN_DISPATCH(ScaleHalves)(values, n, factor);
}

}  // namespace ortrain
#endif
