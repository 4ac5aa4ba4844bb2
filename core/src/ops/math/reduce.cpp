// Reductions: ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, ReduceSumSquare,
// ReduceLogSum, ReduceLogSumExp, and ReduceSumTraining.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/math/reduce.cpp"
// The per-target passes over this file come first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"
#include "ops/math/reduce.h"

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

// What lanes without an input element contain, so that they do not count.
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

template <class Step>
ReduceFunctions Functions(DType dtype) {
  switch (dtype) {
    case DType::kDouble:
      return {ReduceRun<Step, double>, ReduceRows<Step, double>};
    case DType::kBFloat16:
      return {ReduceRun<Step, float, BFloat16>, ReduceRows<Step, float, BFloat16>};
    default:
      return {ReduceRun<Step, float>, ReduceRows<Step, float>};
  }
}

ReduceFunctions FindReduce(Reduce op, DType dtype) {
  switch (op) {
    case Reduce::kSum:
      return Functions<SumStep>(dtype);
    case Reduce::kSumSquare:
      return Functions<SumSquareStep>(dtype);
    case Reduce::kSumAbs:
      return Functions<SumAbsStep>(dtype);
    case Reduce::kMax:
      return Functions<MaxStep>(dtype);
    case Reduce::kMin:
      return Functions<MinStep>(dtype);
    case Reduce::kProd:
      return Functions<ProdStep>(dtype);
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

#include "backend/cpu/bf16_storage.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "runtime/broadcast.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

HWY_EXPORT(FindReduce);

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
    int64_t extent, stride;
    bool reduced;
  };
  std::vector<Group> groups;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1) {
      if (!groups.empty() && groups.back().reduced == reduced[i])
        groups.back().extent *= shape[i];
      else
        groups.push_back({shape[i], stride, reduced[i]});
    }
    stride *= shape[i];
  }
  if (groups.empty()) groups.push_back({1, 1, false});
  columns_ = !groups[0].reduced;
  length_ = groups[0].extent;
  for (size_t i = groups.size(); i-- > 1;)
    (groups[i].reduced ? reduced_ : kept_).push_back({groups[i].extent, groups[i].stride});
  for (const Axis& axis : kept_) outputs_ *= axis.extent;
  for (const Axis& axis : reduced_) terms_ *= axis.extent;

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
    at += index % axes[i].extent * axes[i].stride;
    index /= axes[i].extent;
  }
  return axes.empty() ? 0 : at + index * axes[0].stride;
}

template <typename V, typename T>
void Reduction::run_typed(const V* x, T* y, double* partial) const {
  const ReduceFunctions functions = HWY_DYNAMIC_DISPATCH(FindReduce)(op_, dtype_);
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
    const int64_t near = reduced_.empty() ? 1 : reduced_.back().extent;  // rows at one stride
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
  if (dtype_ == DType::kDouble)
    run_typed(static_cast<const double*>(x), static_cast<double*>(y), static_cast<double*>(scratch));
  else if (dtype_ == DType::kBFloat16)
    run_typed(static_cast<const BFloat16*>(x), static_cast<float*>(y), static_cast<double*>(scratch));
  else
    run_typed(static_cast<const float*>(x), static_cast<float*>(y), static_cast<double*>(scratch));
}

