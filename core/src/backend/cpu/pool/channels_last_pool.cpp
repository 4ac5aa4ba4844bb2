// Compiled at -O3: averages take half the time (CMakeLists.txt).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/pool/channels_last_pool.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backend/cpu/pool/channels_last_pool.h"
#include "backend/cpu/pool/window_span.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/stored_values.h"
#include "runtime/checked.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_CHANNELS_LAST_POOL_TYPES
#define ORTRAIN_CHANNELS_LAST_POOL_TYPES
namespace ortrain {

// The most lines, and elements of a line, that belong to one element of a result.
inline constexpr int64_t kMostPoolLines = 256, kMostPoolColumns = 256;

// The elements of X or dY that contribute to one element of a result, by lines and columns. The factor or
// number of an element follows from that of its line and that of its column.
template <typename T>
struct PoolLine {
  const T* values;
  const float* taps;
  float number;
};
struct PoolColumn {
  int64_t at;
  float number;
};
template <typename T>
struct PoolElements {
  PoolLine<T> lines[kMostPoolLines];
  PoolColumn columns[kMostPoolColumns];
  int64_t line_count = 0, column_count = 0;
};

// Functions for all channels of one element of the result.
template <typename T>
struct PoolFunctions {
  // y = the largest element, and its number if `taps` is not null.
  void (*largest)(int64_t channels, const PoolElements<T>& e, T* y, float* taps);
  // y = the sum of the elements / divisor
  void (*mean)(int64_t channels, const PoolElements<T>& e, float divisor, T* y);
  // dx = the sum of dY where its tap is the number.
  void (*largest_gradient)(int64_t channels, const PoolElements<T>& e, T* dx);
  // dx = the sum of dY times both factors.
  void (*mean_gradient)(int64_t channels, const PoolElements<T>& e, T* dx);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;

// f(values, taps, number of the line, number of the column, channels in the vector) for all elements.
template <typename T, class F>
HWY_INLINE void EachElement(int64_t channels, const PoolElements<T>& e, int64_t channel, const F& f) {
  for (int64_t l = 0; l < e.line_count; ++l)
    for (int64_t k = 0; k < e.column_count; ++k) {
      const int64_t at = e.columns[k].at * channels + channel;
      const float* taps = e.lines[l].taps;
      f(e.lines[l].values + at, taps ? taps + at : nullptr, e.lines[l].number, e.columns[k].number);
    }
}

// The lowest number of the stored type.
template <typename T>
constexpr float kLowest = kIsBf16<T> ? -0x1.fep127f : std::numeric_limits<float>::lowest();

template <typename T>
void Largest(int64_t channels, const PoolElements<T>& e, T* y, float* taps) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto best = hn::Set(d, kLowest<T>), where = hn::Set(d, -1.0f);
    EachElement(channels, e, c, [&](const T* values, const float*, float line, float column) HWY_ATTR {
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

template <typename T>
void Mean(int64_t channels, const PoolElements<T>& e, float divisor, T* y) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto sum = hn::Zero(d);
    EachElement(channels, e, c, [&](const T* values, const float*, float, float) HWY_ATTR {
      sum = hn::Add(sum, LoadUpTo(d, values, count));
    });
    StoreUpTo(hn::Div(sum, hn::Set(d, divisor)), d, y + c, count);
  });
}

template <typename T>
void LargestGradient(int64_t channels, const PoolElements<T>& e, T* dx) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto sum = hn::Zero(d);
    EachElement(channels, e, c, [&](const T* values, const float* taps, float line, float column) HWY_ATTR {
      const auto here = hn::Eq(LoadUpTo(d, taps, count), hn::Set(d, line + column));
      sum = hn::Add(sum, hn::IfThenElseZero(here, LoadUpTo(d, values, count)));
    });
    StoreUpTo(sum, d, dx + c, count);
  });
}

template <typename T>
void MeanGradient(int64_t channels, const PoolElements<T>& e, T* dx) {
  const F32 d;
  ForVectors<float>(channels, [&](int64_t c, int64_t count) HWY_ATTR {
    auto sum = hn::Zero(d);
    EachElement(channels, e, c, [&](const T* values, const float*, float line, float column) HWY_ATTR {
      sum = hn::MulAdd(LoadUpTo(d, values, count), hn::Set(d, line * column), sum);
    });
    StoreUpTo(sum, d, dx + c, count);
  });
}

template <typename T>
PoolFunctions<T> FunctionsOf() {
  return {Largest<T>, Mean<T>, LargestGradient<T>, MeanGradient<T>};
}

