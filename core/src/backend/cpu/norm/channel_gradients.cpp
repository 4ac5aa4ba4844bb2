// dbias = Σ dY is often the same number many times, for example behind an average over a plane: added one by
// one in float, every addition then rounds in the same direction. So short runs are summed in float and the
// runs in double, as in channel_statistics.cpp.
// Compiled at -O3: sums of few channels take 0.75 of the time (CMakeLists.txt).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/channel_gradients.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/norm/channel_gradients.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {

// Adds Σ dy and Σ dy (x - mean) over `rows` rows of the first `count` lanes to `sum` and `product`.
template <typename T>
void add_products(const T* dy, const T* x, int64_t rows, int64_t lanes, int64_t count, const float* mean,
                  double* sum, double* product) {
  constexpr int64_t kRun = 32, kChains = 4;
  const hn::ScalableTag<float> d;
  HWY_ALIGN float sums[hn::MaxLanes(d)], products[hn::MaxLanes(d)];
  const auto middle = LoadUpTo(d, mean, count);
  for (int64_t begin = 0; begin < rows; begin += kRun) {
    const int64_t end = HWY_MIN(begin + kRun, rows);
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, p0 = s0, p1 = s0, p2 = s0, p3 = s0;
    const auto add = [&](int64_t row, auto& s, auto& p) HWY_ATTR {
      const auto g = LoadUpTo(d, dy + row * lanes, count);
      s = hn::Add(s, g);
      p = hn::MulAdd(g, hn::Sub(LoadUpTo(d, x + row * lanes, count), middle), p);
    };
    int64_t row = begin;
    for (; row + kChains <= end; row += kChains) {
      add(row, s0, p0);
      add(row + 1, s1, p1);
      add(row + 2, s2, p2);
      add(row + 3, s3, p3);
    }
    for (; row < end; ++row) add(row, s0, p0);
    hn::Store(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), d, sums);
    hn::Store(hn::Add(hn::Add(p0, p1), hn::Add(p2, p3)), d, products);
    for (int64_t i = 0; i < count; ++i) {
      sum[i] += sums[i];
      product[i] += products[i];
    }
  }
}

template <typename T>
void add_rows(const T* dy, const T* x, int64_t rows, int64_t lanes, const float* mean, double* sum,
              double* product) {
  ForVectors<float>(lanes, [&](int64_t i, int64_t count) {
    add_products(dy + i, x + i, rows, lanes, count, mean + i, sum + i, product + i);
  });
}

// dx = factor (dy - a - b (x - mean)) on `rows` rows.
template <typename T>
void write_rows(const T* dy, const T* x, T* dx, int64_t rows, int64_t lanes, const float* mean,
                const float* factor, const float* a, const float* b) {
  constexpr int64_t kRun = 16;  // keeps the rows in the cache while all lanes are computed
  const hn::ScalableTag<float> d;
  for (int64_t begin = 0; begin < rows; begin += kRun) {
    const int64_t end = HWY_MIN(begin + kRun, rows);
    ForVectors<float>(lanes, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto middle = LoadUpTo(d, mean + i, count), times = LoadUpTo(d, factor + i, count);
      const auto offset = LoadUpTo(d, a + i, count), coefficient = LoadUpTo(d, b + i, count);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * lanes + i;
        const auto centered = hn::Sub(LoadUpTo(d, x + at, count), middle);
        const auto g = hn::Sub(LoadUpTo(d, dy + at, count), offset);
        StoreUpTo(hn::Mul(times, hn::NegMulAdd(coefficient, centered, g)), d, dx + at, count);
      }
    });
  }
}

void add_floats(const float* dy, const float* x, int64_t rows, int64_t lanes, const float* mean, double* sum,
                double* product) {
  add_rows(dy, x, rows, lanes, mean, sum, product);
}
void add_bf16(const BFloat16* dy, const BFloat16* x, int64_t rows, int64_t lanes, const float* mean,
              double* sum, double* product) {
  add_rows(dy, x, rows, lanes, mean, sum, product);
}
void write_floats(const float* dy, const float* x, float* dx, int64_t rows, int64_t lanes, const float* mean,
                  const float* factor, const float* a, const float* b) {
  write_rows(dy, x, dx, rows, lanes, mean, factor, a, b);
}
void write_bf16(const BFloat16* dy, const BFloat16* x, BFloat16* dx, int64_t rows, int64_t lanes,
                const float* mean, const float* factor, const float* a, const float* b) {
  write_rows(dy, x, dx, rows, lanes, mean, factor, a, b);
}

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace ortrain {

namespace {

// With x̂ = (x - mean) / deviation:  dbias = Σ dy,  dscale = Σ dy x̂,
// dx = scale / deviation (dy - dbias / count - x̂ dscale / count).
template <typename T, typename AddRows, typename WriteRows>
void run(const ChannelLayout& layout, const T* dy, const T* x, T* dx, const ChannelGradients& channels,
         void* scratch, AddRows add, WriteRows write) {
  double* sums = static_cast<double*>(scratch);
  channel_sums(layout, sums, [&](int64_t at, int64_t rows, int64_t channel, double* sum, double* product) {
    add(dy + at, x + at, rows, layout.lanes, channels.mean + channel, sum, product);
  });
  const int64_t n = layout.channels();
  float* factor = reinterpret_cast<float*>(sums + 2 * kChannelParts * n);
  float *a = factor + n, *b = a + n;
  const double count = static_cast<double>(std::max<int64_t>(layout.count(), 1));
  for (int64_t c = 0; c < n; ++c) {
    const double inverse = channels.inverse_deviation[c], sum = sums[c], product = sums[n + c] * inverse;
    if (channels.dbias) channels.dbias[c] = static_cast<float>(sum);
    if (channels.dscale) channels.dscale[c] = static_cast<float>(product);
    factor[c] = channels.scale[c] * channels.inverse_deviation[c];
    a[c] = static_cast<float>(sum / count);
    b[c] = static_cast<float>(product / count * inverse);
  }
  if (!dx) return;
  // Divides the rows of all blocks, so that every thread has work even with a single block.
  const int64_t lanes = layout.lanes;
  parallel_for(layout.outer * layout.blocks * layout.rows, 2 * lanes, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t stop = std::min(end, (begin / layout.rows + 1) * layout.rows);
      const int64_t channel = begin / layout.rows % layout.blocks * lanes, at = begin * lanes;
      write(dy + at, x + at, dx + at, stop - begin, lanes, channels.mean + channel, factor + channel,
            a + channel, b + channel);
      begin = stop;
    }
  });
}

}  // namespace

size_t channel_gradients_scratch(const ChannelLayout& layout) {
  return channel_sums_scratch(layout) + 3 * static_cast<size_t>(layout.channels()) * sizeof(float);
}

void channel_gradients(const ChannelLayout& layout, const float* dy, const float* x, float* dx,
                       const ChannelGradients& channels, void* scratch) {
  run(layout, dy, x, dx, channels, scratch, ORTRAIN_DISPATCH(add_floats), ORTRAIN_DISPATCH(write_floats));
}

void channel_gradients(const ChannelLayout& layout, const BFloat16* dy, const BFloat16* x, BFloat16* dx,
                       const ChannelGradients& channels, void* scratch) {
  run(layout, dy, x, dx, channels, scratch, ORTRAIN_DISPATCH(add_bf16), ORTRAIN_DISPATCH(write_bf16));
}

}  // namespace ortrain
#endif
