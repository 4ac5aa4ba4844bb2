// InstanceNormalization, GroupNormalization and their gradient operator GroupNormalizationGrad
// (com.microsoft).
//
// In each image, h = (x - mean) s with s = 1 / sqrt(var + epsilon) over all elements of a group of channels,
// y = scale h + bias. Instances are groups of one channel. Scale and bias have one value per channel, or, as
// in version 18 of GroupNormalization, one per group. D. Ulyanov et al., "Instance normalization", 2016; Y.
// Wu, K. He, "Group normalization", 2018.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/group_normalization.cpp"
// The per-target passes over this file come first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"

#ifndef ORTRAIN_GROUP_NORMALIZATION_FUNCTIONS
#define ORTRAIN_GROUP_NORMALIZATION_FUNCTIONS
namespace ortrain {
template <typename T>
struct GroupNormalizationFunctions {
  // Mean and biased variance of n numbers.
  void (*moments)(const T* x, int64_t n, double* mean, double* variance);
  // y = factor (x - mean) + shift. y may be x.
  void (*scale)(const T* x, T* y, int64_t n, T mean, T factor, T shift);
  // Σ dy and Σ dy (x - mean).
  void (*products)(const T* dy, const T* x, int64_t n, T mean, double* sum, double* product);
  // dx = a dy + b (x - mean) + c. dx may be dy.
  void (*combine)(const T* dy, const T* x, T* dx, int64_t n, T mean, T a, T b, T c);
};
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

template <typename T>
void Moments(const T* x, int64_t n, double* mean, double* variance) {
  const hn::ScalableTag<T> d;
  *mean = SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR { return LoadUpTo(d, x + i, count); }) /
          static_cast<double>(n);
  const T center = static_cast<T>(*mean);
  const auto m = hn::Set(d, center);
  *variance = SumOver<T>(n,
                         [&](int64_t i, int64_t count) HWY_ATTR {
                           const auto v = hn::Sub(LoadUpTo(d, x + i, count, center), m);
                           return hn::Mul(v, v);
                         }) /
              static_cast<double>(n);
}

template <typename T>
void Scale(const T* x, T* y, int64_t n, T mean, T factor, T shift) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), f = hn::Set(d, factor), s = hn::Set(d, shift);
  ForVectors<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    StoreUpTo(hn::MulAdd(hn::Sub(LoadUpTo(d, x + i, count), m), f, s), d, y + i, count);
  });
}

template <typename T>
void Products(const T* dy, const T* x, int64_t n, T mean, double* sum, double* product) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean);
  *sum = SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR { return LoadUpTo(d, dy + i, count); });
  *product = SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    return hn::Mul(LoadUpTo(d, dy + i, count), hn::Sub(LoadUpTo(d, x + i, count), m));
  });
}

template <typename T>
void Combine(const T* dy, const T* x, T* dx, int64_t n, T mean, T a, T b, T c) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), va = hn::Set(d, a), vb = hn::Set(d, b), vc = hn::Set(d, c);
  ForVectors<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto h = hn::MulAdd(hn::Sub(LoadUpTo(d, x + i, count), m), vb, vc);
    StoreUpTo(hn::MulAdd(LoadUpTo(d, dy + i, count), va, h), d, dx + i, count);
  });
}

template <typename T>
GroupNormalizationFunctions<T> Find() {
  return {Moments<T>, Scale<T>, Products<T>, Combine<T>};
}

