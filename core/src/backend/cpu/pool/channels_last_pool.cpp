#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/pool/channels_last_pool.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/pool/channels_last_pool.h"
#include "backend/cpu/pool/window_span.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/checked.h"
#include "runtime/threads.h"

#ifndef ORTRAIN_CHANNELS_LAST_POOL_TYPES
#define ORTRAIN_CHANNELS_LAST_POOL_TYPES
namespace ortrain {

// The most lines, and elements of a line, that belong to one element of a result.
inline constexpr int64_t kMostPoolLines = 256, kMostPoolColumns = 256;

// What belongs to one element of a result: the elements of lines of X or dY. The factors or numbers of a line
// and of a column together are those of an element.
struct PoolLine {
  const float *values, *taps;
  float number;
};
struct PoolColumn {
  int64_t at;
  float number;
};
struct PoolElements {
  PoolLine lines[kMostPoolLines];
  PoolColumn columns[kMostPoolColumns];
  int64_t line_count = 0, column_count = 0;
};

// For all channels of one element of the result.
struct PoolFunctions {
  // y = the largest element, and its number if `taps` is not null.
  void (*largest)(int64_t channels, const PoolElements& e, float* y, float* taps);
  // y = the sum of the elements / divisor
  void (*mean)(int64_t channels, const PoolElements& e, float divisor, float* y);
  // dx = the sum of dY where its tap is the number.
  void (*largest_gradient)(int64_t channels, const PoolElements& e, float* dx);
  // dx = the sum of dY times both factors.
  void (*mean_gradient)(int64_t channels, const PoolElements& e, float* dx);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;

// f(values, taps, number of the line, number of the column, channels in the vector) for all elements.
template <class F>
HWY_INLINE void EachElement(int64_t channels, const PoolElements& e, int64_t channel, const F& f) {
  for (int64_t l = 0; l < e.line_count; ++l)
    for (int64_t k = 0; k < e.column_count; ++k) {
      const int64_t at = e.columns[k].at * channels + channel;
      f(e.lines[l].values + at, e.lines[l].taps + at, e.lines[l].number, e.columns[k].number);
    }
}

void Largest(int64_t channels, const PoolElements& e, float* y, float* taps) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto best = hn::Set(d, std::numeric_limits<float>::lowest()), where = hn::Set(d, -1.0f);
    EachElement(channels, e, c, [&](const float* values, const float*, float line, float column) HWY_ATTR {
      const auto v = LoadUpTo(d, values, count);
      // The first element counts even if it is minus infinity; NaN stays.
      const auto larger = hn::Or(hn::Gt(v, best), hn::Lt(where, hn::Zero(d)));
      const auto taken = hn::Or(larger, hn::And(hn::Ne(v, v), hn::Eq(best, best)));
      best = hn::IfThenElse(taken, v, best);
      where = hn::IfThenElse(taken, hn::Set(d, line + column), where);
    });
    StoreUpTo(best, d, y + c, count);
    if (taps) StoreUpTo(where, d, taps + c, count);
  });
}

void Mean(int64_t channels, const PoolElements& e, float divisor, float* y) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto sum = hn::Zero(d);
    EachElement(channels, e, c, [&](const float* values, const float*, float, float) HWY_ATTR {
      sum = hn::Add(sum, LoadUpTo(d, values, count));
    });
    StoreUpTo(hn::Div(sum, hn::Set(d, divisor)), d, y + c, count);
  });
}

void LargestGradient(int64_t channels, const PoolElements& e, float* dx) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto sum = hn::Zero(d);
    EachElement(channels, e, c,
                [&](const float* values, const float* taps, float line, float column) HWY_ATTR {
                  const auto here = hn::Eq(LoadUpTo(d, taps, count), hn::Set(d, line + column));
                  sum = hn::Add(sum, hn::IfThenElseZero(here, LoadUpTo(d, values, count)));
                });
    StoreUpTo(sum, d, dx + c, count);
  });
}

void MeanGradient(int64_t channels, const PoolElements& e, float* dx) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto sum = hn::Zero(d);
    EachElement(channels, e, c, [&](const float* values, const float*, float line, float column) HWY_ATTR {
      sum = hn::MulAdd(LoadUpTo(d, values, count), hn::Set(d, line * column), sum);
    });
    StoreUpTo(sum, d, dx + c, count);
  });
}