namespace {

// What a node reduces.
struct Axes {
  std::vector<bool> reduced;
  bool nothing = false;  // no axes and noop_with_empty_axes: the output is the input
};

// Axes are an attribute or, in newer versions, input 1; none means all axes, or no axis if the node says so.
Axes axes_of(const NodeContext& c) {
  std::vector<int64_t> axes = c.node().ints_or("axes", {});
  if (c.has_input(1)) axes = c.need_constant(1).to_int64();
  const int64_t rank = c.rank(0);
  Axes out;
  out.nothing = axes.empty() && c.node().int_or("noop_with_empty_axes", 0) != 0;
  out.reduced.assign(static_cast<size_t>(rank), axes.empty() && !out.nothing);
  for (const int64_t axis : axes)
    out.reduced[static_cast<size_t>(normalize_axis(axis, rank, c.node().label()))] = true;
  return out;
}

void reduce_shape(ShapeContext& c) {
  const Axes axes = axes_of(c);
  const bool keep = c.node().int_or("keepdims", 1) != 0;
  Shape shape;
  for (size_t i = 0; i < c.shape(0).size(); ++i)
    if (!axes.reduced[i])
      shape.push_back(c.shape(0)[i]);
    else if (keep)
      shape.push_back(1);
  c.output(0, c.dtype(0), shape);
}

// y = finish(op over the axes of x, the number of values in one result).
struct ReduceRow {
  std::string_view type;
  Reduce op;
  double (*finish)(double result, double count);  // null: nothing to do
};

constexpr double (*kMean)(double, double) = [](double sum, double count) { return sum / count; };
constexpr double (*kRoot)(double, double) = [](double sum, double) { return std::sqrt(sum); };
constexpr double (*kLog)(double, double) = [](double sum, double) { return std::log(sum); };

const ReduceRow kRows[] = {
    {"ReduceSum", Reduce::kSum, nullptr},
    {"ReduceSumTraining", Reduce::kSum, nullptr},
    {"ReduceMean", Reduce::kSum, kMean},
    {"ReduceMax", Reduce::kMax, nullptr},
    {"ReduceMin", Reduce::kMin, nullptr},
    {"ReduceProd", Reduce::kProd, nullptr},
    {"ReduceL1", Reduce::kSumAbs, nullptr},
    {"ReduceL2", Reduce::kSumSquare, kRoot},
    {"ReduceSumSquare", Reduce::kSumSquare, nullptr},
    {"ReduceLogSum", Reduce::kSum, kLog},
};

const ReduceRow& row_of(const Node& node) {
  return *std::find_if(std::begin(kRows), std::end(kRows),
                       [&](const ReduceRow& r) { return r.type == node.op_type; });
}

Shape with_kept_axes(const Shape& shape, const std::vector<bool>& reduced) {
  Shape out = shape;
  for (size_t i = 0; i < out.size(); ++i)
    if (reduced[i]) out[i] = 1;
  return out;
}

// Integers are shape arithmetic, so inputs are small: one plain loop over the input, with the output as the
// broadcast operand.
template <typename T>
Kernel integer_kernel(KernelContext& c, const Axes& axes, const ReduceRow& row) {
  const Slot x = c.in(0), y = c.out(0);
  const Broadcast<1> shape({with_kept_axes(c.shape(0), axes.reduced)}, c.shape(0));
  const int64_t outputs = c.out_size(0);
  const int64_t count = outputs ? c.size(0) / outputs : 0;
  const Reduce op = row.op;
  const bool mean = row.finish == kMean;
  return [=](const Frame& f) {
    const T* from = f.at<T>(x);
    T* to = f.at<T>(y);
    const T start = op == Reduce::kMax   ? std::numeric_limits<T>::lowest()
                    : op == Reduce::kMin ? std::numeric_limits<T>::max()
                                         : static_cast<T>(op == Reduce::kProd);
    std::fill(to, to + outputs, start);
    shape.walk(0, shape.size(), [&](int64_t at, const std::array<int64_t, 1>& out, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        T& r = to[out[0] + i * shape.step(0)];
        const uint64_t wide = static_cast<uint64_t>(from[at + i]), sum = static_cast<uint64_t>(r);
        switch (op) {
          case Reduce::kMax:
            r = std::max(r, from[at + i]);
            break;
          case Reduce::kMin:
            r = std::min(r, from[at + i]);
            break;
          case Reduce::kProd:
            r = static_cast<T>(sum * wide);
            break;
          case Reduce::kSum:
            r = static_cast<T>(sum + wide);
            break;
          case Reduce::kSumSquare:
            r = static_cast<T>(sum + wide * wide);
            break;
          case Reduce::kSumAbs:
            r = static_cast<T>(sum +
                               (std::is_signed_v<T> && static_cast<int64_t>(wide) < 0 ? 0 - wide : wide));
            break;
        }
      }
    });
    if (mean && count)
      for (int64_t i = 0; i < outputs; ++i) to[i] = static_cast<T>(to[i] / static_cast<T>(count));
  };
}

// Integer reductions that are a function of a sum (ReduceL2 and similar) are computed in double.
template <typename T>
Kernel rounded_integer_kernel(KernelContext& c, const Axes& axes, const ReduceRow& row) {
  const Slot x = c.in(0), y = c.out(0);
  const int64_t n = c.size(0), outputs = c.out_size(0);
  const Reduction reduction(row.op, DType::kDouble, c.shape(0), axes.reduced);
  const Slot numbers = c.scratch(static_cast<size_t>(n) * sizeof(double)),
             sums = c.scratch(static_cast<size_t>(outputs) * sizeof(double)),
             scratch = c.scratch(reduction.scratch_bytes());
  const double count = outputs ? static_cast<double>(n / outputs) : 0;
  const auto finish = row.finish;
  return [=](const Frame& f) {
    std::copy_n(f.at<T>(x), n, f.at<double>(numbers));
    reduction.run(f.at<std::byte>(numbers), f.at<double>(sums), f.at<std::byte>(scratch));
    std::transform(f.at<double>(sums), f.at<double>(sums) + outputs, f.at<T>(y),
                   [=](double sum) { return cast_number<T>(finish(sum, count)); });
  };
}

