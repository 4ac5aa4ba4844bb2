// Sums, extremes and products over axes, on vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/reduce/reduction.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/reduce/reduction.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "built_operators.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_REDUCE_BLOCKS
#define ORTRAIN_REDUCE_BLOCKS
namespace ortrain {
// Within a block, elements are added in their own type; blocks are added in double.
constexpr int64_t kRunBlock = 1024;    // neighbours: 32 additions in a lane of eight with four accumulators
constexpr int64_t kRowBlock = 32;      // rows of columns
constexpr int64_t kColumnBlock = 256;  // columns of one task

// Results of a block as doubles: for neighbours, one value; for rows, one value per column.
struct ReduceFunctions {
  double (*run)(const void* x, int64_t n);
  void (*rows)(const void* x, int64_t rows, int64_t stride, int64_t columns, double* out);
};

// Whether an operator of this build reduces in that way. Many operators sum.
constexpr bool is_reduced_by(Reduce op) {
  switch (op) {
    case Reduce::kSumSquare:
      return is_built("", "ReduceL2") || is_built("", "ReduceSumSquare");
    case Reduce::kSumAbs:
      return is_built("", "ReduceL1");
    case Reduce::kMax:
      return is_built("", "ReduceMax");
    case Reduce::kMin:
      return is_built("", "ReduceMin");
    case Reduce::kProd:
      return is_built("", "ReduceProd");
    default:
      return true;
  }
}
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

struct SumStep {
  static constexpr double kStart = 0;
  template <class D>
  static HWY_INLINE Vec<D> Apply(D, Vec<D> sum, Vec<D> x) {
    return hn::Add(sum, x);
  }
  // Combine two partial results into one, and the lanes of one into a single value.
  template <class D>
  static HWY_INLINE Vec<D> Merge(D, Vec<D> a, Vec<D> b) {
    return hn::Add(a, b);
  }
  template <class D>
  static HWY_INLINE double Lanes(D d, Vec<D> v) {
    return static_cast<double>(hn::GetLane(hn::SumOfLanes(d, v)));
  }
  static double Combine(double a, double b) { return a + b; }
};

struct SumSquareStep : SumStep {
  template <class D>
  static HWY_INLINE Vec<D> Apply(D, Vec<D> sum, Vec<D> x) {
    return hn::MulAdd(x, x, sum);
  }
};

struct SumAbsStep : SumStep {
  template <class D>
  static HWY_INLINE Vec<D> Apply(D, Vec<D> sum, Vec<D> x) {
    return hn::Add(sum, hn::Abs(x));
  }
};

struct MaxStep {
  static constexpr double kStart = -std::numeric_limits<double>::infinity();
  template <class D>
  static HWY_INLINE Vec<D> Apply(D d, Vec<D> a, Vec<D> b) {
    return math::MaxNan(d, a, b);
  }
  template <class D>
  static HWY_INLINE Vec<D> Merge(D d, Vec<D> a, Vec<D> b) {
    return math::MaxNan(d, a, b);
  }
  template <class D>
  static HWY_INLINE double Lanes(D d, Vec<D> v) {
    if (!hn::AllFalse(d, hn::IsNaN(v))) return std::numeric_limits<double>::quiet_NaN();
    return static_cast<double>(hn::GetLane(hn::MaxOfLanes(d, v)));
  }
  static double Combine(double a, double b) { return a >= b || a != a ? a : b; }
};

struct MinStep {
  static constexpr double kStart = std::numeric_limits<double>::infinity();
  template <class D>
  static HWY_INLINE Vec<D> Apply(D d, Vec<D> a, Vec<D> b) {
    return math::MinNan(d, a, b);
  }
  template <class D>
  static HWY_INLINE Vec<D> Merge(D d, Vec<D> a, Vec<D> b) {
    return math::MinNan(d, a, b);
  }
  template <class D>
  static HWY_INLINE double Lanes(D d, Vec<D> v) {
    if (!hn::AllFalse(d, hn::IsNaN(v))) return std::numeric_limits<double>::quiet_NaN();
    return static_cast<double>(hn::GetLane(hn::MinOfLanes(d, v)));
  }
  static double Combine(double a, double b) { return a <= b || a != a ? a : b; }
};

struct ProdStep {
  static constexpr double kStart = 1;
  template <class D>
  static HWY_INLINE Vec<D> Apply(D, Vec<D> product, Vec<D> x) {
    return hn::Mul(product, x);
  }
  template <class D>
  static HWY_INLINE Vec<D> Merge(D, Vec<D> a, Vec<D> b) {
    return hn::Mul(a, b);
  }
  template <class D>
  static HWY_INLINE double Lanes(D d, Vec<D> v) {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    double product = 1;
    for (size_t i = 0; i < hn::Lanes(d); ++i) product *= static_cast<double>(lanes[i]);
    return product;
  }
  static double Combine(double a, double b) { return a * b; }
};

// The value of lanes without an input element, so that they do not count.
template <class Step, typename T>
constexpr T kNothing = static_cast<T>(Step::kStart);

// Elements are stored as V and computed as T.
template <class Step, typename T, typename V = T>
double ReduceRun(const void* raw, int64_t n) {
  const V* x = static_cast<const V*>(raw);
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto start = C(d, Step::kStart);
  auto s0 = start, s1 = start, s2 = start, s3 = start;
  int64_t i = 0;
  if (n >= 4 * lanes) {
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      s0 = Step::Apply(d, s0, LoadUpTo(d, x + i, lanes));
      s1 = Step::Apply(d, s1, LoadUpTo(d, x + i + lanes, lanes));
      s2 = Step::Apply(d, s2, LoadUpTo(d, x + i + 2 * lanes, lanes));
      s3 = Step::Apply(d, s3, LoadUpTo(d, x + i + 3 * lanes, lanes));
    }
    s0 = Step::Merge(d, Step::Merge(d, s0, s1), Step::Merge(d, s2, s3));
  }
  for (; i < n; i += lanes)
    s0 = Step::Apply(d, s0, LoadUpTo(d, x + i, HWY_MIN(lanes, n - i), kNothing<Step, T>));
  return Step::Lanes(d, s0);
}

