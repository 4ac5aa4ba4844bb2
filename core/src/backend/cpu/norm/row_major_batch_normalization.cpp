#include "backend/cpu/norm/row_major_batch_normalization.h"

#include <algorithm>
#include <cmath>

#include "runtime/threads.h"

namespace ortrain {

namespace {

// Calls f(row) with the first element of each of the rows of a channel.
template <typename F>
void visit_rows(const BatchSizes& s, int64_t channel, F&& f) {
  for (int64_t n = 0; n < s.batch; ++n) f((n * s.channels + channel) * s.points);
}

}  // namespace

template <typename T>
void batch_statistics(const BatchSizes& s, const T* x, T* mean, T* variance) {
  parallel_for(s.channels, 2 * s.count(), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const double count = static_cast<double>(std::max<int64_t>(s.count(), 1));
      double sum = 0, squares = 0;
      visit_rows(s, c, [&](int64_t row) {
        for (int64_t i = 0; i < s.points; ++i) sum += x[row + i];
      });
      const double middle = sum / count;
      visit_rows(s, c, [&](int64_t row) {
        for (int64_t i = 0; i < s.points; ++i) squares += (x[row + i] - middle) * (x[row + i] - middle);
      });
      mean[c] = static_cast<T>(middle);
      variance[c] = static_cast<T>(squares / count);
    }
  });
}

template <typename T>
void batch_normalize(const BatchSizes& s, const T* x, const T* scale, const T* bias, const T* mean,
                     const T* variance, T epsilon, T* y) {
  parallel_for(s.channels, 2 * s.count(), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const T factor = scale[c] * (T(1) / std::sqrt(variance[c] + epsilon)), middle = mean[c],
              offset = bias[c];
      visit_rows(s, c, [&](int64_t row) {
        for (int64_t i = 0; i < s.points; ++i) y[row + i] = (x[row + i] - middle) * factor + offset;
      });
    }
  });
}

template <typename T>
void batch_normalize_backward(const BatchSizes& s, const T* dy, const T* x, const T* scale, const T* mean,
                              const T* inverse_deviation, T* dx, T* dscale, T* dbias) {
  // With x̂ = (x - mean) / deviation:  dbias = Σ dy,  dscale = Σ dy x̂,
  // dx = scale / deviation (dy - dbias / count - x̂ dscale / count).
  parallel_for(s.channels, 4 * s.count(), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const T middle = mean[c], inverse = inverse_deviation[c];
      double sum = 0, product = 0;
      visit_rows(s, c, [&](int64_t row) {
        for (int64_t i = 0; i < s.points; ++i) {
          sum += dy[row + i];
          product += dy[row + i] * ((x[row + i] - middle) * inverse);
        }
      });
      if (dbias) dbias[c] = static_cast<T>(sum);
      if (dscale) dscale[c] = static_cast<T>(product);
      if (!dx) continue;
      const double count = static_cast<double>(std::max<int64_t>(s.count(), 1));
      const T factor = scale[c] * inverse, a = static_cast<T>(sum / count),
              b = static_cast<T>(product / count);
      visit_rows(s, c, [&](int64_t row) {
        for (int64_t i = 0; i < s.points; ++i)
          dx[row + i] = factor * (dy[row + i] - a - (x[row + i] - middle) * inverse * b);
      });
    }
  });
}

template <typename T>
void batch_clip_backward(const BatchSizes& s, const ClipRange& range, const T* dy, const T* x, const T* scale,
                         const T* bias, const T* mean, const T* inverse_deviation, T* passed) {
  parallel_for(s.channels, 2 * s.count(), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const T factor = scale[c] * inverse_deviation[c], middle = mean[c], offset = bias[c];
      visit_rows(s, c, [&](int64_t row) {
        for (int64_t i = 0; i < s.points; ++i)
          passed[row + i] = range.passes((x[row + i] - middle) * factor + offset) ? dy[row + i] : T(0);
      });
    }
  });
}

#define ORTRAIN_BATCH_NORMALIZATION(T)                                                                     \
  template void batch_statistics<T>(const BatchSizes&, const T*, T*, T*);                                  \
  template void batch_normalize<T>(const BatchSizes&, const T*, const T*, const T*, const T*, const T*, T, \
                                   T*);                                                                    \
  template void batch_normalize_backward<T>(const BatchSizes&, const T*, const T*, const T*, const T*,     \
                                            const T*, T*, T*, T*);                                         \
  template void batch_clip_backward<T>(const BatchSizes&, const ClipRange&, const T*, const T*, const T*,  \
                                       const T*, const T*, const T*, T*)
ORTRAIN_BATCH_NORMALIZATION(float);
ORTRAIN_BATCH_NORMALIZATION(double);

}  // namespace ortrain
