#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/channels_last_depthwise.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <utility>

#include "backend/cpu/conv/channels_last_depthwise.h"
#include "backend/cpu/conv/finish-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/checked.h"
#include "runtime/threads.h"

#ifndef ORTRAIN_CHANNELS_LAST_DEPTHWISE_TYPES
#define ORTRAIN_CHANNELS_LAST_DEPTHWISE_TYPES
namespace ortrain {

// A line of the source that results read, and the weights that belong to it.
struct DepthwiseLine {
  const float *x, *w;
};

// Results of one line, and the elements of the window along it: tap k of a line has its weights at
// w + weights[k] and reads element i * step + offsets[k] for result i.
struct DepthwiseResults {
  int64_t channels, source, step, taps;
  const int64_t *offsets, *weights;
  int64_t first, past;              // of the results that are computed
  int64_t inner_first, inner_past;  // of those whose windows are inside
  int64_t every;                    // elements of the target from one result to the next
  float* y;                         // of result 0
};

struct ChannelsLastDepthwiseFunctions {
  // Y = bias + the sums over `count` lines; bias may be null.
  void (*sums)(const DepthwiseResults& r, int64_t count, const DepthwiseLine* lines, const float* bias);
  // totals[weights[k] + c] += the sum over all results of dy x, for the channels [begin, end); r.y is dY.
  void (*products)(const DepthwiseResults& r, const float* x, int64_t begin, int64_t end, float* totals);
  // See Finish.
  void (*finish)(int64_t rows, int64_t n, int64_t pitch, const float* bias, const float* addend,
                 const Activation& activation, float* y);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;

// `count` is that of the channels, less than a vector unless kWhole.
template <bool kWhole>
HWY_INLINE Vec<F32> LoadChannels(const float* from, int64_t count) {
  const F32 d;
  if constexpr (kWhole) return hn::LoadU(d, from);
  return LoadUpTo(d, from, count);
}
template <bool kWhole>
HWY_INLINE void StoreChannels(Vec<F32> v, float* to, int64_t count) {
  const F32 d;
  if constexpr (kWhole)
    hn::StoreU(v, d, to);
  else
    StoreUpTo(v, d, to, count);
}

// R neighboring results of a vector of channels, whose windows are inside.
template <int R, bool kWhole>
HWY_INLINE void InnerResults(const DepthwiseResults& r, int64_t at, int64_t lines_count,
                             const DepthwiseLine* lines, Vec<F32> start, int64_t channel, int64_t count) {
  auto s0 = start, s1 = start, s2 = start, s3 = start, s4 = start, s5 = start, s6 = start, s7 = start;
  const int64_t pitch = r.step * r.channels;
  for (int64_t l = 0; l < lines_count; ++l)
    for (int64_t k = 0; k < r.taps; ++k) {
      const auto weight = LoadChannels<kWhole>(lines[l].w + r.weights[k] + channel, count);
      const float* x = lines[l].x + at * pitch + r.offsets[k] * r.channels + channel;
#define ORTRAIN_RESULT(i) \
  if constexpr (R > i) s##i = hn::MulAdd(weight, LoadChannels<kWhole>(x + i * pitch, count), s##i);
      ORTRAIN_RESULT(0)
      ORTRAIN_RESULT(1)
      ORTRAIN_RESULT(2)
      ORTRAIN_RESULT(3)
      ORTRAIN_RESULT(4)
      ORTRAIN_RESULT(5)
      ORTRAIN_RESULT(6)
      ORTRAIN_RESULT(7)
#undef ORTRAIN_RESULT
    }
  float* y = r.y + at * r.every * r.channels + channel;
  const int64_t next = r.every * r.channels;
#define ORTRAIN_RESULT(i) \
  if constexpr (R > i) StoreChannels<kWhole>(s##i, y + i * next, count);
  ORTRAIN_RESULT(0)
  ORTRAIN_RESULT(1)
  ORTRAIN_RESULT(2)
  ORTRAIN_RESULT(3)
  ORTRAIN_RESULT(4)
  ORTRAIN_RESULT(5)
  ORTRAIN_RESULT(6)
  ORTRAIN_RESULT(7)
#undef ORTRAIN_RESULT
}

// One result at the border.
template <bool kWhole>
HWY_INLINE void OuterResult(const DepthwiseResults& r, int64_t at, int64_t lines_count,
                            const DepthwiseLine* lines, Vec<F32> start, int64_t channel, int64_t count) {
  auto sum = start;
  for (int64_t k = 0; k < r.taps; ++k) {
    const int64_t column = at * r.step + r.offsets[k];
    if (column < 0 || column >= r.source) continue;
    for (int64_t l = 0; l < lines_count; ++l)
      sum = hn::MulAdd(LoadChannels<kWhole>(lines[l].w + r.weights[k] + channel, count),
                       LoadChannels<kWhole>(lines[l].x + column * r.channels + channel, count), sum);
  }
  StoreChannels<kWhole>(sum, r.y + at * r.every * r.channels + channel, count);
}

template <bool kWhole>
void SumsOfChannels(const DepthwiseResults& r, int64_t lines_count, const DepthwiseLine* lines,
                    const float* bias, int64_t channel, int64_t count) {
  const F32 d;
  const auto start = bias ? LoadChannels<kWhole>(bias + channel, count) : hn::Zero(d);
  int64_t i = r.first;
  for (; i < r.inner_first; ++i) OuterResult<kWhole>(r, i, lines_count, lines, start, channel, count);
  for (; i + 8 <= r.inner_past; i += 8)
    InnerResults<8, kWhole>(r, i, lines_count, lines, start, channel, count);
  for (; i + 4 <= r.inner_past; i += 4)
    InnerResults<4, kWhole>(r, i, lines_count, lines, start, channel, count);
  for (; i < r.inner_past; ++i) InnerResults<1, kWhole>(r, i, lines_count, lines, start, channel, count);
  for (; i < r.past; ++i) OuterResult<kWhole>(r, i, lines_count, lines, start, channel, count);
}

void Sums(const DepthwiseResults& r, int64_t count, const DepthwiseLine* lines, const float* bias) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  int64_t channel = 0;
  for (; channel + lanes <= r.channels; channel += lanes)
    SumsOfChannels<true>(r, count, lines, bias, channel, lanes);
  if (channel < r.channels) SumsOfChannels<false>(r, count, lines, bias, channel, r.channels - channel);
}

// K taps from tap `first` on.
template <int K, bool kWhole>
HWY_INLINE void ProductsOfTaps(const DepthwiseResults& r, const float* x, int64_t first, int64_t channel,
                               int64_t count, float* totals) {
  const F32 d;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  const int64_t pitch = r.step * r.channels;
  const float* dy = r.y + channel;
  const auto border = [&](int64_t i) HWY_ATTR {
    const auto g = LoadChannels<kWhole>(dy + i * r.channels, count);
    const auto term = [&](int k, Vec<F32> sum) HWY_ATTR {
      const int64_t column = i * r.step + r.offsets[first + k];
      if (column < 0 || column >= r.source) return sum;
      return hn::MulAdd(g, LoadChannels<kWhole>(x + column * r.channels + channel, count), sum);
    };
    s0 = term(0, s0);
    if constexpr (K > 1) s1 = term(1, s1);
    if constexpr (K > 2) s2 = term(2, s2);
    if constexpr (K > 3) s3 = term(3, s3);
  };
  for (int64_t i = r.first; i < r.inner_first; ++i) border(i);
  const float* from = x + channel;
  const int64_t o0 = r.offsets[first] * r.channels, o1 = K > 1 ? r.offsets[first + 1] * r.channels : 0,
                o2 = K > 2 ? r.offsets[first + 2] * r.channels : 0,
                o3 = K > 3 ? r.offsets[first + 3] * r.channels : 0;
  for (int64_t i = r.inner_first; i < r.inner_past; ++i) {
    const auto g = LoadChannels<kWhole>(dy + i * r.channels, count);
    const float* at = from + i * pitch;
    s0 = hn::MulAdd(g, LoadChannels<kWhole>(at + o0, count), s0);
    if constexpr (K > 1) s1 = hn::MulAdd(g, LoadChannels<kWhole>(at + o1, count), s1);
    if constexpr (K > 2) s2 = hn::MulAdd(g, LoadChannels<kWhole>(at + o2, count), s2);
    if constexpr (K > 3) s3 = hn::MulAdd(g, LoadChannels<kWhole>(at + o3, count), s3);
  }
  for (int64_t i = r.inner_past; i < r.past; ++i) border(i);
  const auto add = [&](int k, Vec<F32> sum) HWY_ATTR {
    float* to = totals + r.weights[first + k] + channel;
    StoreChannels<kWhole>(hn::Add(LoadChannels<kWhole>(to, count), sum), to, count);
  };
  add(0, s0);
  if constexpr (K > 1) add(1, s1);
  if constexpr (K > 2) add(2, s2);
  if constexpr (K > 3) add(3, s3);
}

template <bool kWhole>
void ProductsOfChannels(const DepthwiseResults& r, const float* x, int64_t channel, int64_t count,
                        float* totals) {
  int64_t k = 0;
  for (; k + 4 <= r.taps; k += 4) ProductsOfTaps<4, kWhole>(r, x, k, channel, count, totals);
  if (k + 3 == r.taps) return ProductsOfTaps<3, kWhole>(r, x, k, channel, count, totals);
  if (k + 2 == r.taps) return ProductsOfTaps<2, kWhole>(r, x, k, channel, count, totals);
  if (k + 1 == r.taps) ProductsOfTaps<1, kWhole>(r, x, k, channel, count, totals);
}

void Products(const DepthwiseResults& r, const float* x, int64_t begin, int64_t end, float* totals) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  int64_t channel = begin;
  for (; channel + lanes <= end; channel += lanes) ProductsOfChannels<true>(r, x, channel, lanes, totals);
  if (channel < end) ProductsOfChannels<false>(r, x, channel, end - channel, totals);
}

ChannelsLastDepthwiseFunctions FindChannelsLastDepthwise() { return {Sums, Products, Finish}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

HWY_EXPORT(FindChannelsLastDepthwise);

ChannelsLastDepthwiseFunctions functions() { return HWY_DYNAMIC_DISPATCH(FindChannelsLastDepthwise)(); }

constexpr int64_t kLongest = 1 << 26;  // elements along an axis; then no size overflows
constexpr int64_t kMostLines = 256;    // of the source that a result reads
constexpr int64_t kColumns = 256;      // results of a line that are computed together

bool is_depthwise(const ConvSizes& s) {
  if (s.groups != s.channels || s.groups != s.filters || s.batch * s.filters == 0) return false;
  if (s.window[0].kernel > kMostLines || s.window[1].kernel > kMostLines) return false;
  if (s.window[0].kernel * s.window[1].kernel > kMostLines) return false;
  return std::all_of(s.window.begin(), s.window.end(), [](const WindowAxis& a) {
    return a.input > 0 && a.output > 0 && a.input <= kLongest && a.output <= kLongest && a.kernel <= 4096 &&
           a.stride <= 8 && a.before <= kLongest && capped_product({a.kernel, a.dilation}) <= kLongest;
  });
}

// The results along an axis whose windows are inside.
void set_inner(const PassAxis& a, DepthwiseResults& r) {
  r.inner_first = r.first, r.inner_past = r.past;
  if (a.offsets.empty()) return;
  while (r.inner_first < r.past && r.inner_first * a.step + a.offsets.front() < 0) ++r.inner_first;
  while (r.inner_past > r.inner_first && (r.inner_past - 1) * a.step + a.offsets.back() >= a.source)
    --r.inner_past;
}

// Calls f(source index, tap) for the elements of a window that are inside.
template <typename F>
void each_inside(const PassAxis& a, int64_t result, F&& f) {
  for (size_t k = 0; k < a.offsets.size(); ++k) {
    const int64_t at = result * a.step + a.offsets[k];
    if (at >= 0 && at < a.source) f(at, a.taps[k]);
  }
}

}  // namespace

ChannelsLastDepthwise::ChannelsLastDepthwise(const ConvSizes& sizes)
    : sizes_(sizes), suits_(is_depthwise(sizes)) {
  if (!suits_) return;
  taps_ = sizes_.column_rows();
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t work = capped_product({sizes_.batch, sizes_.output_points(), sizes_.channels, taps_});
  workers_ = std::clamp<int64_t>(work / tuning::kMultiplications / kGrain, 1, max_threads());
  const auto pass = [&](PassAxis outer, PassAxis middle, PassAxis inner) {
    Pass p{{std::move(outer), std::move(middle), std::move(inner)}, {}};
    for (const int64_t tap : p.axes[2].taps) p.places.push_back(tap * sizes_.channels);
    return p;
  };
  forward_ = pass(forward_axis(d), forward_axis(h), forward_axis(w));
  for (int64_t i = 0; i < std::min(d.stride, d.input); ++i)
    for (int64_t j = 0; j < std::min(h.stride, h.input); ++j)
      for (int64_t k = 0; k < std::min(w.stride, w.input); ++k)
        backward_.push_back(pass(backward_axis(d, i), backward_axis(h, j), backward_axis(w, k)));
}

void ChannelsLastDepthwise::turn_weights(const float* w, float* turned) const {
  for (int64_t c = 0; c < sizes_.channels; ++c)
    for (int64_t tap = 0; tap < taps_; ++tap) turned[tap * sizes_.channels + c] = w[c * taps_ + tap];
}

template <typename Finish>
void ChannelsLastDepthwise::run(const Pass& p, const float* source, const float* weights, const float* bias,
                                float* target, Finish&& finish) const {
  const ChannelsLastDepthwiseFunctions f = functions();
  const PassAxis &d = p.axes[0], &h = p.axes[1], &w = p.axes[2];
  const int64_t channels = sizes_.channels, across = (w.count + kColumns - 1) / kColumns;
  const int64_t items = sizes_.batch * d.count * h.count * across;
  parallel_for(workers_, kGrain, [&](int64_t first, int64_t past) {
    for (int64_t item = items * first / workers_; item < items * past / workers_; ++item) {
      const int64_t line = item / across, at_h = line % h.count, at_d = line / h.count % d.count;
      const int64_t image = line / h.count / d.count;
      DepthwiseLine lines[kMostLines];
      int64_t count = 0;
      each_inside(d, at_d, [&](int64_t i, int64_t tap_d) {
        each_inside(h, at_h, [&](int64_t j, int64_t tap_h) {
          lines[count++] = {
              source + ((image * d.source + i) * h.source + j) * w.source * channels,
              weights + (tap_d * sizes_.window[1].kernel + tap_h) * sizes_.window[2].kernel * channels};
        });
      });
      const int64_t result =
          ((image * d.target + d.first + at_d * d.every) * h.target + h.first + at_h * h.every) * w.target +
          w.first;
      DepthwiseResults r{channels,
                         w.source,
                         w.step,
                         std::ssize(w.taps),
                         w.offsets.data(),
                         p.places.data(),
                         item % across * kColumns,
                         0,
                         0,
                         0,
                         w.every,
                         target + result * channels};
      r.past = std::min(r.first + kColumns, w.count);
      set_inner(w, r);
      f.sums(r, count, lines, bias);
      finish(result + r.first * w.every, r.past - r.first);
    }
  });
}

void ChannelsLastDepthwise::forward(const float* x, const float* w, const float* bias, const float* addend,
                                    const Activation& activation, float* y, float* work) const {
  turn_weights(w, work);
  const ChannelsLastDepthwiseFunctions f = functions();
  const bool plain = !addend && activation.kind == Activation::Kind::kNone;
  run(forward_, x, work, bias, y, [&](int64_t result, int64_t count) {
    const int64_t at = result * sizes_.channels, n = count * sizes_.channels;
    if (!plain) f.finish(1, n, n, nullptr, addend ? addend + at : nullptr, activation, y + at);
  });
}

void ChannelsLastDepthwise::backward_data(const float* dy, const float* w, float* dx, float* work) const {
  turn_weights(w, work);
  for (const Pass& p : backward_) run(p, dy, work, nullptr, dx, [](int64_t, int64_t) {});
}

void ChannelsLastDepthwise::backward_weights(const float* dy, const float* x, float* dw, float* work) const {
  const ChannelsLastDepthwiseFunctions f = functions();
  const PassAxis &d = forward_.axes[0], &h = forward_.axes[1], &w = forward_.axes[2];
  constexpr int64_t kChannels = 64;  // of a task
  const int64_t channels = sizes_.channels, chunks = (channels + kChannels - 1) / kChannels;
  const int64_t tasks = sizes_.batch * chunks, size = taps_ * channels;
  // Each image has sums of its own.
  parallel_for(workers_, kGrain, [&](int64_t first, int64_t past) {
    for (int64_t task = tasks * first / workers_; task < tasks * past / workers_; ++task) {
      const int64_t image = task / chunks, begin = task % chunks * kChannels,
                    end = std::min(begin + kChannels, channels);
      float* sums = work + image * size;
      for (int64_t tap = 0; tap < taps_; ++tap)
        std::fill(sums + tap * channels + begin, sums + tap * channels + end, 0.0f);
      for (int64_t line = 0; line < d.count * h.count; ++line) {
        const int64_t at_d = line / h.count, at_h = line % h.count;
        // dY is only read.
        float* from = const_cast<float*>(dy) + (image * d.count * h.count + line) * w.count * channels;
        DepthwiseResults r{channels,
                           w.source,
                           w.step,
                           std::ssize(w.taps),
                           w.offsets.data(),
                           forward_.places.data(),
                           0,
                           w.count,
                           0,
                           0,
                           1,
                           from};
        set_inner(w, r);
        each_inside(d, at_d, [&](int64_t i, int64_t tap_d) {
          each_inside(h, at_h, [&](int64_t j, int64_t tap_h) {
            f.products(r, x + ((image * d.source + i) * h.source + j) * w.source * channels, begin, end,
                       sums + (tap_d * sizes_.window[1].kernel + tap_h) * sizes_.window[2].kernel * channels);
          });
        });
      }
    }
  });
  parallel_for(chunks, kChannels * taps_ * sizes_.batch, [&](int64_t first, int64_t past) {
    for (int64_t chunk = first; chunk < past; ++chunk)
      for (int64_t tap = 0; tap < taps_; ++tap) {
        const int64_t begin = chunk * kChannels, n = std::min(kChannels, channels - begin);
        double totals[kChannels] = {};
        for (int64_t image = 0; image < sizes_.batch; ++image)
          for (int64_t c = 0; c < n; ++c) totals[c] += work[image * size + tap * channels + begin + c];
        for (int64_t c = 0; c < n; ++c) dw[(begin + c) * taps_ + tap] = static_cast<float>(totals[c]);
      }
  });
}

}  // namespace ortrain
#endif