template <class Step, typename T, typename V = T>
void ReduceRows(const void* raw, int64_t rows, int64_t stride, int64_t columns, double* out) {
  const V* x = static_cast<const V*>(raw);
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto start = C(d, Step::kStart);
  HWY_ALIGN T partial[kColumnBlock + hn::MaxLanes(d)];
  int64_t j = 0;
  for (; j + 4 * lanes <= columns; j += 4 * lanes) {
    auto s0 = start, s1 = start, s2 = start, s3 = start;
    const V* p = x + j;
    for (int64_t r = 0; r < rows; ++r, p += stride) {
      s0 = Step::Apply(d, s0, LoadUpTo(d, p, lanes));
      s1 = Step::Apply(d, s1, LoadUpTo(d, p + lanes, lanes));
      s2 = Step::Apply(d, s2, LoadUpTo(d, p + 2 * lanes, lanes));
      s3 = Step::Apply(d, s3, LoadUpTo(d, p + 3 * lanes, lanes));
    }
    hn::StoreU(s0, d, partial + j);
    hn::StoreU(s1, d, partial + j + lanes);
    hn::StoreU(s2, d, partial + j + 2 * lanes);
    hn::StoreU(s3, d, partial + j + 3 * lanes);
  }
  for (; j < columns; j += lanes) {
    const int64_t count = HWY_MIN(lanes, columns - j);
    auto s0 = start, s1 = start;
    const V* p = x + j;
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2, p += 2 * stride) {
      s0 = Step::Apply(d, s0, LoadUpTo(d, p, count));
      s1 = Step::Apply(d, s1, LoadUpTo(d, p + stride, count));
    }
    if (r < rows) s0 = Step::Apply(d, s0, LoadUpTo(d, p, count));
    hn::StoreU(Step::Merge(d, s0, s1), d, partial + j);
  }
  for (int64_t k = 0; k < columns; ++k) out[k] = Step::Combine(out[k], static_cast<double>(partial[k]));
}

