// Adafactor: N. Shazeer and M. Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018.
// As in PyTorch. A matrix has a second moment for each row and each column; more dimensions are a batch of
// matrices.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adafactor.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/cpu/optimizer/optimizer_kernels.h"
#include "backend/cpu/optimizer/pass-inl.h"
#include "backend/cpu/optimizer/tensor_rule.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_ADAFACTOR_ROW
#define ORTRAIN_ADAFACTOR_ROW
namespace ortrain {
namespace {

// Rows are measured one after the other and then, while they are in the cache, added to the columns: as many
// rows as have kInCache elements, at least kTogether. Passes read memory by single rows, because two streams
// are read faster than eight. They read the cache by kTogether rows.
constexpr int64_t kRows = 16, kInCache = 32768, kTogether = 4;

// Up to kRows consecutive rows of a matrix, or a part of the elements of a vector. A gradient is multiplied
// by the factor of its row times that of its column, but at most by `most`. The factors of rows and `most`
// include the scale of the gradients.
template <typename T>
struct Rows {
  T* w;
  const T* g;
  const T* columns;
  std::array<T, kRows> factors;
  T most;
  int64_t n, count;
};

// Sums of squares: of the weights of all rows, and of the gradients of each.
struct Squares {
  double weights;
  std::array<double, kRows> gradients;
};

}  // namespace
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

// Σ at(d, i), an array of numbers for the elements from i on. Parts of fixed length are summed in the type of
// the elements, and their sums in double.
template <typename T, size_t kSums, class At>
HWY_INLINE std::array<double, kSums> sums_of(int64_t n, const At& at) {
  constexpr int64_t kPart = 4096;
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  std::array<double, kSums> totals{};
  const auto add = [](auto& sums, const auto& more) HWY_ATTR {
    for (size_t k = 0; k < kSums; ++k) sums[k] = sums[k] + more[k];
  };
  for (int64_t i = 0; i < n;) {
    const int64_t end = std::min(n, i + kPart);
    std::array<Number<hn::ScalableTag<T>>, kSums> even, odd;
    std::array<Number<hn::CappedTag<T, 1>>, kSums> rest;
    for (size_t k = 0; k < kSums; ++k) even[k] = odd[k] = T(0), rest[k] = T(0);
    // Two vectors for each sum hide the latency of additions.
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      add(even, at(d, i));
      add(odd, at(d, i + lanes));
    }
    for (; i + lanes <= end; i += lanes) add(even, at(d, i));
    for (; i < end; ++i) add(rest, at(one, i));
    add(even, odd);
    for (size_t k = 0; k < kSums; ++k)
      totals[k] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, even[k].v))) +
                   static_cast<double>(hn::GetLane(rest[k].v));
  }
  return totals;
}

// The squares of the weights and scaled gradients of rows.
template <typename T>
Squares squares_of(const T* w, const T* g, T scale, int64_t n, int64_t count) {
  Squares out{};
  for (int64_t r = 0; r < count; ++r) {
    const auto sums = sums_of<T, 2>(n, [w = w + r * n, g = g + r * n, scale](auto d, int64_t i) HWY_ATTR {
      using N = Number<decltype(d)>;
      const N weight = hn::LoadU(d, w + i), gradient = N(hn::LoadU(d, g + i)) * scale;
      return std::array<N, 2>{weight * weight, gradient * gradient};
    });
    out.weights += sums[0];
    out.gradients[r] = sums[1];
  }
  return out;
}

template <typename T, int64_t kCount>
void columns_side_by_side(const Rows<T>& given, int64_t first, T scale, T* sums, T* weighted) {
  const Rows<T> rows = given;
  const T* g = rows.g + first * rows.n;
  const auto at = [=](auto d, int64_t i) HWY_ATTR {
    using N = Number<decltype(d)>;
    N sum = hn::LoadU(d, sums + i), share = hn::LoadU(d, weighted + i);
    for (int64_t r = 0; r < kCount; ++r) {
      const N gradient = N(hn::LoadU(d, g + r * rows.n + i)) * scale, square = gradient * gradient;
      sum = sum + square;
      share = mul_add(square, rows.factors[first + r], share);
    }
    hn::StoreU(sum.v, d, sums + i);
    hn::StoreU(share.v, d, weighted + i);
  };
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= rows.n; i += lanes) at(d, i);
  for (; i < rows.n; ++i) at(hn::CappedTag<T, 1>(), i);
}

