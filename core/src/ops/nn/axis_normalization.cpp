// Normalization over axes by a statistic of the input itself:
// - MeanVarianceNormalization: y = (x - mean) / (standard deviation + 1e-9)
// - LpNormalization: y = x / ‖x‖, the sum of magnitudes (p = 1) or the root of the sum of squares (p = 2);
//   0 where the norm is 0
#include <cmath>

#include "backend/cpu/reduce/reduction.h"
#include "op/floating_kernel.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr double kEpsilon = 1e-9;  // of MeanVarianceNormalization, as the standard defines it

// Iterates over a tensor and its statistics, which have size 1 along the normalized axes.
class Walk {
 public:
  Walk(const Shape& shape, const std::vector<bool>& reduced) : shape_(shape) {
    Shape kept = shape;
    for (size_t i = 0; i < shape.size(); ++i)
      if (reduced[i]) kept[i] = 1;
    steps_ = broadcast_strides(kept, shape);
    statistics_ = element_count(kept);
  }
  int64_t statistics() const { return statistics_; }

  // Calls f(first element, count, statistic of the first, step between the statistics) for every row.
  template <typename F>
  void rows(int64_t cost, F&& f) const {
    const size_t last = shape_.size() - 1;
    const int64_t columns = shape_[last];
    parallel_for(element_count(shape_, 0, last), columns * cost, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t at = 0, rest = row;
        for (size_t i = last; i-- > 0;) {
          at += rest % shape_[i] * steps_[i];
          rest /= shape_[i];
        }
        f(row * columns, columns, at, steps_[last]);
      }
    });
  }

 private:
  Shape shape_;
  std::vector<int64_t> steps_;
  int64_t statistics_ = 1;
};

std::vector<bool> marked(const NodeContext& c, std::vector<int64_t> axes) {
  std::vector<bool> reduced(c.shape(0).size(), false);
  for (const int64_t axis : normalize_axes(c, std::move(axes), c.rank(0)))
    reduced[static_cast<size_t>(axis)] = true;
  return reduced;
}

// A reduction in the opset's form, over constant axes that are kept with size 1. ReduceSum takes its axes as
// an input in earlier opsets than the other reductions do: see NodeWriter::reduce_sum.
Expression reduce(GradientContext& g, const char* type, const Expression& x,
                  const std::vector<int64_t>& axes) {
  if (g.opset() < since::kReductionAxesAsInput) return x.call(type, {{"axes", axes}});
  return {g, g(type, {x, g.int64s(axes)})};
}

// -----------------------------------------------------------------------------------------------------------

std::vector<int64_t> mean_variance_axes(const Node& node) { return node.ints_or("axes", {0, 2, 3}); }

void mean_variance_shape(ShapeContext& c) {
  c.expect(c.rank(0) >= 1, "its input is a scalar and has no axis");
  marked(c, mean_variance_axes(c.node()));
  c.output(0, c.dtype(0), c.shape(0));
}

template <typename T>
Kernel mean_variance(KernelContext& c) {
  const std::vector<bool> reduced = marked(c, mean_variance_axes(c.node()));
  const Walk walk(c.shape(0), reduced);
  const Reduction sum(Reduce::kSum, c.dtype(0), c.shape(0), reduced);
  const Reduction squares(Reduce::kSumSquare, c.dtype(0), c.shape(0), reduced);
  const Slot x_slot = c.in(0), y_slot = c.out(0);
  const Slot statistic_slot = c.scratch(static_cast<size_t>(walk.statistics()) * sizeof(T));
  const Slot scratch = c.scratch(std::max(sum.scratch_bytes(), squares.scratch_bytes()));
  if (c.size(0) == 0) return nothing_to_do();
  const double share = static_cast<double>(walk.statistics()) / static_cast<double>(c.size(0));
  return [=](const Frame& f) {
    const T* x = f.at<const T>(x_slot);
    T *y = f.at<T>(y_slot), *statistic = f.at<T>(statistic_slot);
    sum.run(x, statistic, f.at<void>(scratch));
    walk.rows(1, [&](int64_t from, int64_t n, int64_t at, int64_t step) {
      for (int64_t i = 0; i < n; ++i)
        y[from + i] = x[from + i] - static_cast<T>(static_cast<double>(statistic[at + i * step]) * share);
    });
    squares.run(y, statistic, f.at<void>(scratch));
    for (int64_t i = 0; i < walk.statistics(); ++i)
      statistic[i] = static_cast<T>(1 / (std::sqrt(static_cast<double>(statistic[i]) * share) + kEpsilon));
    walk.rows(1, [&](int64_t from, int64_t n, int64_t at, int64_t step) {
      for (int64_t i = 0; i < n; ++i) y[from + i] *= statistic[at + i * step];
    });
  };
}

