#include "backend/cpu/conv/row_major_conv.h"

#include <algorithm>

#include "backend/cpu/matmul/multiply.h"
#include "backend/cpu/tuning.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

constexpr int64_t kTile = tuning::kConvTile;

int64_t tiles(const ConvSizes& s) { return (s.output_points() + kTile - 1) / kTile; }

// True if the columns are the input itself.
bool is_pointwise(const ConvSizes& s) {
  return std::all_of(s.window.begin(), s.window.end(), [](const WindowAxis& a) {
    return a.kernel == 1 && a.stride == 1 && a.before == 0 && a.output == a.input;
  });
}

int64_t ceil_divide(int64_t a, int64_t b) { return a <= 0 ? 0 : (a + b - 1) / b; }

// A run of output points along the innermost axis.
struct Run {
  int64_t at, count;   // of the tile's points
  int64_t d, h, w;     // where the window of the first one begins in the input, padding included
  int64_t w_position;  // of the first one along the innermost axis
};

// Visits the columns of the output points [begin, end) of one group in runs along the innermost axis. Calls
// run(column, count, inside, first, last, offset): `count` elements at columns + column, of which [first,
// last) are inside the input, element first + i at offset + i * stride of the innermost axis; none if
// `inside` is false.
template <typename F>
void walk_columns(const ConvSizes& s, int64_t begin, int64_t end, F&& run) {
  const WindowAxis &d = s.window[0], &h = s.window[1], &w = s.window[2];
  const int64_t channels = s.channels / s.groups, width = end - begin;
  // The runs are computed once, because they are equal for every row of the columns and take many divisions.
  Run runs[kTile];
  int64_t count = 0;
  for (int64_t p = begin; p < end;) {
    const int64_t ow = p % w.output, line = p / w.output, oh = line % h.output, od = line / h.output;
    const int64_t length = std::min(w.output - ow, end - p);
    runs[count++] = {
        p - begin, length, od * d.stride - d.before, oh * h.stride - h.before, ow * w.stride - w.before, ow};
    p += length;
  }
  int64_t row = 0;
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t kd = 0; kd < d.kernel; ++kd)
      for (int64_t kh = 0; kh < h.kernel; ++kh)
        for (int64_t kw = 0; kw < w.kernel; ++kw, ++row) {
          const int64_t shift = kw * w.dilation - w.before;
          const int64_t lowest = ceil_divide(-shift, w.stride),
                        highest = ceil_divide(w.input - shift, w.stride);
          for (const Run* r = runs; r != runs + count; ++r) {
            const int64_t id = r->d + kd * d.dilation, ih = r->h + kh * h.dilation;
            const bool inside = id >= 0 && id < d.input && ih >= 0 && ih < h.input;
            const int64_t first = std::clamp<int64_t>(lowest - r->w_position, 0, r->count);
            const int64_t last = std::clamp<int64_t>(highest - r->w_position, first, r->count);
            run(row * width + r->at, r->count, inside && first < last, first, last,
                ((c * d.input + id) * h.input + ih) * w.input + r->w + first * w.stride + kw * w.dilation);
          }
        }
}

template <typename T>
void to_columns(const ConvSizes& s, const T* x, int64_t begin, int64_t end, T* columns) {
  const int64_t stride = s.window[2].stride;
  walk_columns(s, begin, end,
               [&](int64_t column, int64_t count, bool inside, int64_t first, int64_t last, int64_t offset) {
                 T* to = columns + column;
                 if (!inside) {
                   std::fill(to, to + count, T(0));
                   return;
                 }
                 std::fill(to, to + first, T(0));
                 const T* from = x + offset;
                 if (stride == 1)
                   std::copy(from, from + (last - first), to + first);
                 else
                   for (int64_t i = first; i < last; ++i) to[i] = from[(i - first) * stride];
                 std::fill(to + last, to + count, T(0));
               });
}