// Adds the squares of the scaled gradients of rows to `sums`, and multiplied by the factors of their rows to
// `weighted`.
template <typename T>
void add_to_columns(const Rows<T>& rows, T scale, T* sums, T* weighted) {
  int64_t r = 0;
  for (; r + kTogether <= rows.count; r += kTogether)
    columns_side_by_side<T, kTogether>(rows, r, scale, sums, weighted);
  for (; r < rows.count; ++r) columns_side_by_side<T, 1>(rows, r, scale, sums, weighted);
}

template <class D, typename T>
HWY_INLINE Number<D> normalized(D d, const Rows<T>& rows, int64_t r, Number<D> column, int64_t i) {
  const Number<D> factor = hn::Min((column * rows.factors[r]).v, hn::Set(d, rows.most));
  return Number<D>(hn::LoadU(d, rows.g + r * rows.n + i)) * factor;
}

// Σ of the squares of the normalized gradients.
template <typename T>
double normalized_squares(const Rows<T>& given) {
  const Rows<T> rows = given;
  double sum = 0;
  for (int64_t r = 0; r < rows.count; ++r)
    sum += sums_of<T, 1>(rows.n, [=](auto d, int64_t i) HWY_ATTR {
      const auto x = normalized(d, rows, r, Number<decltype(d)>(hn::LoadU(d, rows.columns + i)), i);
      return std::array<Number<decltype(d)>, 1>{x * x};
    })[0];
  return sum;
}

// w ← decayed w - rate · normalized gradient
template <typename T>
void change(const Rows<T>& given, T decayed, T rate) {
  const Rows<T> rows = given;
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows.count; ++r) {
    const auto at = [=](auto d, int64_t i) HWY_ATTR {
      using N = Number<decltype(d)>;
      T* w = rows.w + r * rows.n + i;
      const N x = normalized(d, rows, r, N(hn::LoadU(d, rows.columns + i)), i);
      hn::StoreU(neg_mul_add(rate, x, N(hn::LoadU(d, w)) * decayed).v, d, w);
    };
    int64_t i = 0;
    for (; i + lanes <= rows.n; i += lanes) at(d, i);
    for (; i < rows.n; ++i) at(hn::CappedTag<T, 1>(), i);
  }
}

Squares squares_float(const float* w, const float* g, float scale, int64_t n, int64_t count) {
  return squares_of(w, g, scale, n, count);
}
Squares squares_double(const double* w, const double* g, double scale, int64_t n, int64_t count) {
  return squares_of(w, g, scale, n, count);
}
void columns_float(const Rows<float>& rows, float scale, float* sums, float* weighted) {
  add_to_columns(rows, scale, sums, weighted);
}
void columns_double(const Rows<double>& rows, double scale, double* sums, double* weighted) {
  add_to_columns(rows, scale, sums, weighted);
}
double normalized_float(const Rows<float>& rows) { return normalized_squares(rows); }
double normalized_double(const Rows<double>& rows) { return normalized_squares(rows); }
void change_float(const Rows<float>& rows, float decayed, float rate) { change(rows, decayed, rate); }
void change_double(const Rows<double>& rows, double decayed, double rate) { change(rows, decayed, rate); }

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