Kernel reduce_kernel(KernelContext& c) {
  const Axes axes = axes_of(c);
  const ReduceRow& row = row_of(c.node());
  const bool as_it_is =
      row.op != Reduce::kSumSquare && row.op != Reduce::kSumAbs && (!row.finish || row.finish == kMean);
  if (c.dtype(0) == DType::kBool && row.op != Reduce::kMax && row.op != Reduce::kMin) c.reject_dtype(0);
  if (axes.nothing || (as_it_is && c.size(0) == c.out_size(0) && c.size(0) > 0)) {
    c.alias(0, 0);
    return nullptr;
  }
  Kernel kernel;
  const bool known = visit_numeric_or_bool(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      kernel = row.finish && row.finish != kMean ? rounded_integer_kernel<T>(c, axes, row)
                                                 : integer_kernel<T>(c, axes, row);
    } else {
      // Sums are float, however the terms are stored; there is no reason to store them in bfloat16.
      const bool narrow = lies_in_bf16(c, 0);
      const Reduction reduction(row.op, narrow ? DType::kBFloat16 : c.dtype(0), c.shape(0), axes.reduced);
      const Slot x = c.in(0, narrow ? bf16_row_major(c.shape(0)) : nullptr), y = c.out(0),
                 scratch = c.scratch(reduction.scratch_bytes());
      const int64_t outputs = c.out_size(0);
      const double count = outputs ? static_cast<double>(c.size(0) / outputs) : 0;
      const auto finish = row.finish;
      kernel = [=](const Frame& f) {
        T* to = f.at<T>(y);
        reduction.run(f.at<std::byte>(x), to, f.at<std::byte>(scratch));
        if (finish)
          for (int64_t i = 0; i < outputs; ++i)
            to[i] = static_cast<T>(finish(static_cast<double>(to[i]), count));
      };
    }
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// ln sum e^x = m + ln sum e^(x - m) with m = max x.
Kernel log_sum_exp_kernel(KernelContext& c) {
  const Axes axes = axes_of(c);
  if (axes.nothing) {
    c.alias(0, 0);
    return nullptr;
  }
  Kernel kernel;
  const bool known = visit_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const size_t bytes = static_cast<size_t>(c.out_size(0)) * sizeof(double);
    const Slot x = c.in(0), y = c.out(0), sums = c.scratch(bytes), maxima = c.scratch(bytes);
    const Broadcast<1> shape({with_kept_axes(c.shape(0), axes.reduced)}, c.shape(0));
    const int64_t outputs = c.out_size(0);
    kernel = [=](const Frame& f) {
      const T* from = f.at<T>(x);
      T* to = f.at<T>(y);
      double *sum = f.at<double>(sums), *highest = f.at<double>(maxima);
      std::fill(highest, highest + outputs, -std::numeric_limits<double>::infinity());
      std::fill(sum, sum + outputs, 0.0);
      const auto each = [&](auto step) {
        shape.walk(0, shape.size(), [&](int64_t at, const std::array<int64_t, 1>& out, int64_t n) {
          for (int64_t i = 0; i < n; ++i) step(out[0] + i * shape.step(0), static_cast<double>(from[at + i]));
        });
      };
      each([&](int64_t o, double v) { highest[o] = std::max(highest[o], v); });
      each([&](int64_t o, double v) { sum[o] += std::exp(std::isinf(highest[o]) ? v : v - highest[o]); });
      for (int64_t o = 0; o < outputs; ++o)
        to[o] = cast_number<T>((std::isinf(highest[o]) ? 0.0 : highest[o]) + std::log(sum[o]));
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// A value of the output's shape with the reduced axes restored as size 1, so that it broadcasts to the input.
Expression restore_reduced_axes(GradientContext& g, const Expression& value) {
  const std::vector<int64_t> axes = g.node().ints_or("axes", {});
  // Without axes everything was reduced to a scalar, which broadcasts unchanged (or nothing was reduced).
  if (g.node().int_or("keepdims", 1) != 0 || (axes.empty() && !g.has_x(1))) return value;
  if (!g.has_x(1)) return {g, g.unsqueeze(value, axes)};
  const Tensor* known = g.constant_value(g.x(1));
  if (!known) return {g, g("Unsqueeze", {value, g.x(1)})};
  return known->size() ? Expression(g, g.unsqueeze(value, known->to_int64())) : value;
}

Expression broadcast_to_input(GradientContext& g, const Expression& value) {
  return {g, g("Expand", {restore_reduced_axes(g, value), g("Shape", {g.x(0)})})};
}

// The sum of another value of the input's shape over the node's axes, which are kept with size 1.
Expression sum_again(GradientContext& g, const Expression& value) {
  const Attributes attributes = {{"keepdims", int64_t{1}},
                                 {"noop_with_empty_axes", g.node().int_or("noop_with_empty_axes", 0)}};
  if (g.has_x(1)) return {g, g("ReduceSum", {value, g.x(1)}, attributes)};
  const std::vector<int64_t> axes = g.node().ints_or("axes", {});
  if (axes.empty()) return {g, g("ReduceSum", {value}, {{"keepdims", int64_t{1}}})};
  return {g, g.reduce_sum(value, axes, true)};
}

// dx = dy for every element.
void sum_gradient(GradientContext& g) { g.set(0, broadcast_to_input(g, {g, g.dy(0)})); }

// dx = dy / (number of values per result).
void mean_gradient(GradientContext& g) {
  const std::string count = g("Div", {g("Size", {g.x(0)}), g("Size", {g.dy(0)})});
  g.set(0,
        broadcast_to_input(g, {g, g("Scale", {g.dy(0), count}, {{"scale_down", int64_t{1}}}, kMicrosoft)}));
}

// dx = dy where x is the extreme, split evenly if several are equal.
void extreme_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), y(g, g.y(0)), dy(g, g.dy(0));
  const Expression hit = x.call("Equal", restore_reduced_axes(g, y)).as(x);
  g.set(0, hit * (restore_reduced_axes(g, dy) / sum_again(g, hit)));
}

void l1_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  g.set(0, restore_reduced_axes(g, dy) * x.call("Sign"));
}