PoolFunctions FindPool() { return {Largest, Mean, LargestGradient, MeanGradient}; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

HWY_EXPORT(FindPool);

PoolFunctions functions() { return HWY_DYNAMIC_DISPATCH(FindPool)(); }

int64_t window_points(const PoolSizes& s) {
  return capped_product({s.window[0].kernel, s.window[1].kernel, s.window[2].kernel});
}

// Calls f(windows, tap) for the windows along an axis that contain element i.
template <typename F>
void each_window(const WindowAxis& a, int64_t i, F&& f) {
  for (int64_t k = 0; k < a.kernel; ++k) {
    const int64_t distance = i + a.before - k * a.dilation;
    if (distance < 0) return;
    if (distance % a.stride == 0 && distance / a.stride < a.output) f(distance / a.stride, k);
  }
}

// How much each element of window o along an axis counts in a mean, for this axis.
float share_of(const PoolSizes& s, const WindowAxis& a, int64_t o) {
  const WindowSpan span = inside(a, o);
  const int64_t count = s.count_padding ? inside_padded(a, o) : span.last - span.first;
  return count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
}

// Calls compute(elements, place in Y, the indices of the window along the axes) for all of Y.
template <typename F>
void each_result(const ChannelsLastPool& p, const float* x, F&& compute) {
  const WindowAxis &d = p.sizes.window[0], &h = p.sizes.window[1], &w = p.sizes.window[2];
  const int64_t row = w.input * p.channels;
  const int64_t cost = capped_product({w.output, p.channels, window_points(p.sizes)});
  parallel_for(p.sizes.planes * d.output * h.output, cost, [&](int64_t begin, int64_t end) {
    PoolElements e;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at_h = line % h.output, at_d = line / h.output % d.output,
                    image = line / h.output / d.output;
      const WindowSpan over_d = inside(d, at_d), over_h = inside(h, at_h);
      e.line_count = 0;
      for (int64_t i = over_d.first; i < over_d.last; ++i)
        for (int64_t j = over_h.first; j < over_h.last; ++j) {
          const int64_t plane = image * d.input + over_d.start + i * d.dilation;
          const float* from = x + (plane * h.input + over_h.start + j * h.dilation) * row;
          e.lines[e.line_count++] = {from, from, static_cast<float>((i * h.kernel + j) * w.kernel)};
        }
      for (int64_t column = 0; column < w.output; ++column) {
        const WindowSpan over_w = inside(w, column);
        e.column_count = 0;
        for (int64_t k = over_w.first; k < over_w.last; ++k)
          e.columns[e.column_count++] = {over_w.start + k * w.dilation, static_cast<float>(k)};
        compute(e, (line * w.output + column) * p.channels, at_d, at_h, column);
      }
    }
  });
}

// Calls compute(elements, place in dX) for all of dX; number(axis, window, tap) is that of an element.
template <typename Number, typename F>
void each_gradient(const ChannelsLastPool& p, const float* dy, const float* taps, Number&& number,
                   F&& compute) {
  const WindowAxis &d = p.sizes.window[0], &h = p.sizes.window[1], &w = p.sizes.window[2];
  const int64_t row = w.output * p.channels;
  parallel_for(p.sizes.planes * d.input * h.input, 4 * w.input * p.channels, [&](int64_t begin, int64_t end) {
    PoolElements e;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at_h = line % h.input, at_d = line / h.input % d.input, image = line / h.input / d.input;
      e.line_count = 0;
      each_window(d, at_d, [&](int64_t i, int64_t tap_d) {
        each_window(h, at_h, [&](int64_t j, int64_t tap_h) {
          const int64_t at = ((image * d.output + i) * h.output + j) * row;
          e.lines[e.line_count++] = {dy + at, taps + at, number.line(i, tap_d, j, tap_h)};
        });
      });
      for (int64_t column = 0; column < w.input; ++column) {
        e.column_count = 0;
        each_window(w, column, [&](int64_t k, int64_t tap) {
          e.columns[e.column_count++] = {k, number.column(k, tap)};
        });
        compute(e, (line * w.input + column) * p.channels);
      }
    }
  });
}