// One name for both types.
Squares squares(const float* w, const float* g, float scale, int64_t n, int64_t count) {
  return ORTRAIN_DISPATCH(squares_float)(w, g, scale, n, count);
}
Squares squares(const double* w, const double* g, double scale, int64_t n, int64_t count) {
  return ORTRAIN_DISPATCH(squares_double)(w, g, scale, n, count);
}
void add_to_columns(const Rows<float>& rows, float scale, float* sums, float* weighted) {
  ORTRAIN_DISPATCH(columns_float)(rows, scale, sums, weighted);
}
void add_to_columns(const Rows<double>& rows, double scale, double* sums, double* weighted) {
  ORTRAIN_DISPATCH(columns_double)(rows, scale, sums, weighted);
}
double normalized_squares(const Rows<float>& rows) { return ORTRAIN_DISPATCH(normalized_float)(rows); }
double normalized_squares(const Rows<double>& rows) { return ORTRAIN_DISPATCH(normalized_double)(rows); }
void change(const Rows<float>& rows, float decayed, float rate) {
  ORTRAIN_DISPATCH(change_float)(rows, decayed, rate);
}
void change(const Rows<double>& rows, double decayed, double rate) {
  ORTRAIN_DISPATCH(change_double)(rows, decayed, rate);
}

// Segments of rows: their sums are added in order, so that results do not depend on the number of threads.
constexpr int64_t kSegments = 32;
// Elements of a vector that count as a row.
constexpr int64_t kRow = 2048;

// Calls f(segment, first row, past the last row) for parts of the rows, in several threads. With `backwards`,
// each thread begins with its last part, most of which another pass has left in the cache.
template <typename F>
void for_segments(int64_t rows, int64_t columns, bool backwards, F&& f) {
  const int64_t segments = std::min(rows, kSegments);
  parallel_for(segments, rows * columns * 2 / segments, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t s = backwards ? begin + end - 1 - i : i;
      f(static_cast<size_t>(s), rows * s / segments, rows * (s + 1) / segments);
    }
  });
}

template <typename T>
struct Numbers {
  T taken, kept, smallest, scale, decayed;
  double rate, limit, least_rms;
};

// Calls f(first row, number of rows) for up to kRows rows at a time of the same matrix of `high` rows.
template <typename F>
void for_rows(int64_t from, int64_t to, int64_t high, int64_t columns, F&& f) {
  const int64_t most = std::clamp(kInCache / std::max<int64_t>(columns, 1), kTogether, kRows);
  for (int64_t r = from; r < to;) {
    const int64_t count = std::min({most, to - r, high - r % high});
    f(r, count);
    r += count;
  }
}

