// A float sum over the tens of thousands of values of a channel loses precision when values are added one by
// one. Here short runs are summed in float and the runs in double; values are taken relative to the channel's
// first one, so that the difference of squares does not cancel.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/channel_statistics.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/norm/channel_statistics.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {

// Adds Σ (x - shift) and Σ (x - shift)² over `rows` rows of `lanes` values to `sum` and `square`.
template <class D, typename T>
void add_lanes(D d, const T* x, int64_t rows, int64_t lanes, const T* shift, double* sum, double* square) {
  constexpr int64_t kRun = 64;
  const auto zero = hn::Zero(d);
  const auto load = [d](const T* p) HWY_ATTR { return LoadUpTo(d, p, static_cast<int64_t>(hn::Lanes(d))); };
  const auto offset = load(shift);
  HWY_ALIGN float sums[hn::MaxLanes(D())], squares[hn::MaxLanes(D())];
  for (int64_t begin = 0; begin < rows; begin += kRun) {
    const int64_t end = begin + kRun < rows ? begin + kRun : rows;
    auto s0 = zero, s1 = zero, q0 = zero, q1 = zero;
    int64_t r = begin;
    for (; r + 2 <= end; r += 2) {
      const auto a = hn::Sub(load(x + r * lanes), offset);
      const auto b = hn::Sub(load(x + (r + 1) * lanes), offset);
      s0 = hn::Add(s0, a);
      s1 = hn::Add(s1, b);
      q0 = hn::MulAdd(a, a, q0);
      q1 = hn::MulAdd(b, b, q1);
    }
    if (r < end) {
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
}

template <typename T>
void add_block(const T* x, int64_t rows, int64_t lanes, const T* shift, double* sum, double* square) {
  const hn::ScalableTag<float> wide;
  const hn::CappedTag<float, 1> one;
  const auto width = static_cast<int64_t>(hn::Lanes(wide));
  int64_t i = 0;
  for (; i + width <= lanes; i += width) add_lanes(wide, x + i, rows, lanes, shift + i, sum + i, square + i);
  for (; i < lanes; ++i) add_lanes(one, x + i, rows, lanes, shift + i, sum + i, square + i);
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
#include <algorithm>

#include "runtime/threads.h"

namespace ortrain {

HWY_EXPORT(add_floats);
HWY_EXPORT(add_bf16);

namespace {

// The rows of a channel are cut into this many parts for any number of threads, so that the result does
// not depend on it.
constexpr int64_t kParts = 8;

template <typename T>
using AddBlock = void (*)(const T* x, int64_t rows, int64_t lanes, const T* shift, double* sum,
                          double* square);

template <typename T>
void run(const ChannelLayout& layout, const T* x, float* mean, float* variance, void* scratch,
         AddBlock<T> add) {
  const int64_t channels = layout.channels(), lanes = layout.lanes, rows = layout.outer * layout.rows;
  double* sums = static_cast<double*>(scratch);
  double* squares = sums + kParts * channels;
  parallel_for(kParts * layout.blocks, 2 * rows * lanes / kParts, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t part = task / layout.blocks, block = task % layout.blocks;
      const T* shift = x + block * layout.rows * lanes;
      double* sum = sums + part * channels + block * lanes;
      double* square = squares + part * channels + block * lanes;
      std::fill(sum, sum + lanes, 0.0);
      std::fill(square, square + lanes, 0.0);
      for (int64_t at = rows * part / kParts, stop = rows * (part + 1) / kParts; at < stop;) {
        const int64_t outer = at / layout.rows, row = at % layout.rows;
        const int64_t count = std::min(layout.rows - row, stop - at);
        add(x + ((outer * layout.blocks + block) * layout.rows + row) * lanes, count, lanes, shift, sum,
            square);
        at += count;
      }
    }
  });
  for (int64_t c = 0; c < channels; ++c) {
    double sum = 0, square = 0;
    for (int64_t part = 0; part < kParts; ++part) {
      sum += sums[part * channels + c];
      square += squares[part * channels + c];
    }
    const double shift =
                     static_cast<double>(static_cast<float>(x[c / lanes * layout.rows * lanes + c % lanes])),
                 from_shift = sum / static_cast<double>(rows);
    mean[c] = static_cast<float>(shift + from_shift);
    variance[c] =
        static_cast<float>(std::max(0.0, square / static_cast<double>(rows) - from_shift * from_shift));
  }
}

}  // namespace

size_t channel_statistics_scratch(const ChannelLayout& layout) {
  return static_cast<size_t>(2 * kParts * layout.channels()) * sizeof(double);
}

void channel_statistics(const ChannelLayout& layout, const float* x, float* mean, float* variance,
                        void* scratch) {
  run<float>(layout, x, mean, variance, scratch, HWY_DYNAMIC_DISPATCH(add_floats));
}

void channel_statistics(const ChannelLayout& layout, const BFloat16* x, float* mean, float* variance,
                        void* scratch) {
  run<BFloat16>(layout, x, mean, variance, scratch, HWY_DYNAMIC_DISPATCH(add_bf16));
}

}  // namespace ortrain
#endif
