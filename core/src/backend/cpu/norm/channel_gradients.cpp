// dbias = Σ dY is often the same number many times, for example behind an average over a plane: added one by
// one in float, every addition then rounds in the same direction. So short runs are summed in float and the
// runs in double, as in channel_statistics.cpp.
// Compiled at -O3: sums of few channels take 0.75 of the time (CMakeLists.txt).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/channel_gradients.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/cache_control.h>

#include "backend/cpu/norm/channel_gradients.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_CHANNEL_GRADIENTS_TYPES
#define ORTRAIN_CHANNEL_GRADIENTS_TYPES
namespace ortrain {

// The channels of some rows: y = factor (x - mean) + bias is what the activation has read.
struct RowChannels {
  const float *mean, *factor, *bias;
  ClipRange range;

  RowChannels from(int64_t channel) const {
    return {mean + channel, factor + channel, bias ? bias + channel : nullptr, range};
  }
};

template <typename T>
struct RowFunctions {
  void (*add)(const T* dy, const T* x, int64_t rows, int64_t lanes, const RowChannels& channels, double* sum,
              double* product);
  void (*write)(const T* dy, const T* x, T* dx, int64_t rows, int64_t lanes, const RowChannels& channels,
                const float* a, const float* b);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {

// Elements of dY, or 0 where the activation does not pass them on. `centered` is x - mean.
template <bool kClips, class D, class V = Vec<D>>
HWY_INLINE V Passed(D d, V dy, V centered, const RowChannels& c, int64_t i, int64_t count) {
  if constexpr (kClips) {
    const auto y = hn::MulAdd(centered, LoadUpTo(d, c.factor + i, count), LoadUpTo(d, c.bias + i, count));
    const auto inside = hn::And(hn::Ge(y, hn::Set(d, c.range.low)), hn::Le(y, hn::Set(d, c.range.high)));
    // Not hn::Ne(): it is false if an operand is NaN, as `excluded` is for Clip.
    return hn::IfThenElseZero(hn::AndNot(hn::Eq(y, hn::Set(d, c.range.excluded)), inside), dy);
  } else {
    return dy;
  }
}

// Rows whose sums are in float. All lanes of these rows are added before the next rows are read.
constexpr int64_t kSummedRows = 32;

// Not inlined: the functions below exist for many types and instruction sets.
HWY_NOINLINE void add_to(double* to, const float* from, int64_t n) {
  for (int64_t k = 0; k < n; ++k) to[k] += static_cast<double>(from[k]);
}

// Adds Σ dy and Σ dy (x - mean) over at most kSummedRows rows of the `count` lanes from lane i on to `sum`
// and `product`. kWhole: the lanes are a whole vector, for which the code is much smaller.
template <bool kClips, bool kWhole, typename T>
void add_products(const T* dy, const T* x, int64_t rows, int64_t lanes, int64_t i, int64_t count,
                  const RowChannels& channels, double* sum, double* product) {
  constexpr int64_t kChains = 4;
  const hn::ScalableTag<float> d;
  if constexpr (kWhole) count = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float sums[hn::MaxLanes(d)], products[hn::MaxLanes(d)];
  const RowChannels c = channels;  // a copy, which no write to memory changes
  const auto middle = LoadUpTo(d, c.mean + i, count);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, p0 = s0, p1 = s0, p2 = s0, p3 = s0;
  const auto add = [&](int64_t row, auto& s, auto& p) HWY_ATTR {
    hwy::Prefetch(x + (row + kSummedRows) * lanes + i);
    hwy::Prefetch(dy + (row + kSummedRows) * lanes + i);
    const auto centered = hn::Sub(LoadUpTo(d, x + row * lanes + i, count), middle);
    const auto g = Passed<kClips>(d, LoadUpTo(d, dy + row * lanes + i, count), centered, c, i, count);
    s = hn::Add(s, g);
    p = hn::MulAdd(g, centered, p);
  };
  if constexpr (kWhole) {
    int64_t row = 0;
    for (; row + kChains <= rows; row += kChains) {
      add(row, s0, p0);
      add(row + 1, s1, p1);
      add(row + 2, s2, p2);
      add(row + 3, s3, p3);
    }
    for (; row < rows; ++row) add(row, s0, p0);
  } else {
    // The same number of short sums, one after the other: as accurate, and less code.
    for (int64_t chain = 0; chain < kChains; ++chain, s0 = hn::Add(s0, s1), p0 = hn::Add(p0, p1)) {
      s1 = p1 = hn::Zero(d);
      for (int64_t row = chain; row < rows; row += kChains) add(row, s1, p1);
    }
    s1 = p1 = hn::Zero(d);
  }
  hn::Store(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), d, sums);
  hn::Store(hn::Add(hn::Add(p0, p1), hn::Add(p2, p3)), d, products);
  add_to(sum + i, sums, count);
  add_to(product + i, products, count);
}

template <bool kClips, typename T>
void add_rows(const T* dy, const T* x, int64_t rows, int64_t lanes, const RowChannels& channels, double* sum,
              double* product) {
  const auto width = static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  for (int64_t row = 0; row < rows; row += kSummedRows, dy += kSummedRows * lanes, x += kSummedRows * lanes) {
    const int64_t count = HWY_MIN(kSummedRows, rows - row);
    int64_t i = 0;
    for (; i + width <= lanes; i += width)
      add_products<kClips, true>(dy, x, count, lanes, i, width, channels, sum, product);
    if (i < lanes) add_products<kClips, false>(dy, x, count, lanes, i, lanes - i, channels, sum, product);
  }
}

// dx = factor (dy - a - b (x - mean)) on `rows` rows.
template <bool kClips, typename T>
void write_rows(const T* dy, const T* x, T* dx, int64_t rows, int64_t lanes, const RowChannels& channels,
                const float* a, const float* b) {
  constexpr int64_t kRows = 16;  // keeps the rows in the cache while all lanes are computed
  const hn::ScalableTag<float> d;
  const RowChannels c = channels;
  for (int64_t begin = 0; begin < rows; begin += kRows) {
    const int64_t end = HWY_MIN(begin + kRows, rows);
    ForVectors<float>(lanes, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto middle = LoadUpTo(d, c.mean + i, count), times = LoadUpTo(d, c.factor + i, count);
      const auto offset = LoadUpTo(d, a + i, count), coefficient = LoadUpTo(d, b + i, count);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * lanes + i;
        hwy::Prefetch(x + at + kRows * lanes);
        hwy::Prefetch(dy + at + kRows * lanes);
        const auto centered = hn::Sub(LoadUpTo(d, x + at, count), middle);
        const auto passed = Passed<kClips>(d, LoadUpTo(d, dy + at, count), centered, c, i, count);
        const auto g = hn::Sub(passed, offset);
        StoreUpTo(hn::Mul(times, hn::NegMulAdd(coefficient, centered, g)), d, dx + at, count);
      }
    });
  }
}