// Σ of the squares of the normalized gradients, for a function that gives rows of matrices of `high` rows.
template <typename F>
double normalized_squares(int64_t rows, int64_t high, int64_t columns, F&& rows_at) {
  std::array<double, kSegments> parts{};
  for_segments(rows, columns, true, [&](size_t s, int64_t from, int64_t to) {
    for_rows(from, to, high, columns,
             [&](int64_t r, int64_t count) { parts[s] += normalized_squares(rows_at(r, count)); });
  });
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

// The change of the weights, whose sum of squares is `weights`.
template <typename T, typename F>
void apply(const Numbers<T>& f, const TensorRun<T>& run, int64_t rows, int64_t high, int64_t columns,
           double weights, double normalized, F&& rows_at) {
  const double n = static_cast<double>(run.n), excess = std::sqrt(normalized / n) / f.limit;
  const T rate =
      static_cast<T>(std::max(f.least_rms, std::sqrt(weights / n)) * f.rate / std::max(1.0, excess));
  for_segments(rows, columns, true, [&](size_t, int64_t from, int64_t to) {
    for_rows(from, to, high, columns,
             [&](int64_t r, int64_t count) { change(rows_at(r, count), f.decayed, rate); });
  });
}

template <typename T>
void step_of_vector(const Numbers<T>& f, const TensorRun<T>& run) {
  T *moment = run.states[2].template data<T>(), *roots = run.work;
  const double weights = sum_of_squares(run.w, run.n);
  for (int64_t i = 0; i < run.n; ++i) {
    const T g = run.g[i] * f.scale;
    moment[i] = f.kept * moment[i] + f.taken * (g * g);
    roots[i] = 1 / std::sqrt(std::max(moment[i], f.smallest * f.smallest));
  }
  // Each row counts as a matrix, so that the last row may be shorter.
  const int64_t rows = (run.n + kRow - 1) / kRow;
  const auto rows_at = [&](int64_t r, int64_t) {
    const int64_t at = r * kRow, n = std::min(kRow, run.n - at);
    return Rows<T>{run.w + at, run.g + at, roots + at, {f.scale}, std::numeric_limits<T>::infinity(), n, 1};
  };
  apply(f, run, rows, 1, kRow, weights, normalized_squares(rows, 1, kRow, rows_at), rows_at);
}

// A matrix of a parameter. `sums` has room for two rows of each segment.
template <typename T>
struct Matrix {
  T* w;
  const T* g;
  int64_t rows, columns;
  T *of_rows, *of_columns, *sums;
};

// Sums over a matrix, or over all matrices of a parameter.
struct Sums {
  double weights = 0;     // of the squares of the weights
  double normalized = 0;  // of the squares of the normalized gradients
};

// Updates the moments of the rows of a segment, adds its squares to `sums`, and those divided by the moments
// of their rows to `weighted`. Returns the squares of the weights. Rows without gradients add nothing, and
// `least` is the least moment of the others.
template <typename T>
double update_segment(const Numbers<T>& f, const Matrix<T>& m, int64_t from, int64_t to, T* sums, T* weighted,
                      T& least) {
  double weights = 0;
  for_rows(from, to, m.rows, m.columns, [&](int64_t first, int64_t count) {
    const int64_t at = first * m.columns;
    Rows<T> rows{m.w + at, m.g + at, nullptr, {}, 0, m.columns, count};
    const Squares found = squares(rows.w, rows.g, f.scale, m.columns, count);
    weights += found.weights;
    for (int64_t r = 0; r < count; ++r) {
      const double of_row = found.gradients[static_cast<size_t>(r)];
      T& moment = m.of_rows[first + r];
      moment = f.kept * moment + f.taken * static_cast<T>(of_row / static_cast<double>(m.columns));
      if (of_row == 0) continue;
      rows.factors[static_cast<size_t>(r)] = 1 / moment;
      least = std::min(least, moment);
    }
    add_to_columns(rows, f.scale, sums, weighted);
  });
  return weights;
}

// Adds the squares of a matrix's gradients to the moments of its rows and columns, and sets the mean of the
// moments of the rows. The sum of the normalized squares, g² mean / (row · column), is that of columns,
// because the moment of a row is known when the row has been read once. It is infinite if a moment is so
// small that a limit applies.
template <typename T>
Sums update_moments(const Numbers<T>& f, const Matrix<T>& m, T& mean) {
  const auto wide = static_cast<size_t>(m.columns),
             segments = static_cast<size_t>(std::min(m.rows, kSegments));
  std::array<double, kSegments> weights{};
  std::array<T, kSegments> least_rows;
  least_rows.fill(std::numeric_limits<T>::max());
  for_segments(m.rows, m.columns, false, [&](size_t s, int64_t from, int64_t to) {
    T* sum = m.sums + 2 * s * wide;
    std::fill_n(sum, 2 * wide, T(0));
    weights[s] = update_segment(f, m, from, to, sum, sum + wide, least_rows[s]);
  });
  double of_rows = 0, normalized = 0;
  for (int64_t r = 0; r < m.rows; ++r) of_rows += static_cast<double>(m.of_rows[r]);
  mean = std::max(static_cast<T>(of_rows / static_cast<double>(m.rows)), f.smallest);
  T least_column = std::numeric_limits<T>::max();
  constexpr size_t kPart = 64;
  for (size_t begin = 0; begin < wide; begin += kPart) {
    const size_t count = std::min(kPart, wide - begin);
    std::array<double, kPart> total{}, weighted{};
    for (size_t s = 0; s < segments; ++s) {
      const T *sum = m.sums + 2 * s * wide + begin, *share = sum + wide;
      for (size_t c = 0; c < count; ++c) total[c] += static_cast<double>(sum[c]);
      for (size_t c = 0; c < count; ++c) weighted[c] += static_cast<double>(share[c]);
    }
    for (size_t c = 0; c < count; ++c) {
      T& moment = m.of_columns[begin + c];
      moment = f.kept * moment + f.taken * static_cast<T>(total[c] / static_cast<double>(m.rows));
      if (total[c] == 0) continue;
      normalized += weighted[c] / static_cast<double>(moment);
      least_column = std::min(least_column, moment);
    }
  }
  const T least_row = *std::min_element(least_rows.begin(), least_rows.end()) / mean;
  const bool is_limited = least_row < std::numeric_limits<T>::min() ||
                          least_column < std::numeric_limits<T>::min() ||
                          std::sqrt(least_row) * std::sqrt(least_column) < f.smallest;
  return {std::accumulate(weights.begin(), weights.end(), 0.0),
          is_limited ? std::numeric_limits<double>::infinity() : normalized * static_cast<double>(mean)};
}

template <typename T>
void step_of_matrices(const Numbers<T>& f, const TensorRun<T>& run) {
  const int64_t columns = run.shape.back(), high = run.shape[run.shape.size() - 2];
  const int64_t rows = run.n / columns, matrices = rows / high;
  T *of_rows = run.states[0].template data<T>(), *of_columns = run.states[1].template data<T>();
  // The root of a product is that of its factors, so that there is no root of each element. Both are finite,
  // so that rows and columns without gradients have no product of 0 and infinity.
  const auto root = [](T moment) { return 1 / std::sqrt(std::max(moment, std::numeric_limits<T>::min())); };
  T *const means = run.work, *const roots = means + matrices, *const sums = roots + matrices * columns;
  Sums total;
  for (int64_t m = 0; m < matrices; ++m) {
    const int64_t at = m * high * columns;
    const Sums found = update_moments(
        f,
        Matrix<T>{run.w + at, run.g + at, high, columns, of_rows + m * high, of_columns + m * columns, sums},
        means[m]);
    total.weights += found.weights;
    total.normalized += found.normalized;
  }
  for (int64_t i = 0; i < matrices * columns; ++i) roots[i] = root(of_columns[i]);
  const auto rows_at = [&](int64_t first, int64_t count) {
    const int64_t at = first * columns, m = first / high;
    Rows<T> out{run.w + at, run.g + at, roots + m * columns, {}, f.scale / f.smallest, columns, count};
    for (int64_t r = 0; r < count; ++r)
      out.factors[static_cast<size_t>(r)] = root(of_rows[first + r] / means[m]) * f.scale;
    return out;
  };
  if (!std::isfinite(total.normalized)) total.normalized = normalized_squares(rows, high, columns, rows_at);
  apply(f, run, rows, high, columns, total.weights, total.normalized, rows_at);
}

struct Adafactor {
  static Tensor state(const OptimizerStep&, DType dtype, const Shape& shape, size_t k) {
    const bool is_factored = shape.size() > 1;
    Shape of = shape;
    if (is_factored && k == 0) of.pop_back();
    if (is_factored && k == 1) of.erase(of.end() - 2);
    return Tensor(dtype, is_factored == (k < 2) ? of : Shape{0}, nullptr);
  }

  // The working memory. For a vector: the factor of each element. For matrices: a mean for each matrix, the
  // roots for its columns, and for one matrix two sums for each column of each segment.
  static int64_t work(const OptimizerStep&, const Shape& shape) {
    if (shape.size() < 2) return shape.empty() ? 1 : shape.front();
    int64_t matrices = 1;
    for (size_t i = 0; i + 2 < shape.size(); ++i) matrices *= shape[i];
    return matrices + (matrices + 2 * std::min(shape[shape.size() - 2], kSegments)) * shape.back();
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
     .settings =
         {{"beta2_decay", -0.8f, "exponent of t in the fraction of the second moment that step t replaces"},
          {"epsilon", 0, "lower bound of the root of the second moment; 0 for the precision of the type", 0},
          {"least_rms", 1e-3f, "lower bound of the root mean square of the weights", 0},
          {"limit", 1, "limit of the root mean square of the normalized gradient, PyTorch's d", 1e-30f},
          {"weight_decay", 0, "decay of the weights, as a fraction of the learning rate"}},
     .states = {{"row_moment", "average of the squares of the gradients in each row of a matrix"},
                {"column_moment", "average of the squares of the gradients in each column of a matrix"},
                {"second_moment",
                 "average of the squares of the gradients, for parameters that are not matrices"}},
     .of_tensor = tensor_rule<Adafactor>()});

}  // namespace
}  // namespace ortrain
#endif
