// In each image, h = (x - mean) s with s = 1 / sqrt(var + epsilon) over all elements of a group of channels,
// y = scale h + bias. With channels last, the statistics of a group follow from those of its channels.
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

// Of each channel of an image with channels last: dx = a dy + b (x - mean) + c. dx may be dy.
using CombineRows = void (*)(const float* dy, const float* x, float* dx, int64_t rows, int64_t channels,
                             const float* mean, const float* a, const float* b, const float* c);
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

void CombineChannels(const float* dy, const float* x, float* dx, int64_t rows, int64_t channels,
                     const float* mean, const float* a, const float* b, const float* c) {
  const hn::ScalableTag<float> d;
  for (int64_t row = 0; row < rows; ++row, dy += channels, x += channels, dx += channels)
    ForVectors<float>(channels, [&](int64_t i, int64_t count) HWY_ATTR {
      const auto centered = hn::Sub(LoadUpTo(d, x + i, count), LoadUpTo(d, mean + i, count));
      const auto h = hn::MulAdd(centered, LoadUpTo(d, b + i, count), LoadUpTo(d, c + i, count));
      StoreUpTo(hn::MulAdd(LoadUpTo(d, dy + i, count), LoadUpTo(d, a + i, count), h), d, dx + i, count);
    });
}
CombineRows FindCombineRows() { return CombineChannels; }

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

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "backend/cpu/channels_last.h"
#include "backend/cpu/norm/channel_gradients.h"
#include "backend/cpu/norm/channel_normalize.h"
#include "backend/cpu/norm/channel_statistics.h"
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

// The channels of one image.
ChannelLayout image_of(const NormalizedGroups& g) { return {1, 1, g.points, g.groups * g.channels}; }

// Numbers of each channel, one array after another.
struct ChannelArrays {
  float* first;
  int64_t channels;
  float* operator[](int64_t array) const { return first + array * channels; }
};

// The scale or the bias of each channel.
void spread(const NormalizedGroups& g, const float* parameters, float* of_channels) {
  for (int64_t group = 0; group < g.groups; ++group)
    for (int64_t k = 0; k < g.channels; ++k)
      of_channels[group * g.channels + k] = parameters[g.parameter(group, k)];
}

// Mean and variance of each channel, computed over its group.
void group_statistics(const NormalizedGroups& g, const float* image, float* mean, float* variance,
                      void* scratch) {
  channel_statistics(image_of(g), image, mean, variance, scratch);
  const double share = 1 / static_cast<double>(g.channels);
  for (int64_t group = 0; group < g.groups; ++group, mean += g.channels, variance += g.channels) {
    double center = 0, square = 0;
    for (int64_t k = 0; k < g.channels; ++k) center += static_cast<double>(mean[k]) * share;
    for (int64_t k = 0; k < g.channels; ++k) {
      const double off = static_cast<double>(mean[k]) - center;
      square += (static_cast<double>(variance[k]) + off * off) * share;
    }
    std::fill(mean, mean + g.channels, static_cast<float>(center));
    std::fill(variance, variance + g.channels, static_cast<float>(square));
  }
}

Kernel channels_last_forward(KernelContext& c) {
  const NormalizedGroups g(c, 0, 1);
  const ChannelLayout image = image_of(g);
  const LayoutPtr layout = channels_last(c.shape(0));
  const Slot x_slot = c.in(0, layout), scale = c.in(1), bias = c.in(2);
  const Slot sums = c.scratch(channel_sums_scratch(image)),
             arrays = c.scratch(static_cast<size_t>(5 * image.channels()) * sizeof(float));
  const Slot y_slot = c.out_inplace(0, {0}, layout);
  return [=](const Frame& f) {
    const ChannelArrays of{f.at<float>(arrays), image.channels()};
    spread(g, f.at<const float>(scale), of[2]);
    spread(g, f.at<const float>(bias), of[3]);
    for (int64_t n = 0; n < g.batch; ++n) {
      const int64_t from = n * g.groups * g.group_size();
      const float* x = f.at<const float>(x_slot) + from;
      group_statistics(g, x, of[0], of[1], f.at<void>(sums));
      channel_normalize(image, x, {of[0], of[1], of[2], of[3], static_cast<float>(g.epsilon)}, of[4],
                        f.at<float>(y_slot) + from);
    }
  };
}

