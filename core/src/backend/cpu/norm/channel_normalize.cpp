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
template <typename T>
void NormalizeRows(const T* x, T* y, int64_t rows, int64_t lanes, const float* mean, const float* factor,
                   const float* bias) {
  const hn::ScalableTag<float> d;
  for (int64_t row = 0; row < rows; ++row, x += lanes, y += lanes)
    ForVectors<float>(lanes, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto centered = hn::Sub(LoadUpTo(d, x + i, count), LoadUpTo(d, mean + i, count));
      StoreUpTo(hn::MulAdd(centered, LoadUpTo(d, factor + i, count), LoadUpTo(d, bias + i, count)), d, y + i,
                count);
    });
}

void NormalizeFloats(const float* x, float* y, int64_t rows, int64_t lanes, const float* mean,
                     const float* factor, const float* bias) {
  NormalizeRows(x, y, rows, lanes, mean, factor, bias);
}
void NormalizeBf16(const BFloat16* x, BFloat16* y, int64_t rows, int64_t lanes, const float* mean,
                   const float* factor, const float* bias) {
  NormalizeRows(x, y, rows, lanes, mean, factor, bias);
}

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace ortrain {

namespace {

template <typename T, typename Normalize>
void run(const ChannelLayout& layout, const T* x, const ChannelScaling& channels, float* factors, T* y,
         Normalize normalize) {
  for (int64_t c = 0; c < layout.channels(); ++c)
    factors[c] = channels.scale[c] / std::sqrt(channels.variance[c] + channels.epsilon);
  const int64_t lanes = layout.lanes;
  parallel_for(layout.outer * layout.blocks * layout.rows, 2 * lanes, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t stop = std::min(end, (begin / layout.rows + 1) * layout.rows);
      const int64_t channel = begin / layout.rows % layout.blocks * lanes, at = begin * lanes;
      normalize(x + at, y + at, stop - begin, lanes, channels.mean + channel, factors + channel,
                channels.bias + channel);
      begin = stop;
    }
  });
}

}  // namespace

void channel_normalize(const ChannelLayout& layout, const float* x, const ChannelScaling& channels,
                       float* factors, float* y) {
  run(layout, x, channels, factors, y, ORTRAIN_DISPATCH(NormalizeFloats));
}

void channel_normalize(const ChannelLayout& layout, const BFloat16* x, const ChannelScaling& channels,
                       float* factors, BFloat16* y) {
  run(layout, x, channels, factors, y, ORTRAIN_DISPATCH(NormalizeBf16));
}

}  // namespace ortrain
#endif