GroupNormalizationFunctions<float> FindFloat() { return Find<float>(); }
GroupNormalizationFunctions<double> FindDouble() { return Find<double>(); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cmath>
#include <type_traits>

#include "op/decomposition.h"
#include "op/floating_kernel.h"
#include "op/gradient_expression.h"
#include "ops/common/decomposed.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

HWY_EXPORT(FindFloat);
HWY_EXPORT(FindDouble);

template <typename T>
GroupNormalizationFunctions<T> find() {
  if constexpr (std::is_same_v<T, float>)
    return HWY_DYNAMIC_DISPATCH(FindFloat)();
  else
    return HWY_DYNAMIC_DISPATCH(FindDouble)();
}

constexpr int64_t kCost = 4;  // of one element, in additions

// X as [batch, groups, channels of a group, points]; scale at `scale_at`.
struct Groups {
  int64_t batch, groups, channels, points;
  bool by_group;  // scale and bias have one value per group
  double epsilon;

  Groups(const NodeContext& c, size_t x_at, size_t scale_at) {
    const Shape& x = c.shape(x_at);
    c.expect(x.size() >= 2, "its input X must have shape [N, C, ...], found ", to_string(x));
    batch = x[0];
    points = element_count(x, 2, x.size());
    groups = x[1];
    if (c.node().has("num_groups")) {
      groups = c.node().int_or("num_groups", 1);
      c.expect(groups >= 1 && x[1] % groups == 0, "attribute num_groups is ", groups, ", but X ",
               to_string(x), " has ", x[1], " channels, which is not divisible by num_groups");
    } else {
      c.expect(!c.node().op_type.starts_with("Group") || !c.node().domain.empty(),
               "attribute num_groups is required but missing");
    }
    channels = groups > 0 ? x[1] / groups : 0;
    const Shape& scale = c.shape(scale_at);
    by_group = scale != Shape{x[1]};
    c.expect(!by_group || scale == Shape{groups}, "scale must have shape [", x[1], "]",
             groups == x[1] ? "" : concat(" or [", groups, "]"), ", found ", to_string(scale));
    c.expect(c.dtype(scale_at) == c.dtype(x_at), "X and scale must have the same type, found ",
             to_string(c.dtype(x_at)), " and ", to_string(c.dtype(scale_at)));
    epsilon = c.node().float_or("epsilon", 1e-5f);
  }
  int64_t group_size() const { return channels * points; }
  int64_t parameter(int64_t group, int64_t channel) const {
    return by_group ? group : group * channels + channel;
  }
};

void shape(ShapeContext& c) {
  Groups(c, 0, 1);
  c.expect(c.shape(2) == c.shape(1) && c.dtype(2) == c.dtype(1), "the bias must match scale, ",
           to_string(c.dtype(1)), to_string(c.shape(1)), ", found ", to_string(c.dtype(2)),
           to_string(c.shape(2)));
  c.output(0, c.dtype(0), c.shape(0));
}

template <typename T>
Kernel forward(KernelContext& c) {
  const Groups g(c, 0, 1);
  const auto functions = find<T>();
  const Slot x_slot = c.in(0), scale_slot = c.in(1), bias_slot = c.in(2), y_slot = c.out_inplace(0, {0});
  const int64_t n = g.group_size();
  if (n == 0) return [](const Frame&) {};
  return [=](const Frame& f) {
    const T *x = f.at<const T>(x_slot), *scale = f.at<const T>(scale_slot), *bias = f.at<const T>(bias_slot);
    T* y = f.at<T>(y_slot);
    parallel_for(g.batch * g.groups, n * kCost, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        double mean, variance;
        functions.moments(x + at * n, n, &mean, &variance);
        const double s = 1 / std::sqrt(variance + g.epsilon);
        for (int64_t k = 0; k < g.channels; ++k) {
          const int64_t p = g.parameter(at % g.groups, k), from = at * n + k * g.points;
          functions.scale(x + from, y + from, g.points, static_cast<T>(mean),
                          static_cast<T>(s * static_cast<double>(scale[p])), bias[p]);
        }
      }
    });
  };
}

Kernel kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return forward<decltype(zero)>(c); });
}

DType grad_types(const ElementTypes& types, size_t o) { return types[o == 0 ? 1 : 2]; }

// GroupNormalizationGrad(dY, X, scale) → dX, dscale, dbias. Without num_groups every channel is a group.
void grad_shape(ShapeContext& c) {
  c.expect(c.dtype(0) == c.dtype(1) && c.shape(0) == c.shape(1),
           "dY must have the type and shape of X, found ", to_string(c.dtype(0)), to_string(c.shape(0)),
           " and ", to_string(c.dtype(1)), to_string(c.shape(1)));
  Groups(c, 1, 2);
  c.output(0, c.dtype(1), c.shape(1));
  for (size_t o = 1; o < 3; ++o) c.output(o, c.dtype(2), c.shape(2));
}

// With g = dy scale: dx = s (g - mean(g) - h mean(g h)).
template <typename T>
Kernel backward(KernelContext& c) {
  const Groups g(c, 1, 2);
  const auto functions = find<T>();
  const Slot dy_slot = c.in(0), x_slot = c.in(1), scale_slot = c.in(2);
  const Slot dx_slot = c.has_output(0) ? c.out_inplace(0, {0}) : Slot{};
  const Slot dscale = c.has_output(1) ? c.out(1) : Slot{}, dbias = c.has_output(2) ? c.out(2) : Slot{};
  const int64_t n = g.group_size(), planes = g.batch * g.groups * g.channels;
  // Of every channel of every image: Σ dy, then Σ dy h.
  const Slot sums_slot = c.scratch(static_cast<size_t>(2 * planes) * sizeof(double));
  const int64_t parameters = c.size(2);
  return [=](const Frame& f) {
    const T *dy = f.at<const T>(dy_slot), *x = f.at<const T>(x_slot), *scale = f.at<const T>(scale_slot);
    T* dx = f.at_or_null<T>(dx_slot);
    double *sums = f.at<double>(sums_slot), *products = sums + planes;
    if (g.points == 0) std::fill(sums, sums + 2 * planes, 0.0);
    parallel_for(n == 0 ? 0 : g.batch * g.groups, n * 2 * kCost, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        double mean, variance, sum_g = 0, sum_gh = 0;
        functions.moments(x + at * n, n, &mean, &variance);
        const double s = 1 / std::sqrt(variance + g.epsilon);
        const T center = static_cast<T>(mean);
        for (int64_t k = 0; k < g.channels; ++k) {
          const int64_t plane = at * g.channels + k;
          functions.products(dy + plane * g.points, x + plane * g.points, g.points, center, sums + plane,
                             products + plane);
          products[plane] *= s;
          const double factor = static_cast<double>(scale[g.parameter(at % g.groups, k)]);
          sum_g += factor * sums[plane];
          sum_gh += factor * products[plane];
        }
        if (!dx) continue;
        const double share = 1 / static_cast<double>(n);
        for (int64_t k = 0; k < g.channels; ++k) {
          const int64_t from = (at * g.channels + k) * g.points;
          const double factor = static_cast<double>(scale[g.parameter(at % g.groups, k)]);
          functions.combine(dy + from, x + from, dx + from, g.points, center, static_cast<T>(s * factor),
                            static_cast<T>(-s * s * sum_gh * share), static_cast<T>(-s * sum_g * share));
        }
      }
    });
    for (const auto& [slot, from] : {std::pair(dscale, products), std::pair(dbias, sums)}) {
      if (!slot.defined()) continue;
      T* to = f.at<T>(slot);
      const int64_t each = g.by_group ? g.channels : 1;
      for (int64_t p = 0; p < parameters; ++p) {
        double sum = 0;
        for (int64_t image = 0; image < g.batch; ++image)
          for (int64_t k = 0; k < each; ++k) sum += from[(image * parameters + p) * each + k];
        to[p] = static_cast<T>(sum);
      }
    }
  };
}

