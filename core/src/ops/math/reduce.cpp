// Reductions: ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd, ReduceL1, ReduceL2, ReduceSumSquare,
// ReduceLogSum, ReduceLogSumExp, and ReduceSumTraining.
//
// Compiled for speed: loops over integers (CMakeLists.txt).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "backend/cpu/axis_order.h"
#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/reduce/reduction.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "op/wide_integers.h"
#include "runtime/broadcast.h"
#include "runtime/convert.h"

namespace ortrain {
namespace {

// The axes that a node reduces.
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
  void (*gradient)(GradientContext&);
  std::string_view domain = "";
};

constexpr double (*kMean)(double, double) = [](double sum, double count) { return sum / count; };
constexpr double (*kRoot)(double, double) = [](double sum, double) { return std::sqrt(sum); };
constexpr double (*kLog)(double, double) = [](double sum, double) { return std::log(sum); };

Shape with_kept_axes(const Shape& shape, const std::vector<bool>& reduced) {
  Shape out = shape;
  for (size_t i = 0; i < out.size(); ++i)
    if (reduced[i]) out[i] = 1;
  return out;
}

// Models reduce integers for arithmetic on shapes, so inputs are small. The kernel is one plain loop over the
// input, with the output as the broadcast operand.
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
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;  // holds the count, as T may not
    if (mean && count)
      for (int64_t i = 0; i < outputs; ++i)
        to[i] = static_cast<T>(static_cast<Wide>(to[i]) / static_cast<Wide>(count));
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

// The order in which the input is read. If channels and points were kept, channels last would not give
// results in row-major order.
AxisOrder order_of_terms(const KernelContext& c, const std::vector<bool>& reduced) {
  if (reduced.size() < 3) return {};
  return reduced[1] || std::all_of(reduced.begin() + 2, reduced.end(), std::identity()) ? order_of_inputs(c)
                                                                                        : AxisOrder{};
}

Kernel typed_reduce_kernel(KernelContext& c, const ReduceRow& row) {
  const Axes axes = axes_of(c);
  const bool as_it_is =
      row.op != Reduce::kSumSquare && row.op != Reduce::kSumAbs && (!row.finish || row.finish == kMean);
  if (c.dtype(0) == DType::kBool && row.op != Reduce::kMax && row.op != Reduce::kMin) c.reject_dtype(0);
  if (axes.nothing || (as_it_is && c.size(0) == c.out_size(0) && c.size(0) > 0)) {
    c.alias(0, 0);
    return nullptr;
  }
  Kernel kernel;
  const auto make = [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T>) {
      constexpr bool kRounds = is_built("", "ReduceL2") || is_built("", "ReduceLogSum");
      if (kRounds && row.finish && row.finish != kMean)
        kernel = rounded_integer_kernel<T>(c, axes, row);
      else
        kernel = integer_kernel<T>(c, axes, row);
    } else {
      // Sums are float, however the terms are stored; there is no reason to store them in bfloat16.
      const bool narrow = lies_in_bf16(c, 0);
      const AxisOrder order = order_of_terms(c, axes.reduced);
      const Reduction reduction(row.op, narrow ? DType::kBFloat16 : c.dtype(0), order.sorted(c.shape(0)),
                                order.sorted(axes.reduced));
      const Slot x = c.in(0, order.layout(c.shape(0), narrow)), y = c.out(0),
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
  };
  if (!visit_types<bool>(c.dtype(0), make) && !visit_wide_numeric(c.dtype(0), make)) c.reject_dtype(0);
  return kernel;
}

// Sums and products of integers wrap around. The maximum of no values is the smallest number of the type, the
// minimum the largest.
Kernel reduce_kernel(KernelContext& c, const ReduceRow& row) {
  const bool extreme = row.op == Reduce::kMax || row.op == Reduce::kMin;
  return with_wide_integers(
      c, [&](KernelContext& wide) { return typed_reduce_kernel(wide, row); },
      extreme || row.finish ? Overflow::kSaturates : Overflow::kWraps);
}

// ln sum e^x = m + ln sum e^(x - m) with m = max x.
Kernel log_sum_exp_kernel(KernelContext& c) {
  const Axes axes = axes_of(c);
  if (axes.nothing) {
    c.alias(0, 0);
    return nullptr;
  }
  Kernel kernel;
  const bool known = visit_wide_numeric(c.dtype(0), [&](auto zero) {
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
  // Without elements there are no means, and nothing to divide by.
  const Name means = g("Size", {g.dy(0)});
  const Name count = g("Div", {g("Size", {g.x(0)}), g("Max", {means, g.scalar_like(means, 1)})});
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

// dx = dy times the product of the other elements. If an element is 0, that product is not y / x. So let p be
// the product of the elements that are not 0: the product of the others is p / x (p if x is 0), or 0 if
// another element is 0. If exactly one other element is 0, that element is still written as a factor, for the
// second derivative.
void product_gradient(GradientContext& g) {
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  const Expression is_zero = x.call("Equal", x.number(0));
  const Expression factors = is_zero.choose(x.number(1), x), own = is_zero.choose(x, x.number(0));
  Attributes attributes = g.node().attributes;
  attributes["keepdims"] = int64_t{1};
  Names inputs = {factors};
  if (g.has_x(1)) inputs.push_back(g.x(1));
  const Expression p(g, g("ReduceProd", inputs, attributes));
  const Expression others = sum_again(g, is_zero.as(x)) - is_zero.as(x);  // how many other elements are 0
  const Expression none = (others < 0.5).as(x), one = others.call("Equal", x.number(1)).as(x);
  g.set(0, restore_reduced_axes(g, dy) * p / factors * (none + one * (sum_again(g, own) - own)));
}

constexpr ReduceRow kRows[] = {
    {"ReduceSum", Reduce::kSum, nullptr, sum_gradient},
    {"ReduceSumTraining", Reduce::kSum, nullptr, sum_gradient, kMicrosoft},
    {"ReduceMean", Reduce::kSum, kMean, mean_gradient},
    {"ReduceMax", Reduce::kMax, nullptr, extreme_gradient},
    {"ReduceMin", Reduce::kMin, nullptr, extreme_gradient},
    {"ReduceProd", Reduce::kProd, nullptr, product_gradient},
    {"ReduceL1", Reduce::kSumAbs, nullptr, l1_gradient},
    {"ReduceL2", Reduce::kSumSquare, kRoot, l2_gradient},
    {"ReduceSumSquare", Reduce::kSumSquare, nullptr, sum_square_gradient},
    {"ReduceLogSum", Reduce::kSum, kLog, log_sum_gradient},
};
// Each row is a separate constant, so that a build contains only the rows of its operators.
template <size_t I>
constexpr ReduceRow kRow = [] {
  ReduceRow row = kRows[I];
  if (!kArtifactsPart.is_built) row.gradient = nullptr;
  return row;
}();
const bool registered = register_rows<std::size(kRows)>([]<size_t I>() -> Operator {
  return {.domain = kRows[I].domain,
          .type = kRows[I].type,
          .signature = kRows[I].domain.empty() ? "" : "data, axes -> reduced",
          .rules = {.shape = reduce_shape, .gradient = kRow<I>.gradient},
          .kernels = {.cpu = [](KernelContext& c) { return reduce_kernel(c, kRow<I>); }}};
});
ORTRAIN_OPERATOR({.type = "ReduceLogSumExp",
                  .rules = {.shape = reduce_shape, .gradient = log_sum_exp_gradient},
                  .kernels = {.cpu = wide_integers<log_sum_exp_kernel, Overflow::kSaturates>}});

// ReduceSumTraining is the ReduceSum of opset 13.
void sum_training_form(DecompositionContext& e) {
  e.set(0, e("ReduceSum", e.node().inputs, e.node().attributes));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "ReduceSumTraining", {cold<sum_training_form>});

}  // namespace
}  // namespace ortrain