template <class Step, Reduce kOp>
ReduceFunctions Functions(DType dtype) {
  if constexpr (!is_reduced_by(kOp)) return {};
  if (kHasKernels<double> && dtype == DType::kDouble)
    return {ReduceRun<Step, double>, ReduceRows<Step, double>};
  if (kHasKernels<BFloat16> && dtype == DType::kBFloat16)
    return {ReduceRun<Step, float, BFloat16>, ReduceRows<Step, float, BFloat16>};
  return {ReduceRun<Step, float>, ReduceRows<Step, float>};
}

ReduceFunctions FindReduce(Reduce op, DType dtype) {
  switch (op) {
    case Reduce::kSum:
      return Functions<SumStep, Reduce::kSum>(dtype);
    case Reduce::kSumSquare:
      return Functions<SumSquareStep, Reduce::kSumSquare>(dtype);
    case Reduce::kSumAbs:
      return Functions<SumAbsStep, Reduce::kSumAbs>(dtype);
    case Reduce::kMax:
      return Functions<MaxStep, Reduce::kMax>(dtype);
    case Reduce::kMin:
      return Functions<MinStep, Reduce::kMin>(dtype);
    case Reduce::kProd:
      return Functions<ProdStep, Reduce::kProd>(dtype);
  }
  return {};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/threads.h"

namespace ortrain {
namespace {

double start_of(Reduce op) {
  switch (op) {
    case Reduce::kMax:
      return -std::numeric_limits<double>::infinity();
    case Reduce::kMin:
      return std::numeric_limits<double>::infinity();
    case Reduce::kProd:
      return 1;
    default:
      return 0;
  }
}

double combine(Reduce op, double a, double b) {
  switch (op) {
    case Reduce::kMax:
      return a >= b || a != a ? a : b;
    case Reduce::kMin:
      return a <= b || a != a ? a : b;
    case Reduce::kProd:
      return a * b;
    default:
      return a + b;
  }
}

}  // namespace

Reduction::Reduction(Reduce op, DType dtype, const Shape& shape, const std::vector<bool>& reduced)
    : op_(op), dtype_(dtype) {
  // Merge neighbouring axes that are treated alike, innermost first; axes of size 1 do not matter.
  struct Group {
    int64_t dim, stride;
    bool reduced;
  };
  std::vector<Group> groups;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1) {
      if (!groups.empty() && groups.back().reduced == reduced[i])
        groups.back().dim *= shape[i];
      else
        groups.push_back({shape[i], stride, reduced[i]});
    }
    stride *= shape[i];
  }
  if (groups.empty()) groups.push_back({1, 1, false});
  columns_ = !groups[0].reduced;
  length_ = groups[0].dim;
  for (size_t i = groups.size(); i-- > 1;)
    (groups[i].reduced ? reduced_ : kept_).push_back({groups[i].dim, groups[i].stride});
  for (const Axis& axis : kept_) outputs_ *= axis.dim;
  for (const Axis& axis : reduced_) terms_ *= axis.dim;

  const int64_t tasks = columns_ ? outputs_ * ((length_ + kColumnBlock - 1) / kColumnBlock) : outputs_;
  const int64_t worth = std::min<int64_t>(max_threads(), outputs_ * terms_ * length_ / kGrain);
  if (tasks > 0 && tasks < worth)
    parts_ = std::clamp<int64_t>((worth + tasks - 1) / tasks, 1,
                                 std::max<int64_t>(1, columns_ ? terms_ : terms_ * length_));
}

Reduction Reduction::sum_to(const Shape& from, const Shape& to, DType dtype) {
  std::vector<bool> reduced(from.size());
  const size_t offset = from.size() - to.size();
  for (size_t i = 0; i < from.size(); ++i) reduced[i] = i < offset || to[i - offset] != from[i];
  return Reduction(Reduce::kSum, dtype, from, reduced);
}

size_t Reduction::scratch_bytes() const {
  return parts_ > 1 ? static_cast<size_t>(outputs_ * (columns_ ? length_ : 1) * parts_) * sizeof(double) : 0;
}