// Of one image, what its channels add to the gradients of scale and bias, and the factors of `combine`.
void channel_factors(const NormalizedGroups& g, const float* scale, const float* inverse,
                     const float* products, const float* sums, float* a, float* b, float* c) {
  const double share = 1 / static_cast<double>(g.group_size());
  for (int64_t first = 0; first < g.groups * g.channels; first += g.channels) {
    double sum_g = 0, sum_gh = 0;
    for (int64_t k = first; k < first + g.channels; ++k) {
      sum_g += static_cast<double>(scale[k]) * static_cast<double>(sums[k]);
      sum_gh += static_cast<double>(scale[k]) * static_cast<double>(products[k]);
    }
    for (int64_t k = first; k < first + g.channels; ++k) {
      const double s = static_cast<double>(inverse[k]);
      a[k] = static_cast<float>(s * static_cast<double>(scale[k]));
      b[k] = static_cast<float>(-s * s * sum_gh * share);
      c[k] = static_cast<float>(-s * sum_g * share);
    }
  }
}

Kernel channels_last_backward(KernelContext& c) {
  const NormalizedGroups g(c, 1, 2);
  const ChannelLayout image = image_of(g);
  const LayoutPtr layout = channels_last(c.shape(1));
  const Slot dy_slot = c.in(0, layout), x_slot = c.in(1, layout), scale = c.in(2);
  const Slot dx_slot = c.has_output(0) ? c.out_inplace(0, {0}, layout) : Slot{};
  const Slot dscale = c.has_output(1) ? c.out(1) : Slot{}, dbias = c.has_output(2) ? c.out(2) : Slot{};
  const int64_t channels = image.channels();
  const Slot arrays = c.scratch(static_cast<size_t>(9 * channels) * sizeof(float)),
             totals_slot = c.scratch(static_cast<size_t>(2 * channels) * sizeof(double)),
             scratch = c.scratch(channel_gradients_scratch(image));
  return [=, combine = ORTRAIN_DISPATCH(FindCombineRows)()](const Frame& f) {
    const ChannelArrays of{f.at<float>(arrays), channels};
    float *mean = of[0], *variance = of[1], *inverse = of[2], *factors = of[3], *products = of[4],
          *sums = of[5];
    double* totals = f.at<double>(totals_slot);
    std::fill(totals, totals + 2 * channels, 0.0);
    spread(g, f.at<const float>(scale), factors);
    for (int64_t n = 0; n < g.batch; ++n) {
      const int64_t from = n * g.groups * g.group_size();
      const float *dy = f.at<const float>(dy_slot) + from, *x = f.at<const float>(x_slot) + from;
      group_statistics(g, x, mean, variance, f.at<void>(scratch));
      for (int64_t k = 0; k < channels; ++k)
        inverse[k] = static_cast<float>(1 / std::sqrt(static_cast<double>(variance[k]) + g.epsilon));
      channel_gradients(image, dy, x, nullptr, {factors, mean, inverse, products, sums}, f.at<void>(scratch));
      for (int64_t k = 0; k < channels; ++k) {
        totals[k] += static_cast<double>(products[k]);
        totals[channels + k] += static_cast<double>(sums[k]);
      }
      if (!dx_slot.defined()) continue;
      float* dx = f.at<float>(dx_slot) + from;
      channel_factors(g, factors, inverse, products, sums, of[6], of[7], of[8]);
      rows_from_last(image, [&](int64_t at, int64_t rows, int64_t) {
        combine(dy + at, x + at, dx + at, rows, channels, mean, of[6], of[7], of[8]);
      });
    }
    const int64_t each = g.by_group ? g.channels : 1;
    for (int64_t p = 0; p < 2; ++p) {
      const Slot slot = p == 0 ? dscale : dbias;
      if (!slot.defined()) continue;
      float* to = f.at<float>(slot);
      for (int64_t k = 0; k < channels; k += each)
        to[k / each] = static_cast<float>(
            std::accumulate(totals + p * channels + k, totals + p * channels + k + each, 0.0));
    }
  };
}

// Whether input i is stored with channels last, and not empty.
bool lies_channels_last(const KernelContext& c, size_t i) {
  return c.dtype(i) == DType::kFloat && c.size(i) > 0 && stored_channels_last(c, i);
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
  if (lies_channels_last(c, 0)) return channels_last_forward(c);
  return floating_kernel(c, 0, [&](auto zero) { return forward<decltype(zero)>(c); });
}

Kernel group_normalization_grad(KernelContext& c) {
  if (lies_channels_last(c, 1)) return channels_last_backward(c);
  return floating_kernel(c, 0, [&](auto zero) { return backward<decltype(zero)>(c); });
}

}  // namespace ortrain
#endif