// dx = dy x / y, and 0 where y is.
void l2_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), y(g, g.y(0)), dy(g, g.dy(0));
  const Expression zero = y.number(0);
  g.set(0, x * restore_reduced_axes(g, y.call("Equal", zero).choose(zero, dy / y)));
}

void sum_square_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  g.set(0, x * restore_reduced_axes(g, dy * 2.0));
}

// dx = dy / sum x = dy e^-y
void log_sum_gradient(GradientContext& g) {
  const Expression y(g, g.y(0)), dy(g, g.dy(0));
  g.set(0, broadcast_to_input(g, dy / y.call("Exp")));
}

// dx = dy e^(x - y)
void log_sum_exp_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), y(g, g.y(0)), dy(g, g.dy(0));
  g.set(0, restore_reduced_axes(g, dy) * (x - restore_reduced_axes(g, y)).call("Exp"));
}

// dx = dy times the product of the other elements, which is not a quotient if one of them is 0: p is the
// product of those that are not 0, and p / x, with 1 for a 0, counts if no other is 0. A single 0 is still
// written as a factor, for the second derivative.
void product_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  const Expression is_zero = x.call("Equal", x.number(0));
  const Expression factors = is_zero.choose(x.number(1), x), own = is_zero.choose(x, x.number(0));
  Attributes attributes = g.node().attributes;
  attributes["keepdims"] = int64_t{1};
  std::vector<std::string> inputs = {factors};
  if (g.has_x(1)) inputs.push_back(g.x(1));
  const Expression p(g, g("ReduceProd", inputs, attributes));
  const Expression others = sum_again(g, is_zero.as(x)) - is_zero.as(x);  // that are 0
  const Expression none = (others < 0.5).as(x), one = others.call("Equal", x.number(1)).as(x);
  g.set(0, restore_reduced_axes(g, dy) * p / factors * (none + one * (sum_again(g, own) - own)));
}

#define ORTRAIN_REDUCTION(name, rule) \
  ORTRAIN_OPERATOR(                   \
      {.type = name, .rules = {.shape = reduce_shape, .gradient = rule}, .kernels = {.cpu = reduce_kernel}})
ORTRAIN_REDUCTION("ReduceSum", sum_gradient);
ORTRAIN_REDUCTION("ReduceMean", mean_gradient);
ORTRAIN_REDUCTION("ReduceMax", extreme_gradient);
ORTRAIN_REDUCTION("ReduceMin", extreme_gradient);
ORTRAIN_REDUCTION("ReduceProd", product_gradient);
ORTRAIN_REDUCTION("ReduceL1", l1_gradient);
ORTRAIN_REDUCTION("ReduceL2", l2_gradient);
ORTRAIN_REDUCTION("ReduceSumSquare", sum_square_gradient);
ORTRAIN_REDUCTION("ReduceLogSum", log_sum_gradient);
ORTRAIN_OPERATOR({.type = "ReduceLogSumExp",
                  .rules = {.shape = reduce_shape, .gradient = log_sum_exp_gradient},
                  .kernels = {.cpu = log_sum_exp_kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ReduceSumTraining",
                  .rules = {.shape = reduce_shape, .gradient = sum_gradient},
                  .kernels = {.cpu = reduce_kernel}});

}  // namespace
}  // namespace ortrain
#endif