template <typename T>
void add_columns(const ConvSizes& s, const T* columns, int64_t begin, int64_t end, T* dx) {
  const int64_t stride = s.window[2].stride;
  walk_columns(s, begin, end,
               [&](int64_t column, int64_t, bool inside, int64_t first, int64_t last, int64_t offset) {
                 if (!inside) return;
                 for (int64_t i = first; i < last; ++i)
                   dx[offset + (i - first) * stride] += columns[column + i];
               });
}

// Divides `items` among the workers: work(worker, begin, end, threads), where `threads` is how many threads a
// worker's products may use. One worker does everything if at most half of the workers would have an item.
template <typename F>
void share(int64_t workers, int64_t items, F&& work) {
  if (2 * items <= workers) return work(0, 0, items, max_threads());
  share_among(workers, items,
              [&](int64_t worker, int64_t begin, int64_t end) { work(worker, begin, end, 1); });
}

// As above, but each worker is called once, because it has sums of its own.
template <typename F>
void share_sums(int64_t workers, int64_t items, F&& work) {
  if (2 * items <= workers) {
    for (int64_t worker = 0; worker < workers; ++worker)
      work(worker, worker == 0 ? 0 : items, items, max_threads());
    return;
  }
  parallel_for(workers, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker)
      work(worker, items * worker / workers, items * (worker + 1) / workers, 1);
  });
}

}  // namespace

int64_t ConvSizes::input_points() const {
  int64_t n = 1;
  for (const WindowAxis& a : window) n *= a.input;
  return n;
}

int64_t ConvSizes::output_points() const {
  int64_t n = 1;
  for (const WindowAxis& a : window) n *= a.output;
  return n;
}

int64_t ConvSizes::column_rows() const {
  int64_t n = channels / groups;
  for (const WindowAxis& a : window) n *= a.kernel;
  return n;
}

int64_t conv_workers(const ConvSizes& s) {
  // Writing an element of the columns costs about as much as multiplying it with 16 filters.
  const int64_t filters = s.filters / s.groups;
  const int64_t work = s.batch * s.groups * s.output_points() * s.column_rows() * (filters + 16) / 16;
  return std::clamp<int64_t>(work / kGrain, 1, max_threads());
}

int64_t conv_scratch(const ConvSizes& s) {
  return conv_workers(s) * s.column_rows() * std::min(kTile, s.output_points());
}

int64_t conv_weights_scratch(const ConvSizes& s) {
  return conv_scratch(s) + conv_workers(s) * s.filters * s.column_rows();
}

template <typename T>
void conv_forward(const ConvSizes& s, int64_t workers, const T* x, const T* w, const T* bias, T* y,
                  T* scratch) {
  const int64_t points = s.output_points(), rows = s.column_rows(), filters = s.filters / s.groups;
  const int64_t channels = s.channels / s.groups, per_image = tiles(s);
  const bool pointwise = is_pointwise(s);
  share(workers, s.batch * s.groups * per_image,
        [&](int64_t worker, int64_t begin, int64_t end, int threads) {
          T* columns = scratch + worker * rows * std::min(kTile, points);
          for (int64_t item = begin; item < end; ++item) {
            const int64_t from = item % per_image * kTile, width = std::min(kTile, points - from);
            const int64_t image = item / per_image, group = image % s.groups;
            const T* input = x + image * channels * s.input_points();
            T* output = y + image * filters * points + from;
            for (int64_t f = 0; f < filters; ++f)
              std::fill(output + f * points, output + f * points + width,
                        bias ? bias[group * filters + f] : T(0));
            MatrixView<const T> matrix{input + from, points, 1};
            if (!pointwise) {
              to_columns(s, input, from, from + width, columns);
              matrix = {columns, width, 1};
            }
            multiply<T>(filters, width, rows, T(1), {w + group * filters * rows, rows, 1}, matrix, T(1),
                        output, points, threads);
          }
        });
}