int64_t Reduction::offset(const std::vector<Axis>& axes, int64_t index) const {
  int64_t at = 0;
  // The outermost axis takes the remainder: with one axis there is nothing to divide.
  for (size_t i = axes.size(); i-- > 1;) {
    at += index % axes[i].dim * axes[i].stride;
    index /= axes[i].dim;
  }
  return axes.empty() ? 0 : at + index * axes[0].stride;
}

template <typename V, typename T>
void Reduction::run_typed(const V* x, T* y, double* partial) const {
  const ReduceFunctions functions = ORTRAIN_DISPATCH(FindReduce)(op_, dtype_);
  const double start = start_of(op_);
  const int64_t total = outputs_ * (columns_ ? length_ : 1);
  if (!columns_) {
    // One task: a part of the elements that are reduced to one output, in contiguous runs.
    const int64_t count = terms_ * length_;
    parallel_for(outputs_ * parts_, count / parts_, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t output = task / parts_, part = task % parts_;
        const V* base = x + offset(kept_, output);
        double result = start;
        const int64_t first = count * part / parts_, stop = count * (part + 1) / parts_;
        int64_t term = count ? first / length_ : 0, inside = first - term * length_;
        for (int64_t at = first; at < stop; ++term, inside = 0) {
          const V* run = base + offset(reduced_, term);
          const int64_t last = std::min(length_, inside + stop - at);
          at += last - inside;
          for (; inside < last; inside += kRunBlock)
            result = combine(op_, result, functions.run(run + inside, std::min(kRunBlock, last - inside)));
        }
        (parts_ == 1 ? (y[output] = static_cast<T>(result)) : (partial[part * total + output] = result));
      }
    });
  } else {
    // One task: a block of columns, and a part of the rows that are reduced to it.
    const int64_t blocks = (length_ + kColumnBlock - 1) / kColumnBlock;
    const int64_t near = reduced_.empty() ? 1 : reduced_.back().dim;  // rows at one stride
    const int64_t stride = reduced_.empty() ? 0 : reduced_.back().stride;
    parallel_for(
        outputs_ * blocks * parts_, terms_ / parts_ * std::min(length_, kColumnBlock),
        [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            const int64_t part = task % parts_, block = task / parts_ % blocks,
                          output = task / parts_ / blocks;
            const int64_t first = block * kColumnBlock, columns = std::min(kColumnBlock, length_ - first);
            const V* base = x + offset(kept_, output) + first;
            double results[kColumnBlock];
            std::fill(results, results + columns, start);
            for (int64_t at = terms_ * part / parts_, stop = terms_ * (part + 1) / parts_; at < stop;) {
              const int64_t rows = std::min({near - at % near, stop - at, kRowBlock});
              functions.rows(base + offset(reduced_, at), rows, stride, columns, results);
              at += rows;
            }
            const int64_t target = output * length_ + first;
            if (parts_ == 1)
              for (int64_t k = 0; k < columns; ++k) y[target + k] = static_cast<T>(results[k]);
            else
              std::copy(results, results + columns, partial + part * total + target);
          }
        });
  }
  if (parts_ > 1)
    for (int64_t i = 0; i < total; ++i) {
      double result = partial[i];
      for (int64_t part = 1; part < parts_; ++part) result = combine(op_, result, partial[part * total + i]);
      y[i] = static_cast<T>(result);
    }
}

void Reduction::run(const void* x, void* y, void* scratch) const {
  if (kHasKernels<double> && dtype_ == DType::kDouble)
    run_typed(static_cast<const double*>(x), static_cast<double*>(y), static_cast<double*>(scratch));
  else if (kHasKernels<BFloat16> && dtype_ == DType::kBFloat16)
    run_typed(static_cast<const BFloat16*>(x), static_cast<float*>(y), static_cast<double*>(scratch));
  else
    run_typed(static_cast<const float*>(x), static_cast<float*>(y), static_cast<double*>(scratch));
}

}  // namespace ortrain
#endif
