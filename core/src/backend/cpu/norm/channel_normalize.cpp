#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/channel_normalize.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <cmath>

#include "backend/cpu/norm/channel_normalize.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {

// y = factor (x - mean) + bias on `rows` rows.
template <bool kClips, typename T>
void NormalizeRows(const T* x, T* y, int64_t rows, int64_t lanes, const float* mean, const float* factor,
                   const float* bias, [[maybe_unused]] const ClipRange& range) {
  const hn::ScalableTag<float> d;
  const auto low = hn::Set(d, range.low), high = hn::Set(d, range.high);
  for (int64_t row = 0; row < rows; ++row, x += lanes, y += lanes)
    ForVectors<float>(lanes, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto centered = hn::Sub(LoadUpTo(d, x + i, count), LoadUpTo(d, mean + i, count));
      auto v = hn::MulAdd(centered, LoadUpTo(d, factor + i, count), LoadUpTo(d, bias + i, count));
      if constexpr (kClips) v = ClipTo(d, v, low, high);
      StoreUpTo(v, d, y + i, count);
    });
}

template <typename T>
auto NormalizeFor(bool clips) {
  return clips ? NormalizeRows<true, T> : NormalizeRows<false, T>;
}
auto NormalizeFloats(bool clips) { return NormalizeFor<float>(clips); }
auto NormalizeBf16(bool clips) { return NormalizeFor<BFloat16>(clips); }

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace ortrain {

namespace {

template <typename T, typename Normalize>
void run(const ChannelLayout& layout, const T* x, const ChannelScaling& channels, float* factors, T* y,
         Normalize normalize) {
  for (int64_t c = 0; c < layout.channels(); ++c)
    // The gradient computes the same bits, since it has to know which results were clipped.
    factors[c] = channels.scale[c] * (1.0f / std::sqrt(channels.variance[c] + channels.epsilon));
  const ClipRange range = channels.range ? *channels.range : ClipRange{};
  rows_from_last(layout, [&](int64_t at, int64_t rows, int64_t channel) {
    normalize(x + at, y + at, rows, layout.lanes, channels.mean + channel, factors + channel,
              channels.bias + channel, range);
  });
}

}  // namespace

void channel_normalize(const ChannelLayout& layout, const float* x, const ChannelScaling& channels,
                       float* factors, float* y) {
  run(layout, x, channels, factors, y, ORTRAIN_DISPATCH(NormalizeFloats)(channels.range != nullptr));
}

void channel_normalize(const ChannelLayout& layout, const BFloat16* x, const ChannelScaling& channels,
                       float* factors, BFloat16* y) {
  run(layout, x, channels, factors, y, ORTRAIN_DISPATCH(NormalizeBf16)(channels.range != nullptr));
}

}  // namespace ortrain
#endif