template <typename T>
void conv_backward_data(const ConvSizes& s, int64_t workers, const T* dy, const T* w, T* dx, T* scratch) {
  const int64_t points = s.output_points(), rows = s.column_rows(), filters = s.filters / s.groups;
  const int64_t input_size = s.channels / s.groups * s.input_points();
  // Windows overlap, so the tiles of an image and group are added one after the other.
  share(workers, s.batch * s.groups, [&](int64_t worker, int64_t begin, int64_t end, int threads) {
    T* columns = scratch + worker * rows * std::min(kTile, points);
    for (int64_t image = begin; image < end; ++image) {
      T* input = dx + image * input_size;
      std::fill(input, input + input_size, T(0));
      const T* weights = w + image % s.groups * filters * rows;
      for (int64_t from = 0; from < points; from += kTile) {
        const int64_t width = std::min(kTile, points - from);
        multiply<T>(rows, width, filters, T(1), {weights, 1, rows},
                    {dy + image * filters * points + from, points, 1}, T(0), columns, width, threads);
        add_columns(s, columns, from, from + width, input);
      }
    }
  });
}

template <typename T>
void conv_backward_weights(const ConvSizes& s, int64_t workers, const T* dy, const T* x, T* dw, T* scratch) {
  const int64_t points = s.output_points(), rows = s.column_rows(), filters = s.filters / s.groups;
  const int64_t channels = s.channels / s.groups, per_image = tiles(s), size = s.filters * rows;
  const bool pointwise = is_pointwise(s);
  T* sums = scratch + workers * rows * std::min(kTile, points);
  share_sums(workers, s.batch * s.groups * per_image,
             [&](int64_t worker, int64_t begin, int64_t end, int threads) {
               T* columns = scratch + worker * rows * std::min(kTile, points);
               T* sum = sums + worker * size;
               std::fill(sum, sum + size, T(0));
               for (int64_t item = begin; item < end; ++item) {
                 const int64_t from = item % per_image * kTile, width = std::min(kTile, points - from);
                 const int64_t image = item / per_image, group = image % s.groups;
                 const T* input = x + image * channels * s.input_points();
                 MatrixView<const T> matrix{input + from, 1, points};
                 if (!pointwise) {
                   to_columns(s, input, from, from + width, columns);
                   matrix = {columns, 1, width};
                 }
                 multiply<T>(filters, rows, width, T(1), {dy + image * filters * points + from, points, 1},
                             matrix, T(1), sum + group * filters * rows, rows, threads);
               }
             });
  parallel_for(size, workers, [&](int64_t begin, int64_t end) {
    std::copy(sums + begin, sums + end, dw + begin);
    for (int64_t worker = 1; worker < workers; ++worker)
      for (int64_t i = begin; i < end; ++i) dw[i] += sums[worker * size + i];
  });
}

template <typename T>
void conv_backward_bias(const ConvSizes& s, const T* dy, T* db) {
  const int64_t points = s.output_points();
  parallel_for(s.filters, s.batch * points, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      // The rows are many and short: a sum of them in double keeps the rounding error of float small.
      double sum = 0;
      for (int64_t n = 0; n < s.batch; ++n) {
        const T* row = dy + (n * s.filters + f) * points;
        T part = 0;
        for (int64_t i = 0; i < points; ++i) part += row[i];
        sum += part;
      }
      db[f] = static_cast<T>(sum);
    }
  });
}

#define ORTRAIN_CONV(T)                                                                           \
  template void conv_forward<T>(const ConvSizes&, int64_t, const T*, const T*, const T*, T*, T*); \
  template void conv_backward_data<T>(const ConvSizes&, int64_t, const T*, const T*, T*, T*);     \
  template void conv_backward_weights<T>(const ConvSizes&, int64_t, const T*, const T*, T*, T*);  \
  template void conv_backward_bias<T>(const ConvSizes&, const T*, T*)
ORTRAIN_CONV(float);
ORTRAIN_CONV(double);

}  // namespace ortrain
