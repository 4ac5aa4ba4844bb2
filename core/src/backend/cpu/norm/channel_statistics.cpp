// A float sum over the tens of thousands of values of a channel loses precision when values are added one by
// one. Here short runs are summed in float and the runs in double; values are taken relative to the channel's
// first one, so that the difference of squares does not cancel.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/channel_statistics.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/norm/channel_statistics.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {

// Rows whose sums are in float. All lanes of these rows are added before the next rows are read.
constexpr int64_t kRun = 64;

// Adds Σ (x - shift) and Σ (x - shift)² over at most kRun rows of `lanes` values to `sum` and `square`.
template <class D, typename T>
void add_lanes(D d, const T* x, int64_t rows, int64_t lanes, const T* shift, double* sum, double* square) {
  const auto zero = hn::Zero(d);
  const auto load = [d](const T* p) HWY_ATTR { return LoadUpTo(d, p, static_cast<int64_t>(hn::Lanes(d))); };
  const auto offset = load(shift);
  HWY_ALIGN float sums[hn::MaxLanes(D())], squares[hn::MaxLanes(D())];
  auto s0 = zero, s1 = zero, q0 = zero, q1 = zero;
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    const auto a = hn::Sub(load(x + r * lanes), offset);
    const auto b = hn::Sub(load(x + (r + 1) * lanes), offset);
    s0 = hn::Add(s0, a);
    s1 = hn::Add(s1, b);
    q0 = hn::MulAdd(a, a, q0);
    q1 = hn::MulAdd(b, b, q1);
  }
  if (r < rows) {
    const auto a = hn::Sub(load(x + r * lanes), offset);
    s0 = hn::Add(s0, a);
    q0 = hn::MulAdd(a, a, q0);
  }
  hn::Store(hn::Add(s0, s1), d, sums);
  hn::Store(hn::Add(q0, q1), d, squares);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    sum[i] += sums[i];
    square[i] += squares[i];
  }
}

template <typename T>
void add_block(const T* x, int64_t rows, int64_t lanes, const T* shift, double* sum, double* square) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> one;
  const auto width = static_cast<int64_t>(hn::Lanes(wide));
  for (int64_t row = 0; row < rows; row += kRun, x += kRun * lanes) {
    const int64_t count = HWY_MIN(kRun, rows - row);
    int64_t i = 0;
    for (; i + width <= lanes; i += width)
      add_lanes(wide, x + i, count, lanes, shift + i, sum + i, square + i);
    for (; i < lanes; ++i) add_lanes(one, x + i, count, lanes, shift + i, sum + i, square + i);
  }
}

void add_floats(const float* x, int64_t rows, int64_t lanes, const float* shift, double* sum,
                double* square) {
  add_block(x, rows, lanes, shift, sum, square);
}
void add_bf16(const BFloat16* x, int64_t rows, int64_t lanes, const BFloat16* shift, double* sum,
              double* square) {
  add_block(x, rows, lanes, shift, sum, square);
}

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace ortrain {

namespace {

template <typename T, typename AddBlock>
void run(const ChannelLayout& layout, const T* x, float* mean, float* variance, void* scratch, AddBlock add) {
  const int64_t channels = layout.channels(), lanes = layout.lanes;
  const auto first_of = [&](int64_t channel) {
    return x + channel / lanes * layout.rows * lanes + channel % lanes;
  };
  double* sums = static_cast<double*>(scratch);
  channel_sums(layout, sums, [&](int64_t at, int64_t rows, int64_t channel, double* sum, double* square) {
    add(x + at, rows, lanes, first_of(channel), sum, square);
  });
  const double count = static_cast<double>(layout.count());
  for (int64_t c = 0; c < channels; ++c) {
    const double shift = static_cast<double>(static_cast<float>(*first_of(c))), from_shift = sums[c] / count;
    mean[c] = static_cast<float>(shift + from_shift);
    variance[c] = static_cast<float>(std::max(0.0, sums[channels + c] / count - from_shift * from_shift));
  }
}

}  // namespace

void channel_statistics(const ChannelLayout& layout, const float* x, float* mean, float* variance,
                        void* scratch) {
  run(layout, x, mean, variance, scratch, ORTRAIN_DISPATCH(add_floats));
}

void channel_statistics(const ChannelLayout& layout, const BFloat16* x, float* mean, float* variance,
                        void* scratch) {
  run(layout, x, mean, variance, scratch, ORTRAIN_DISPATCH(add_bf16));
}

}  // namespace ortrain
#endif
