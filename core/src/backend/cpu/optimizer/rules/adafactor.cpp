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

#ifndef ORTRAIN_ADAFACTOR_ROW
#define ORTRAIN_ADAFACTOR_ROW
namespace ortrain {
namespace {

// Rows that a pass reads side by side: a processor prefetches several streams, and reads memory faster by
// them.
constexpr int64_t kRows = 4;

// Up to kRows rows of a matrix, one behind the other, or a part of the elements of a vector. What a gradient
// is multiplied by is the factor of its row times that of its column, and never above `most`. The factors of
// rows and `most` include the scale of the gradients.
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
    // Two of a sum hide its latency, if there are few sums.
    for (; kSums <= 2 && i + 2 * lanes <= end; i += 2 * lanes) {
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

template <typename T, int64_t kCount>
Squares squares_side_by_side(const T* w, const T* g, T scale, int64_t n, T* columns) {
  const auto sums = sums_of<T, kCount + 1>(n, [=](auto d, int64_t i) HWY_ATTR {
    using N = Number<decltype(d)>;
    std::array<N, kCount + 1> squares;
    N weights = T(0), column = hn::LoadU(d, columns + i);
    for (int64_t r = 0; r < kCount; ++r) {
      const N weight = hn::LoadU(d, w + r * n + i), gradient = N(hn::LoadU(d, g + r * n + i)) * scale;
      squares[r] = gradient * gradient;
      weights = mul_add(weight, weight, weights);
      column = column + squares[r];
    }
    hn::StoreU(column.v, d, columns + i);
    squares[kCount] = weights;
    return squares;
  });
  Squares out{sums[kCount], {}};
  std::copy_n(sums.begin(), kCount, out.gradients.begin());
  return out;
}

// The squares of the weights and scaled gradients of rows; those of the gradients are also added to
// `columns`.
template <typename T>
Squares squares_of(const T* w, const T* g, T scale, int64_t n, int64_t count, T* columns) {
  if (count == kRows) return squares_side_by_side<T, kRows>(w, g, scale, n, columns);
  Squares out{};
  for (int64_t r = 0; r < count; ++r) {
    const Squares each = squares_side_by_side<T, 1>(w + r * n, g + r * n, scale, n, columns);
    out.weights += each.weights;
    out.gradients[r] = each.gradients[0];
  }
  return out;
}

template <class D, typename T>
HWY_INLINE Number<D> normalized(D d, const Rows<T>& rows, int64_t r, Number<D> column, int64_t i) {
  const Number<D> factor = hn::Min((column * rows.factors[r]).v, hn::Set(d, rows.most));
  return Number<D>(hn::LoadU(d, rows.g + r * rows.n + i)) * factor;
}

// Σ of the squares of the normalized gradients of rows from `first` on.
template <typename T, int64_t kCount>
double normalized_side_by_side(const Rows<T>& given, int64_t first) {
  const Rows<T> rows = given;
  const auto sums = sums_of<T, kCount>(rows.n, [=](auto d, int64_t i) HWY_ATTR {
    std::array<Number<decltype(d)>, kCount> squares;
    const Number<decltype(d)> column = hn::LoadU(d, rows.columns + i);
    for (int64_t r = 0; r < kCount; ++r) {
      const auto x = normalized(d, rows, first + r, column, i);
      squares[r] = x * x;
    }
    return squares;
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

template <typename T>
double normalized_squares(const Rows<T>& rows) {
  if (rows.count == kRows) return normalized_side_by_side<T, kRows>(rows, 0);
  double sum = 0;
  for (int64_t r = 0; r < rows.count; ++r) sum += normalized_side_by_side<T, 1>(rows, r);
  return sum;
}

// w ← decayed w - rate · normalized gradient, of rows from `first` on
template <typename T, int64_t kCount>
void change_side_by_side(const Rows<T>& given, int64_t first, T decayed, T rate) {
  const Rows<T> rows = given;
  const auto at = [=](auto d, int64_t i) HWY_ATTR {
    using N = Number<decltype(d)>;
    const N column = hn::LoadU(d, rows.columns + i);
    for (int64_t r = first; r < first + kCount; ++r) {
      T* w = rows.w + r * rows.n + i;
      hn::StoreU(neg_mul_add(rate, normalized(d, rows, r, column, i), N(hn::LoadU(d, w)) * decayed).v, d, w);
    }
  };
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= rows.n; i += lanes) at(d, i);
  for (; i < rows.n; ++i) at(hn::CappedTag<T, 1>(), i);
}

template <typename T>
void change(const Rows<T>& rows, T decayed, T rate) {
  if (rows.count == kRows) return change_side_by_side<T, kRows>(rows, 0, decayed, rate);
  for (int64_t r = 0; r < rows.count; ++r) change_side_by_side<T, 1>(rows, r, decayed, rate);
}

Squares squares_float(const float* w, const float* g, float scale, int64_t n, int64_t count, float* columns) {
  return squares_of(w, g, scale, n, count, columns);
}
Squares squares_double(const double* w, const double* g, double scale, int64_t n, int64_t count,
                       double* columns) {
  return squares_of(w, g, scale, n, count, columns);
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

HWY_EXPORT(squares_float);
HWY_EXPORT(squares_double);
HWY_EXPORT(normalized_float);
HWY_EXPORT(normalized_double);
HWY_EXPORT(change_float);
HWY_EXPORT(change_double);

// Both types by one name.
Squares squares(const float* w, const float* g, float scale, int64_t n, int64_t count, float* columns) {
  return HWY_DYNAMIC_DISPATCH(squares_float)(w, g, scale, n, count, columns);
}
Squares squares(const double* w, const double* g, double scale, int64_t n, int64_t count, double* columns) {
  return HWY_DYNAMIC_DISPATCH(squares_double)(w, g, scale, n, count, columns);
}
double normalized_squares(const Rows<float>& rows) { return HWY_DYNAMIC_DISPATCH(normalized_float)(rows); }
double normalized_squares(const Rows<double>& rows) { return HWY_DYNAMIC_DISPATCH(normalized_double)(rows); }
void change(const Rows<float>& rows, float decayed, float rate) {
  HWY_DYNAMIC_DISPATCH(change_float)(rows, decayed, rate);
}
void change(const Rows<double>& rows, double decayed, double rate) {
  HWY_DYNAMIC_DISPATCH(change_double)(rows, decayed, rate);
}

// Of rows, summed one by one, so that the sums do not depend on the threads.
constexpr int64_t kSegments = 32;
// Elements of a vector that count as a row.
constexpr int64_t kRow = 2048;

// Calls f(segment, first row, behind the last one) for parts of the rows, in several threads.
template <typename F>
void for_segments(int64_t rows, int64_t columns, F&& f) {
  const int64_t segments = std::min(rows, kSegments);
  parallel_for(segments, rows * columns * 2 / segments, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s)
      f(static_cast<size_t>(s), rows * s / segments, rows * (s + 1) / segments);
  });
}

template <typename T>
struct Numbers {
  T taken, kept, smallest, scale, decayed;
  double rate, limit, least_rms;
};

// Calls f(first row, number of rows) for up to kRows rows at a time of the same matrix, whose rows are
// `high`.
template <typename F>
void for_rows(int64_t from, int64_t to, int64_t high, F&& f) {
  for (int64_t r = from; r < to;) {
    const int64_t count = std::min({kRows, to - r, high - r % high});
    f(r, count);
    r += count;
  }
}

// The change of the weights, for a function that gives rows of matrices of `high` rows.
template <typename T, typename F>
void apply(const Numbers<T>& f, const TensorRun<T>& run, int64_t rows, int64_t high, int64_t columns,
           double rms, F&& rows_at) {
  std::array<double, kSegments> parts{};
  for_segments(rows, columns, [&](size_t s, int64_t from, int64_t to) {
    for_rows(from, to, high,
             [&](int64_t r, int64_t count) { parts[s] += normalized_squares(rows_at(r, count)); });
  });
  double total = 0;
  for (const double part : parts) total += part;
  const double excess = std::sqrt(total) / (std::sqrt(static_cast<double>(run.n)) * f.limit);
  const T rate = static_cast<T>(std::max(f.least_rms, rms) * f.rate / std::max(1.0, excess));
  for_segments(rows, columns, [&](size_t, int64_t from, int64_t to) {
    for_rows(from, to, high, [&](int64_t r, int64_t count) { change(rows_at(r, count), f.decayed, rate); });
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
  // Each row is a matrix, so that the last one may be shorter.
  apply(f, run, (run.n + kRow - 1) / kRow, 1, kRow, std::sqrt(weights / static_cast<double>(run.n)),
        [&](int64_t r, int64_t) {
          const int64_t at = r * kRow;
          return Rows<T>{run.w + at,
                         run.g + at,
                         roots + at,
                         {f.scale},
                         std::numeric_limits<T>::infinity(),
                         std::min(kRow, run.n - at),
                         1};
        });
}

// Adds the squares of a matrix's gradients to the moments of its rows and columns, and returns the sum of the
// squares of its weights. `sums` has room for a row of each segment.
template <typename T>
double update_moments(const Numbers<T>& f, const T* w, const T* g, int64_t rows, int64_t columns, T* of_rows,
                      T* of_columns, T* sums) {
  const auto wide = static_cast<size_t>(columns), segments = static_cast<size_t>(std::min(rows, kSegments));
  std::array<double, kSegments> weights{};
  for_segments(rows, columns, [&](size_t s, int64_t from, int64_t to) {
    T* sum = sums + s * wide;
    std::fill_n(sum, wide, T(0));
    for_rows(from, to, rows, [&](int64_t first, int64_t count) {
      const Squares found = squares(w + first * columns, g + first * columns, f.scale, columns, count, sum);
      weights[s] += found.weights;
      for (int64_t r = 0; r < count; ++r)
        of_rows[first + r] =
            f.kept * of_rows[first + r] +
            f.taken * static_cast<T>(found.gradients[static_cast<size_t>(r)] / static_cast<double>(columns));
    });
  });
  for (size_t c = 0; c < wide; ++c) {
    double total = 0;
    for (size_t s = 0; s < segments; ++s) total += static_cast<double>(sums[s * wide + c]);
    of_columns[c] = f.kept * of_columns[c] + f.taken * static_cast<T>(total / static_cast<double>(rows));
  }
  double total = 0;
  for (const double part : weights) total += part;
  return total;
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
  double weights = 0;
  for (int64_t m = 0; m < matrices; ++m) {
    const int64_t at = m * high * columns;
    weights += update_moments(f, run.w + at, run.g + at, high, columns, of_rows + m * high,
                              of_columns + m * columns, sums);
    double sum = 0;
    for (int64_t r = 0; r < high; ++r) sum += static_cast<double>(of_rows[m * high + r]);
    means[m] = std::max(static_cast<T>(sum / static_cast<double>(high)), f.smallest);
  }
  for (int64_t i = 0; i < matrices * columns; ++i) roots[i] = root(of_columns[i]);
  apply(f, run, rows, high, columns, std::sqrt(weights / static_cast<double>(run.n)),
        [&](int64_t first, int64_t count) {
          const int64_t at = first * columns, m = first / high;
          Rows<T> out{run.w + at, run.g + at, roots + m * columns, {}, f.scale / f.smallest, columns, count};
          for (int64_t r = 0; r < count; ++r)
            out.factors[static_cast<size_t>(r)] = root(of_rows[first + r] / means[m]) * f.scale;
          return out;
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

  // The factor of each element of a vector. Of matrices a mean of each, the roots of its columns, and the
  // sums of the columns of one.
  static int64_t work(const OptimizerStep&, const Shape& shape) {
    if (shape.size() < 2) return shape.empty() ? 1 : shape.front();
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
#endif