Kernel grad_kernel(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return backward<decltype(zero)>(c); });
}

void gradient(GradientContext& g) {
  Attributes attributes = {{"epsilon", g.node().float_or("epsilon", 1e-5f)}};
  if (g.node().has("num_groups")) attributes["num_groups"] = g.node().int_or("num_groups", 1);
  const auto gradients =
      g.emit("GroupNormalizationGrad", {g.dy(0), g.x(0), g.x(1)}, 3, attributes, kMicrosoft);
  for (size_t i = 0; i < 3; ++i)
    if (g.needs(i)) g.set(i, gradients[i]);
}

// The same formula, over X as [batch, groups, channels of a group, points...].
void decompose_grad(DecompositionContext& e) {
  const int64_t rank = need_rank(e, e.x(1));
  const int64_t channels = rank < 2 ? -1 : (*e.dims(e.x(1)))[1].value;
  const auto parameters = e.dims(e.x(2));
  const int64_t groups = e.node().int_or("num_groups", channels);
  if (channels < 0 || groups < 1 || channels % groups != 0 || !parameters || parameters->size() != 1 ||
      !parameters->front().known())
    e.reject("for its derivative, the channels of X and the size of scale must be known");
  const bool by_group = parameters->front().value != channels;
  const int64_t each = channels / groups;
  const std::string shape = e("Shape", {e.x(1)});
  std::vector<std::string> parts = {extents(e, e.x(1), 0, 1), e.int64s({groups, each})};
  if (rank > 2) parts.push_back(extents(e, e.x(1), 2, kToTheLast));
  const std::string grouped = e("Concat", parts, {{"axis", int64_t{0}}});
  const auto apart = [&](const std::string& value) { return Expression(e, reshape_to(e, value, grouped)); };
  std::vector<int64_t> of_parameter(static_cast<size_t>(rank + 1), 1), of_group, repeated = {0};
  of_parameter[1] = groups, of_parameter[2] = by_group ? 1 : each;
  for (int64_t i = 2; i <= rank; ++i) {
    of_group.push_back(i);
    if (i > 2 || by_group) repeated.push_back(i);
  }
  const auto mean = [&](const Expression& v) {
    return Expression(e, reduce(e, "ReduceMean", v, of_group, true));
  };
  const auto total = [&](const Expression& v) {
    return e("Reshape", {e.reduce_sum(v, repeated, false), e.int64s({by_group ? groups : channels})});
  };
  const Expression dy = apart(e.x(0)), x = apart(e.x(1));
  const Expression scale(e, e("Reshape", {e.x(2), e.int64s(of_parameter)}));
  const Expression centred = x - mean(x);
  const Expression s =
      1.0 / (mean(centred * centred) + static_cast<double>(e.node().float_or("epsilon", 1e-5f))).call("Sqrt");
  const Expression h = centred * s, g = dy * scale;
  e.set(0, reshape_to(e, s * (g - mean(g) - h * mean(g * h)), shape));
  if (e.has_y(1)) e.set(1, total(dy * h));
  if (e.has_y(2)) e.set(2, total(dy));
}

ORTRAIN_OPERATOR({.type = "InstanceNormalization",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.type = "GroupNormalization",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GroupNormalizationGrad",
                  .rules = {.shape = grad_shape, .decompose = decompose_grad, .element_type = grad_types},
                  .kernels = {.cpu = grad_kernel}});

}  // namespace
}  // namespace ortrain
#endif