// The number of an element within its window.
struct TapNumbers {
  int64_t rows, columns;
  float line(int64_t, int64_t d, int64_t, int64_t h) const {
    return static_cast<float>((d * rows + h) * columns);
  }
  float column(int64_t, int64_t w) const { return static_cast<float>(w); }
};

// How much an element counts in the mean of its window.
struct Shares {
  const PoolSizes& s;
  float line(int64_t d, int64_t, int64_t h, int64_t) const {
    return share_of(s, s.window[0], d) * share_of(s, s.window[1], h);
  }
  float column(int64_t w, int64_t) const { return share_of(s, s.window[2], w); }
};

// Calls f(image, first channel, channels) for parts of all channels.
template <typename F>
void each_part(const ChannelsLastPool& p, F&& f) {
  constexpr int64_t kPart = 64;
  const int64_t parts = (p.channels + kPart - 1) / kPart;
  parallel_for(p.sizes.planes * parts, p.sizes.input_points() * kPart, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      f(i / parts, i % parts * kPart, std::min(kPart, p.channels - i % parts * kPart));
  });
}

}  // namespace

bool ChannelsLastPool::suits() const {
  const WindowAxis &d = sizes.window[0], &h = sizes.window[1], &w = sizes.window[2];
  return capped_product({d.kernel, h.kernel}) <= kMostPoolLines && w.kernel <= kMostPoolColumns;
}

void channels_last_max_pool(const ChannelsLastPool& p, const float* x, float* y, float* taps) {
  const PoolFunctions f = functions();
  each_result(p, x, [&](const PoolElements& e, int64_t at, int64_t, int64_t, int64_t) {
    f.largest(p.channels, e, y + at, taps ? taps + at : nullptr);
  });
}

void channels_last_max_pool_backward(const ChannelsLastPool& p, const float* dy, const float* taps,
                                     float* dx) {
  const PoolFunctions f = functions();
  const TapNumbers numbers{p.sizes.window[1].kernel, p.sizes.window[2].kernel};
  each_gradient(p, dy, taps, numbers,
                [&](const PoolElements& e, int64_t at) { f.largest_gradient(p.channels, e, dx + at); });
}

void channels_last_average_pool(const ChannelsLastPool& p, const float* x, float* y) {
  const PoolFunctions f = functions();
  const Window& w = p.sizes.window;
  each_result(p, x, [&](const PoolElements& e, int64_t at, int64_t i, int64_t j, int64_t k) {
    const int64_t count = window_divisor(p.sizes, i, j, k, inside(w[0], i), inside(w[1], j), inside(w[2], k));
    f.mean(p.channels, e, static_cast<float>(std::max<int64_t>(count, 1)), y + at);
  });
}

void channels_last_average_pool_backward(const ChannelsLastPool& p, const float* dy, float* dx) {
  const PoolFunctions f = functions();
  each_gradient(p, dy, dy, Shares{p.sizes},
                [&](const PoolElements& e, int64_t at) { f.mean_gradient(p.channels, e, dx + at); });
}

void channels_last_global_average(const ChannelsLastPool& p, const float* x, float* y) {
  const int64_t points = p.sizes.input_points();
  each_part(p, [&](int64_t image, int64_t channel, int64_t n) {
    double sums[64] = {};
    for (int64_t i = 0; i < points; ++i)
      for (int64_t c = 0; c < n; ++c) sums[c] += x[(image * points + i) * p.channels + channel + c];
    for (int64_t c = 0; c < n; ++c)
      y[image * p.channels + channel + c] = static_cast<float>(sums[c] / static_cast<double>(points));
  });
}

void channels_last_global_max(const ChannelsLastPool& p, const float* x, float* y) {
  const int64_t points = p.sizes.input_points();
  each_part(p, [&](int64_t image, int64_t channel, int64_t n) {
    float best[64];
    const float* from = x + image * points * p.channels + channel;
    std::copy_n(from, n, best);
    for (int64_t i = 1; i < points; ++i)
      for (int64_t c = 0; c < n; ++c) {
        const float v = from[i * p.channels + c];
        best[c] = v > best[c] || v != v ? v : best[c];  // NaN stays: nothing is larger
      }
    std::copy_n(best, n, y + image * p.channels + channel);
  });
}

}  // namespace ortrain
#endif
