// Adafactor: N. Shazeer and M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.
// As in PyTorch. A matrix has a second moment for each row and each column; more dimensions are a batch of
// matrices.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "backend/cpu/optimizer/tensor_rule.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kSegments =
    32;  // of rows, summed one by one, so that the sums do not depend on the threads

// Calls f(segment, first row, behind the last one) for parts of the rows, in several threads.
template <typename F>
void for_segments(int64_t rows, int64_t columns, F&& f) {
  const int64_t segments = std::min(rows, kSegments);
  parallel_for(segments, rows * columns * 2 / segments, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      f(static_cast<size_t>(s), rows * s / segments, rows * (s + 1) / segments);
  });
}

template <typename F>
double sum_over_segments(int64_t rows, int64_t columns, F&& f) {
  std::array<double, kSegments> parts{};
  for_segments(rows, columns, [&](size_t s, int64_t from, int64_t to) { parts[s] = f(from, to); });
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

// Σ f(i) of a row, in lanes, so that it is compiled to vectors.
template <typename T, typename F>
double sum_of_row(int64_t n, F&& f) {
  constexpr int64_t kLanes = 16;
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) lanes[k] += f(i + k);
  for (; i < n; ++i) lanes[0] += f(i);
  double total = 0;
  for (const T lane : lanes) total += static_cast<double>(lane);
  return total;
}

template <typename T>
struct Numbers {
  T taken, kept, smallest, scale, decayed;
  double rate, limit, least_rms;
};

// What a gradient is multiplied by: the estimate of its second moment, to the power of -1/2.
template <typename T>
T inverse_root(T estimate, T smallest) {
  return 1 / std::sqrt(std::max(estimate, smallest * smallest));
}

// The change of the weights, for a function that gives an element of the normalized gradient in a row.
template <typename T, typename Row>
void apply(const Numbers<T>& f, const TensorRun<T>& run, int64_t rows, int64_t columns, double rms,
           Row&& normalized) {
  const double squares = sum_over_segments(rows, columns, [&](int64_t from, int64_t to) {
    double sum = 0;
    for (int64_t r = from; r < to; ++r) {
      const auto element = normalized(r);
      sum += sum_of_row<T>(columns, [&](int64_t c) { return element(c) * element(c); });
    }
    return sum;
  });
  const double excess = std::sqrt(squares) / (std::sqrt(static_cast<double>(run.n)) * f.limit);
  const T rate = static_cast<T>(std::max(f.least_rms, rms) * f.rate / std::max(1.0, excess));
  for_segments(rows, columns, [&](size_t, int64_t from, int64_t to) {
    const T step = rate, decayed = f.decayed;  // which no store to the weights can change
    for (int64_t r = from; r < to; ++r) {
      const auto element = normalized(r);
      T* __restrict w = run.w + r * columns;
      for (int64_t c = 0; c < columns; ++c) w[c] = w[c] * decayed - step * element(c);
    }
  });
}

template <typename T>
double rms_of(const TensorRun<T>& run, int64_t rows, int64_t columns) {
  const double squares = sum_over_segments(rows, columns, [&](int64_t from, int64_t to) {
    double sum = 0;
    for (int64_t r = from; r < to; ++r) {
      const T* w = run.w + r * columns;
      sum += sum_of_row<T>(columns, [&](int64_t c) { return w[c] * w[c]; });
    }
    return sum;
  });
  return std::sqrt(squares / static_cast<double>(run.n));
}

template <typename T>
void step_of_vector(const Numbers<T>& f, const TensorRun<T>& run) {
  T* moment = run.states[2].template data<T>();
  // Rows of a fixed length, the last of which is the rest.
  const double rms = rms_of(run, 1, run.n);
  for (int64_t i = 0; i < run.n; ++i) {
    const T g = run.g[i] * f.scale;
    moment[i] = f.kept * moment[i] + f.taken * (g * g);
  }
  apply(f, run, 1, run.n, rms, [&](int64_t) {
    return [&](int64_t i) { return run.g[i] * f.scale * inverse_root(moment[i], f.smallest); };
  });
}

// Adds the squares of a matrix's gradient to the moments of its rows and columns. `sums` has room for a row
// of each segment.
template <typename T>
void update_moments(const Numbers<T>& f, const T* g, int64_t rows, int64_t columns, T* of_rows, T* of_columns,
                    T* sums) {
  const auto wide = static_cast<size_t>(columns), segments = static_cast<size_t>(std::min(rows, kSegments));
  std::fill_n(sums, segments * wide, T(0));
  for_segments(rows, columns, [&](size_t s, int64_t from, int64_t to) {
    T* __restrict sum = sums + s * wide;
    for (int64_t r = from; r < to; ++r) {
      const T* row = g + r * columns;
      const double squares = sum_of_row<T>(columns, [sum, row, scale = f.scale](int64_t c) {
        const T square = row[c] * scale * (row[c] * scale);
        sum[c] += square;
        return square;
      });
      of_rows[r] = f.kept * of_rows[r] + f.taken * static_cast<T>(squares / static_cast<double>(columns));
    }
  });
  for (size_t c = 0; c < wide; ++c) {
    double squares = 0;
    for (size_t s = 0; s < segments; ++s) squares += static_cast<double>(sums[s * wide + c]);
    of_columns[c] = f.kept * of_columns[c] + f.taken * static_cast<T>(squares / static_cast<double>(rows));
  }
}

