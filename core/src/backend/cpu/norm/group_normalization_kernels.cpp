// In each image, h = (x - mean) s with s = 1 / sqrt(var + epsilon) over all elements of a group of channels,
// y = scale h + bias.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/group_normalization_kernels.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

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

#include "backend/cpu/norm/group_normalization_kernels.h"
#include "op/floating_kernel.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

template <typename T>
GroupNormalizationFunctions<T> find() {
  if constexpr (std::is_same_v<T, float>)
    return ORTRAIN_DISPATCH(FindFloat)();
  else
    return ORTRAIN_DISPATCH(FindDouble)();
}

constexpr int64_t kCost = 4;  // of one element, in additions

template <typename T>
Kernel forward(KernelContext& c) {
  const NormalizedGroups g(c, 0, 1);
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

// With g = dy scale: dx = s (g - mean(g) - h mean(g h)).
template <typename T>
Kernel backward(KernelContext& c) {
  const NormalizedGroups g(c, 1, 2);
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

}  // namespace

NormalizedGroups::NormalizedGroups(const NodeContext& c, size_t x_at, size_t scale_at) {
  const Shape& x = c.shape(x_at);
  c.expect(x.size() >= 2, "its input X must have shape [N, C, ...], found ", to_string(x));
  batch = x[0];
  points = element_count(x, 2, x.size());
  groups = x[1];
  if (c.node().has("num_groups")) {
    groups = c.node().int_or("num_groups", 1);
    c.expect(groups >= 1 && x[1] % groups == 0, "attribute num_groups is ", groups, ", but X ", to_string(x),
             " has ", counted(x[1], "channel"), ", which is not divisible by num_groups");
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

Kernel group_normalization(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return forward<decltype(zero)>(c); });
}

Kernel group_normalization_grad(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return backward<decltype(zero)>(c); });
}

}  // namespace ortrain
#endif