Kernel mean_variance_kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return mean_variance<decltype(zero)>(c); });
}

// With d = x - mean, σ = sqrt(mean(d²)) and r = 1 / (σ + 1e-9):
//     dx = r (dy - mean(dy)) - r² d mean(dy d) / σ
void mean_variance_gradient(GradientContext& g) {
  const std::vector<int64_t> axes = mean_variance_axes(g.node());
  const Expression x(g, g.x(0)), dy(g, g.dy(0));
  const auto mean = [&](const Expression& v) { return reduce(g, "ReduceMean", v, axes); };
  const Expression d = x - mean(x), deviation = mean(d * d).call("Sqrt");
  const Expression r = (deviation + kEpsilon).call("Reciprocal");
  // If all elements are equal, d is 0, and so is its term.
  const Expression product = mean(dy * d) / deviation.call("Max", x.number(1e-30));
  g.set(0, r * (dy - mean(dy)) - r * r * product * d);
}

ORTRAIN_OPERATOR({.type = "MeanVarianceNormalization",
                  .rules = {.shape = mean_variance_shape, .gradient = mean_variance_gradient},
                  .kernels = {.cpu = mean_variance_kernel}});

// -----------------------------------------------------------------------------------------------------------

int64_t norm_of(const NodeContext& c) {
  const int64_t p = c.node().int_or("p", 2);
  c.expect(p == 1 || p == 2, "attribute p must be 1 or 2, found ", p);
  return p;
}

void lp_shape(ShapeContext& c) {
  c.expect(c.rank(0) >= 1, "its input is a scalar and has no axis");
  marked(c, {c.node().int_or("axis", -1)});
  norm_of(c);
  c.output(0, c.dtype(0), c.shape(0));
}

template <typename T>
Kernel lp(KernelContext& c) {
  const std::vector<bool> reduced = marked(c, {c.node().int_or("axis", -1)});
  const bool root = norm_of(c) == 2;
  const Walk walk(c.shape(0), reduced);
  const Reduction sum(root ? Reduce::kSumSquare : Reduce::kSumAbs, c.dtype(0), c.shape(0), reduced);
  const Slot x_slot = c.in(0), y_slot = c.out_inplace(0, {0});
  const Slot norm_slot = c.scratch(static_cast<size_t>(walk.statistics()) * sizeof(T));
  const Slot scratch = c.scratch(sum.scratch_bytes());
  if (c.size(0) == 0) return nothing_to_do();
  return [=](const Frame& f) {
    const T* x = f.at<const T>(x_slot);
    T *y = f.at<T>(y_slot), *norm = f.at<T>(norm_slot);
    sum.run(x, norm, f.at<void>(scratch));
    if (root)
      for (int64_t i = 0; i < walk.statistics(); ++i) norm[i] = std::sqrt(norm[i]);
    walk.rows(4, [&](int64_t from, int64_t n, int64_t at, int64_t step) {
      for (int64_t i = 0; i < n; ++i)
        y[from + i] = norm[at + i * step] == T(0) ? T(0) : x[from + i] / norm[at + i * step];
    });
  };
}

Kernel lp_kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return lp<decltype(zero)>(c); });
}

// dx = (dy - ∂‖x‖/∂x Σ(dy y)) / ‖x‖, where the norm's derivative is sign(x) or y; 0 where the norm is 0.
void lp_gradient(GradientContext& g) {
  const std::vector<int64_t> axes = {g.node().int_or("axis", -1)};
  const bool root = g.node().int_or("p", 2) == 2;
  const Expression x(g, g.x(0)), y(g, g.y(0)), dy(g, g.dy(0));
  const Expression norm = reduce(g, root ? "ReduceL2" : "ReduceL1", x, axes);
  const Expression factor =
      (norm > 0).choose(norm.call("Max", x.number(1e-37)).call("Reciprocal"), x.number(0));
  const Expression direction = root ? y : x.call("Sign");
  const Expression sum(g, g.reduce_sum(dy * y, axes, true));
  g.set(0, (dy - direction * sum) * factor);
}

ORTRAIN_OPERATOR({.type = "LpNormalization",
                  .rules = {.shape = lp_shape, .gradient = lp_gradient},
                  .kernels = {.cpu = lp_kernel}});

}  // namespace
}  // namespace ortrain