PoolFunctions<float> FindFloatPool() { return FunctionsOf<float>(); }
PoolFunctions<BFloat16> FindBf16Pool() { return FunctionsOf<BFloat16>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

template <typename T>
PoolFunctions<T> functions() {
  if constexpr (std::is_same_v<T, float>)
    return ORTRAIN_DISPATCH(FindFloatPool)();
  else
    return ORTRAIN_DISPATCH(FindBf16Pool)();
}

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

// The weight of each element of window o in a mean, as far as this axis determines it.
float share_of(const PoolSizes& s, const WindowAxis& a, int64_t o) {
  const WindowSpan span = inside(a, o);
  const int64_t count = s.count_padding ? inside_padded(a, o) : span.last - span.first;
  return count > 0 ? 1.0f / static_cast<float>(count) : 0.0f;
}

// Calls compute(elements, place in Y, the indices of the window along the axes) for all of Y.
template <typename T, typename F>
void each_result(const ChannelsLastPool& p, const T* x, F&& compute) {
  const WindowAxis &d = p.sizes.window[0], &h = p.sizes.window[1], &w = p.sizes.window[2];
  const int64_t row = w.input * p.channels;
  const int64_t cost = capped_product({w.output, p.channels, window_points(p.sizes)});
  parallel_for(p.sizes.planes * d.output * h.output, cost, [&](int64_t begin, int64_t end) {
    PoolElements<T> e;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at_h = line % h.output, at_d = line / h.output % d.output,
                    image = line / h.output / d.output;
      const WindowSpan over_d = inside(d, at_d), over_h = inside(h, at_h);
      e.line_count = 0;
      for (int64_t i = over_d.first; i < over_d.last; ++i)
        for (int64_t j = over_h.first; j < over_h.last; ++j) {
          const int64_t plane = image * d.input + over_d.start + i * d.dilation;
          const T* from = x + (plane * h.input + over_h.start + j * h.dilation) * row;
          e.lines[e.line_count++] = {from, nullptr, static_cast<float>((i * h.kernel + j) * w.kernel)};
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
template <typename T, typename Number, typename F>
void each_gradient(const ChannelsLastPool& p, const T* dy, const float* taps, Number&& number, F&& compute) {
  const WindowAxis &d = p.sizes.window[0], &h = p.sizes.window[1], &w = p.sizes.window[2];
  const int64_t row = w.output * p.channels;
  parallel_for(p.sizes.planes * d.input * h.input, 4 * w.input * p.channels, [&](int64_t begin, int64_t end) {
    PoolElements<T> e;
    for (int64_t line = begin; line < end; ++line) {
      const int64_t at_h = line % h.input, at_d = line / h.input % d.input, image = line / h.input / d.input;
      e.line_count = 0;
      each_window(d, at_d, [&](int64_t i, int64_t tap_d) {
        each_window(h, at_h, [&](int64_t j, int64_t tap_h) {
          const int64_t at = ((image * d.output + i) * h.output + j) * row;
          e.lines[e.line_count++] = {dy + at, taps ? taps + at : nullptr, number.line(i, tap_d, j, tap_h)};
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

template <typename T>
void channels_last_max_pool(const ChannelsLastPool& p, const T* x, T* y, float* taps) {
  const PoolFunctions<T> f = functions<T>();
  each_result(p, x, [&](const PoolElements<T>& e, int64_t at, int64_t, int64_t, int64_t) {
    f.largest(p.channels, e, y + at, taps ? taps + at : nullptr);
  });
}

template <typename T>
void channels_last_max_pool_backward(const ChannelsLastPool& p, const T* dy, const float* taps, T* dx) {
  const PoolFunctions<T> f = functions<T>();
  const TapNumbers numbers{p.sizes.window[1].kernel, p.sizes.window[2].kernel};
  each_gradient(p, dy, taps, numbers,
                [&](const PoolElements<T>& e, int64_t at) { f.largest_gradient(p.channels, e, dx + at); });
}

template <typename T>
void channels_last_average_pool(const ChannelsLastPool& p, const T* x, T* y) {
  const PoolFunctions<T> f = functions<T>();
  const Window& w = p.sizes.window;
  each_result(p, x, [&](const PoolElements<T>& e, int64_t at, int64_t i, int64_t j, int64_t k) {
    const int64_t count = window_divisor(p.sizes, i, j, k, inside(w[0], i), inside(w[1], j), inside(w[2], k));
    f.mean(p.channels, e, static_cast<float>(std::max<int64_t>(count, 1)), y + at);
  });
}

template <typename T>
void channels_last_average_pool_backward(const ChannelsLastPool& p, const T* dy, T* dx) {
  const PoolFunctions<T> f = functions<T>();
  each_gradient(p, dy, nullptr, Shares{p.sizes},
                [&](const PoolElements<T>& e, int64_t at) { f.mean_gradient(p.channels, e, dx + at); });
}

template <typename T>
void channels_last_global_max(const ChannelsLastPool& p, const T* x, float* y) {
  const int64_t points = p.sizes.input_points();
  each_part(p, [&](int64_t image, int64_t channel, int64_t n) {
    float best[64];
    const T* from = x + image * points * p.channels + channel;
    for (int64_t c = 0; c < n; ++c) best[c] = static_cast<float>(from[c]);
    for (int64_t i = 1; i < points; ++i)
      for (int64_t c = 0; c < n; ++c) {
        const float v = static_cast<float>(from[i * p.channels + c]);
        best[c] = v > best[c] || v != v ? v : best[c];  // NaN stays: nothing is larger
      }
    std::copy_n(best, n, y + image * p.channels + channel);
  });
}

#define ORTRAIN_POOL(T)                                                                                  \
  template void channels_last_max_pool<T>(const ChannelsLastPool&, const T*, T*, float*);                \
  template void channels_last_max_pool_backward<T>(const ChannelsLastPool&, const T*, const float*, T*); \
  template void channels_last_average_pool<T>(const ChannelsLastPool&, const T*, T*);                    \
  template void channels_last_average_pool_backward<T>(const ChannelsLastPool&, const T*, T*);           \
  template void channels_last_global_max<T>(const ChannelsLastPool&, const T*, float*)
ORTRAIN_POOL(float);
ORTRAIN_POOL(BFloat16);

}  // namespace ortrain
#endif
