#include "backend/cpu/pool/row_major_pool.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "backend/cpu/pool/window_span.h"
#include "runtime/checked.h"
#include "runtime/error.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

// Calls element(offset) for the elements of a window that are inside the plane.
template <typename F>
void visit_window(const Window& w, const WindowSpan& d, const WindowSpan& h, const WindowSpan& v,
                  F&& element) {
  for (int64_t i = d.first; i < d.last; ++i)
    for (int64_t j = h.first; j < h.last; ++j) {
      const int64_t line =
          ((d.start + i * w[0].dilation) * w[1].input + h.start + j * w[1].dilation) * w[2].input + v.start;
      for (int64_t k = v.first; k < v.last; ++k) element(line + k * w[2].dilation);
    }
}

// Calls window(number, spans...) for every window of a plane.
template <typename F>
void visit_windows(const Window& w, F&& window) {
  int64_t number = 0;
  for (int64_t i = 0; i < w[0].output; ++i) {
    const WindowSpan d = inside(w[0], i);
    for (int64_t j = 0; j < w[1].output; ++j) {
      const WindowSpan h = inside(w[1], j);
      for (int64_t k = 0; k < w[2].output; ++k, ++number) window(number, i, j, k, d, h, inside(w[2], k));
    }
  }
}

// The most elements of the input in a window.
int64_t window_points(const Window& w) {
  int64_t points = 1;
  for (const WindowAxis& a : w) points *= std::min(a.kernel, a.input);
  return points;
}

// The cost of a plane.
int64_t cost_of(const PoolSizes& s) { return capped_product({s.output_points(), window_points(s.window)}); }

int64_t to_column_major(const PoolSizes& s, int64_t offset) {
  // The axes prepended to make three have size 1 and change nothing.
  const int64_t d = s.window[0].input, h = s.window[1].input, w = s.window[2].input;
  return offset / (h * w) + d * (offset / w % h + h * (offset % w));
}

}  // namespace

int64_t PoolSizes::input_points() const { return window[0].input * window[1].input * window[2].input; }
int64_t PoolSizes::output_points() const { return window[0].output * window[1].output * window[2].output; }

template <typename T>
void max_pool(const PoolSizes& s, const T* x, T* y, int64_t* indices) {
  const int64_t in = s.input_points(), out = s.output_points();
  parallel_for(s.planes, cost_of(s), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* from = x + plane * in;
      visit_windows(s.window, [&](int64_t number, int64_t, int64_t, int64_t, const WindowSpan& d,
                                  const WindowSpan& h, const WindowSpan& v) {
        T best = std::numeric_limits<T>::lowest();
        int64_t at = -1;
        visit_window(s.window, d, h, v, [&](int64_t offset) {
          const T value = from[offset];
          if (value > best || at < 0 || (value != value && best == best)) {
            best = value;
            at = offset;
          }
        });
        y[plane * out + number] = best;
        if (indices)
          indices[plane * out + number] =
              at < 0 ? -1 : plane * in + (s.column_major ? to_column_major(s, at) : at);
      });
    }
  });
}

template <typename T>
void max_pool_backward(const PoolSizes& s, const T* dy, const int64_t* indices, T* dx) {
  const int64_t in = s.input_points(), out = s.output_points();
  std::atomic<bool> fits{true};
  parallel_for(s.planes, in + out, [&](int64_t begin, int64_t end) {
    bool all = true;
    for (int64_t plane = begin; plane < end; ++plane) {
      T* to = dx + plane * in;
      std::fill(to, to + in, T(0));
      for (int64_t i = plane * out; i < (plane + 1) * out; ++i) {
        if (indices[i] == -1) continue;
        const int64_t at = indices[i] - plane * in;
        if (at >= 0 && at < in)
          to[at] += dy[i];
        else
          all = false;
      }
    }
    if (!all) fits.store(false, std::memory_order_relaxed);
  });
  require(fits, ErrorCode::kInvalidArgument,
          "each index must be -1 or the position of an element in the same channel of the input, which has ",
          counted(in, "element"), "; found an index outside that channel");
}

template <typename T>
void average_pool(const PoolSizes& s, const T* x, T* y) {
  const int64_t in = s.input_points(), out = s.output_points();
  parallel_for(s.planes, cost_of(s), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* from = x + plane * in;
      visit_windows(s.window, [&](int64_t number, int64_t i, int64_t j, int64_t k, const WindowSpan& d,
                                  const WindowSpan& h, const WindowSpan& v) {
        T sum = 0;
        visit_window(s.window, d, h, v, [&](int64_t offset) { sum += from[offset]; });
        const int64_t count = window_divisor(s, i, j, k, d, h, v);
        y[plane * out + number] = count > 0 ? sum / static_cast<T>(count) : T(0);
      });
    }
  });
}

template <typename T>
void average_pool_backward(const PoolSizes& s, const T* dy, T* dx) {
  const int64_t in = s.input_points(), out = s.output_points();
  parallel_for(s.planes, cost_of(s), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      T* to = dx + plane * in;
      std::fill(to, to + in, T(0));
      visit_windows(s.window, [&](int64_t number, int64_t i, int64_t j, int64_t k, const WindowSpan& d,
                                  const WindowSpan& h, const WindowSpan& v) {
        const int64_t count = window_divisor(s, i, j, k, d, h, v);
        if (count <= 0) return;
        const T part = dy[plane * out + number] / static_cast<T>(count);
        visit_window(s.window, d, h, v, [&](int64_t offset) { to[offset] += part; });
      });
    }
  });
}

template <typename T>
void global_average(int64_t planes, int64_t points, const T* x, T* y) {
  parallel_for(planes, points, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      double sum = 0;
      for (int64_t i = 0; i < points; ++i) sum += x[plane * points + i];
      y[plane] = static_cast<T>(sum / static_cast<double>(points));
    }
  });
}

template <typename T>
void global_max(int64_t planes, int64_t points, const T* x, T* y) {
  parallel_for(planes, points, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      const T* from = x + plane * points;
      // Several maxima side by side, which the compiler turns into vectors.
      constexpr int64_t kSide = 16;
      T best[kSide];
      bool has_nan = false;
      std::fill_n(best, kSide, from[0]);
      int64_t i = 0;
      for (; i + kSide <= points; i += kSide)
        for (int64_t k = 0; k < kSide; ++k) {
          best[k] = from[i + k] > best[k] ? from[i + k] : best[k];
          has_nan |= from[i + k] != from[i + k];
        }
      for (; i < points; ++i) {
        best[0] = std::max(best[0], from[i]);
        has_nan |= from[i] != from[i];
      }
      y[plane] = has_nan ? std::numeric_limits<T>::quiet_NaN() : *std::max_element(best, best + kSide);
    }
  });
}

template void max_pool<int8_t>(const PoolSizes&, const int8_t*, int8_t*, int64_t*);
template void max_pool<uint8_t>(const PoolSizes&, const uint8_t*, uint8_t*, int64_t*);
#define ORTRAIN_POOL(T)                                                               \
  template void max_pool<T>(const PoolSizes&, const T*, T*, int64_t*);                \
  template void max_pool_backward<T>(const PoolSizes&, const T*, const int64_t*, T*); \
  template void average_pool<T>(const PoolSizes&, const T*, T*);                      \
  template void average_pool_backward<T>(const PoolSizes&, const T*, T*);             \
  template void global_average<T>(int64_t, int64_t, const T*, T*);                    \
  template void global_max<T>(int64_t, int64_t, const T*, T*)
ORTRAIN_POOL(float);
ORTRAIN_POOL(double);

}  // namespace ortrain