template <typename T>
RowFunctions<T> FunctionsFor(bool clips) {
  if (clips) return {add_rows<true, T>, write_rows<true, T>};
  return {add_rows<false, T>, write_rows<false, T>};
}
RowFunctions<float> FloatRows(bool clips) { return FunctionsFor<float>(clips); }
RowFunctions<BFloat16> Bf16Rows(bool clips) { return FunctionsFor<BFloat16>(clips); }

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace ortrain {

namespace {

// With x̂ = (x - mean) / deviation:  dbias = Σ dy,  dscale = Σ dy x̂,
// dx = scale / deviation (dy - dbias / count - x̂ dscale / count).
template <typename T>
void run(const ChannelLayout& layout, const T* dy, const T* x, T* dx, const ChannelGradients& channels,
         void* scratch, RowFunctions<T> functions) {
  double* sums = static_cast<double*>(scratch);
  const int64_t n = layout.channels();
  float* factor = reinterpret_cast<float*>(sums + 2 * kChannelParts * n);
  float *a = factor + n, *b = a + n;
  for (int64_t c = 0; c < n; ++c) factor[c] = channels.scale[c] * channels.inverse_deviation[c];
  const RowChannels of_rows{channels.mean, factor, channels.bias,
                            channels.range ? *channels.range : ClipRange{}};
  channel_sums(layout, sums, [&](int64_t at, int64_t rows, int64_t channel, double* sum, double* product) {
    functions.add(dy + at, x + at, rows, layout.lanes, of_rows.from(channel), sum, product);
  });
  const double count = static_cast<double>(std::max<int64_t>(layout.count(), 1));
  for (int64_t c = 0; c < n; ++c) {
    const double inverse = channels.inverse_deviation[c], sum = sums[c], product = sums[n + c] * inverse;
    if (channels.dbias) channels.dbias[c] = static_cast<float>(sum);
    if (channels.dscale) channels.dscale[c] = static_cast<float>(product);
    a[c] = static_cast<float>(sum / count);
    b[c] = static_cast<float>(product / count * inverse);
  }
  if (!dx) return;
  rows_from_last(layout, [&](int64_t at, int64_t rows, int64_t channel) {
    functions.write(dy + at, x + at, dx + at, rows, layout.lanes, of_rows.from(channel), a + channel,
                    b + channel);
  });
}

}  // namespace

size_t channel_gradients_scratch(const ChannelLayout& layout) {
  return channel_sums_scratch(layout) + 3 * static_cast<size_t>(layout.channels()) * sizeof(float);
}

void channel_gradients(const ChannelLayout& layout, const float* dy, const float* x, float* dx,
                       const ChannelGradients& channels, void* scratch) {
  run(layout, dy, x, dx, channels, scratch, ORTRAIN_DISPATCH(FloatRows)(channels.range != nullptr));
}

void channel_gradients(const ChannelLayout& layout, const BFloat16* dy, const BFloat16* x, BFloat16* dx,
                       const ChannelGradients& channels, void* scratch) {
  run(layout, dy, x, dx, channels, scratch, ORTRAIN_DISPATCH(Bf16Rows)(channels.range != nullptr));
}

}  // namespace ortrain
#endif