template <typename T>
void step_of_matrices(const Numbers<T>& f, const TensorRun<T>& run) {
  const int64_t columns = run.shape.back(), high = run.shape[run.shape.size() - 2];
  const int64_t rows = run.n / columns, matrices = rows / high;
  T *of_rows = run.states[0].template data<T>(), *of_columns = run.states[1].template data<T>();
  const double rms = rms_of(run, rows, columns);
  // The root of a product is that of its factors, so that there is no root of each element. Both are finite,
  // so that rows and columns without gradients have no product of 0 and infinity.
  const auto root = [](T moment) { return 1 / std::sqrt(std::max(moment, std::numeric_limits<T>::min())); };
  const T most = 1 / f.smallest;
  T *const means = run.work, *const roots = means + matrices, *const sums = roots + matrices * columns;
  for (int64_t m = 0; m < matrices; ++m) {
    update_moments(f, run.g + m * high * columns, high, columns, of_rows + m * high, of_columns + m * columns,
                   sums);
    double sum = 0;
    for (int64_t r = 0; r < high; ++r) sum += static_cast<double>(of_rows[m * high + r]);
    means[m] = std::max(static_cast<T>(sum / static_cast<double>(high)), f.smallest);
  }
  for (int64_t i = 0; i < matrices * columns; ++i) roots[i] = root(of_columns[i]);
  apply(f, run, rows, columns, rms, [&](int64_t r) {
    const T *g = run.g + r * columns, *column = roots + r / high * columns;
    const T row = root(of_rows[r] / means[r / high]);
    return [scale = f.scale, g, column, row, most](int64_t c) {
      return g[c] * scale * std::min(row * column[c], most);
    };
  });
}

struct Adafactor {
  static Tensor state(const OptimizerStep&, DType dtype, const Shape& shape, size_t k) {
    const bool is_factored = shape.size() > 1;
    Shape of = shape;
    if (is_factored && k == 0) of.pop_back();
    if (is_factored && k == 1) of.erase(of.end() - 2);
    return Tensor(dtype, is_factored == (k < 2) ? of : Shape{0}, nullptr);
  }

  // A mean of each matrix, the roots of its columns, and the sums of the columns of one.
  static int64_t work(const OptimizerStep&, const Shape& shape) {
    if (shape.size() < 2) return 0;
    int64_t matrices = 1;
    for (size_t i = 0; i + 2 < shape.size(); ++i) matrices *= shape[i];
    return matrices + (matrices + std::min(shape[shape.size() - 2], kSegments)) * shape.back();
  }

  template <typename T>
  static void step(const OptimizerStep& s, const TensorRun<T>& run) {
    const double taken = std::pow(s.step, s["beta2_decay"]);
    const double smallest =
        s["epsilon"] == 0 ? static_cast<double>(std::numeric_limits<T>::epsilon()) : s["epsilon"];
    const Numbers<T> f{.taken = static_cast<T>(taken),
                       .kept = static_cast<T>(1 - taken),
                       .smallest = static_cast<T>(smallest),
                       .scale = static_cast<T>(s.gradient_scale),
                       .decayed = static_cast<T>(1 - s.rate * s["weight_decay"]),
                       .rate = std::min(s.rate, 1 / std::sqrt(s.step)),
                       .limit = s["limit"],
                       .least_rms = s["least_rms"]};
    run.shape.size() > 1 ? step_of_matrices(f, run) : step_of_vector(f, run);
  }
};

ORTRAIN_OPTIMIZER(
    Adafactor,
    {.name = "adafactor",
     .title = "Adafactor",
     .formula = "κ = t^beta2_decay; matrices: r = (1-κ)r + κ mean(g², rows), c = (1-κ)c + κ mean(g², "
                "columns), v = r cᵀ/mean(r); "
                "others: v = (1-κ)v + κg²; u = g/√v; "
                "w = w(1 - lr·decay) - min(lr, 1/√t) max(least_rms, rms(w)) u / max(1, rms(u)/limit)",
     .source = "Shazeer and Stern, Adafactor: adaptive learning rates with sublinear memory cost, 2018",
     .settings = {{"beta2_decay", -0.8f, "exponent of the share that a step takes"},
                  {"epsilon", 0, "least root of the second moment; 0 for the precision of the type", 0},
                  {"least_rms", 1e-3f, "least root mean square of the weights that counts", 0},
                  {"limit", 1, "of the root mean square of the normalized gradient, PyTorch's d", 1e-30f},
                  {"weight_decay", 0, "decay of the weights, as a fraction of the learning rate"}},
     .states = {{"row_moment", "average of the squares of the gradients in each row of a matrix"},
                {"column_moment", "in each column"},
                {"second_moment", "of each element, of parameters that are not matrices"}},
     .of_tensor = tensor_rule<Adafactor>()});

}  // namespace
}  // namespace ortrain
