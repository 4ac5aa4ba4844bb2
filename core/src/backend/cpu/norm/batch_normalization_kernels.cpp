#include "backend/cpu/norm/batch_normalization_kernels.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/channels_last.h"
#include "backend/cpu/norm/channel_gradients.h"
#include "backend/cpu/norm/channel_normalize.h"
#include "backend/cpu/norm/channel_statistics.h"
#include "backend/cpu/norm/row_major_batch_normalization.h"

namespace ortrain {
namespace batch_normalization {

std::optional<ClipRange> clip_range(const Node& node) {
  if (!node.has(kLow)) return std::nullopt;
  ClipRange range;
  range.low = node.float_or(kLow, range.low), range.high = node.float_or(kHigh, range.high);
  range.excluded = node.float_or(kExcluded, range.excluded);
  return range;
}

Statistics plan_statistics(KernelContext& c) {
  Statistics s;
  s.channels = c.shape(kX)[1];
  s.momentum = c.node().float_or("momentum", 0.9f);
  s.epsilon = c.node().float_or("epsilon", 1e-5f);
  s.empty = c.size(kX) == 0;
  const size_t bytes = static_cast<size_t>(s.channels) * size_of(c.dtype(kX));
  const bool updates = updates_statistics(c.node());
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  for (int k = 0; k < 2; ++k) {
    const size_t input = k == 0 ? kMean : kVariance, output = static_cast<size_t>(k) + 1;
    if (updates) s.state[k] = c.state(input);
    s.running[k].before = updates ? s.state[k] : c.in(input);
    if (wanted(output)) s.running[k].after = c.out(output);
  }
  s.mean = wanted(3) ? c.out(3) : c.scratch(bytes);
  const size_t variance = updates ? 5 : 4;
  s.variance = wanted(variance) ? c.out(variance) : c.scratch(bytes);
  if (wanted(4) && updates) s.inverse = c.out(4);
  return s;
}

Kernel with_statistics_passed_on(KernelContext& c, Kernel normalize) {
  const size_t bytes = static_cast<size_t>(c.shape(kX)[1]) * size_of(c.dtype(kX));
  for (size_t o = 1; o < std::min<size_t>(c.output_count(), 5); ++o) {
    if (!c.has_output(o) || c.used_only_by(o, "")) continue;
    const Slot from = c.in(o % 2 == 1 ? kMean : kVariance), to = c.out(o);
    normalize = [=, before = std::move(normalize)](const Frame& f) {
      before(f);
      if (bytes > 0) std::memcpy(f.at<std::byte>(to), f.at<std::byte>(from), bytes);
    };
  }
  return normalize;
}

}  // namespace batch_normalization

using namespace batch_normalization;

namespace {

BatchSizes sizes_of(const Shape& x) { return {x[0], x[1], element_count(x, 2, x.size())}; }

// Applies the activation to a kernel's results.
template <typename T>
Kernel clipped(KernelContext& c, Slot y, Kernel kernel) {
  const std::optional<ClipRange> range = clip_range(c.node());
  if (!range) return kernel;
  return [=, n = c.out_size(0), normalize = std::move(kernel)](const Frame& f) {
    normalize(f);
    T* to = f.at<T>(y);
    for (int64_t i = 0; i < n; ++i) to[i] = range->clip(to[i]);
  };
}

template <typename T>
Kernel row_major_training(KernelContext& c) {
  const BatchSizes sizes = sizes_of(c.shape(kX));
  const Slot x = c.in(kX), scale = c.in(kScale), bias = c.in(kBias);
  const Statistics s = plan_statistics(c);
  const Slot y = c.out(0);
  return clipped<T>(c, y, [=](const Frame& f) {
    batch_statistics<T>(sizes, f.at<const T>(x), f.at<T>(s.mean), f.at<T>(s.variance));
    batch_normalize<T>(sizes, f.at<const T>(x), f.at<const T>(scale), f.at<const T>(bias),
                       f.at<const T>(s.mean), f.at<const T>(s.variance), static_cast<T>(s.epsilon),
                       f.at<T>(y));
    update_statistics<T>(s, f);
  });
}

template <typename T>
Kernel row_major_inference(KernelContext& c) {
  const BatchSizes sizes = sizes_of(c.shape(kX));
  const T epsilon = static_cast<T>(c.node().float_or("epsilon", 1e-5f));
  const Slot x = c.in(kX), scale = c.in(kScale), bias = c.in(kBias), mean = c.in(kMean),
             variance = c.in(kVariance);
  const Slot y = c.out_inplace(0, {kX});
  return clipped<T>(c, y, [=](const Frame& f) {
    batch_normalize<T>(sizes, f.at<const T>(x), f.at<const T>(scale), f.at<const T>(bias),
                       f.at<const T>(mean), f.at<const T>(variance), epsilon, f.at<T>(y));
  });
}

template <typename T>
Kernel row_major_backward(KernelContext& c) {
  const BatchSizes sizes = sizes_of(c.shape(kGradX));
  const Slot dy = c.in(kGradDy), x = c.in(kGradX), scale = c.in(kGradScale);
  const Slot mean = c.in(kGradMean), inverse = c.in(kGradInverse);
  const std::optional<ClipRange> range = clip_range(c.node());
  const Slot bias = range ? c.in(kGradBias) : Slot{};
  const Slot dx = c.used_only_by(0, "") ? Slot{} : c.out_inplace(0, {kGradDy});
  const Slot dscale = c.out(1), dbias = c.out(2);
  const Slot passed = range ? c.scratch(static_cast<size_t>(c.size(kGradDy)) * sizeof(T)) : dy;
  return [=](const Frame& f) {
    if (range)
      batch_clip_backward<T>(sizes, *range, f.at<const T>(dy), f.at<const T>(x), f.at<const T>(scale),
                             f.at<const T>(bias), f.at<const T>(mean), f.at<const T>(inverse),
                             f.at<T>(passed));
    batch_normalize_backward<T>(sizes, f.at<const T>(passed), f.at<const T>(x), f.at<const T>(scale),
                                f.at<const T>(mean), f.at<const T>(inverse), f.at_or_null<T>(dx),
                                f.at_or_null<T>(dscale), f.at_or_null<T>(dbias));
  };
}

ChannelLayout channel_layout(const Shape& x) { return {x[0], 1, element_count(x, 2, x.size()), x[1]}; }

template <typename T>
Kernel channels_last_forward(KernelContext& c) {
  const bool training = trains(c.node(), c.opset());
  const ChannelLayout channels = channel_layout(c.shape(kX));
  const LayoutPtr layout = channels_last(c.shape(kX), kIsBf16<T>);
  const Slot x = c.in(kX, layout), scale = c.in(kScale), bias = c.in(kBias);
  Statistics s;
  if (training) s = plan_statistics(c);
  const Slot mean = training ? s.mean : c.in(kMean), variance = training ? s.variance : c.in(kVariance);
  const Slot sums = training ? c.scratch(channel_sums_scratch(channels)) : Slot{};
  const Slot factors = c.scratch(static_cast<size_t>(channels.channels()) * sizeof(float));
  const Slot y = c.out_inplace(0, {kX}, layout);
  Kernel kernel = [=, epsilon = c.node().float_or("epsilon", 1e-5f),
                   range = clip_range(c.node())](const Frame& f) {
    if (training)
      channel_statistics(channels, f.at<const T>(x), f.at<float>(mean), f.at<float>(variance),
                         f.at<void>(sums));
    channel_normalize(channels, f.at<const T>(x),
                      {f.at<const float>(mean), f.at<const float>(variance), f.at<const float>(scale),
                       f.at<const float>(bias), epsilon, range ? &*range : nullptr},
                      f.at<float>(factors), f.at<T>(y));
    if (training) update_statistics<float>(s, f);
  };
  return training ? std::move(kernel) : with_statistics_passed_on(c, std::move(kernel));
}

template <typename T>
Kernel channels_last_backward(KernelContext& c) {
  const ChannelLayout channels = channel_layout(c.shape(kGradX));
  const LayoutPtr layout = channels_last(c.shape(kGradX), kIsBf16<T>);
  const Slot dy = c.in(kGradDy, layout), x = c.in(kGradX, layout), scale = c.in(kGradScale);
  const Slot mean = c.in(kGradMean), inverse = c.in(kGradInverse);
  const std::optional<ClipRange> range = clip_range(c.node());
  const Slot bias = range ? c.in(kGradBias) : Slot{};
  const Slot dx = c.used_only_by(0, "") ? Slot{} : c.out_inplace(0, {kGradDy}, layout);
  const Slot dscale = c.out(1), dbias = c.out(2);
  const Slot scratch = c.scratch(channel_gradients_scratch(channels));
  return [=](const Frame& f) {
    channel_gradients(channels, f.at<const T>(dy), f.at<const T>(x), f.at_or_null<T>(dx),
                      {f.at<const float>(scale), f.at<const float>(mean), f.at<const float>(inverse),
                       f.at_or_null<float>(dscale), f.at_or_null<float>(dbias), range ? &*range : nullptr,
                       f.at_or_null<const float>(bias)},
                      f.at<void>(scratch));
  };
}

}  // namespace

std::optional<Kernel> channels_last_batch_normalization(KernelContext& c) {
  if (!suits_channels_last(c) || c.size(kX) == 0) return std::nullopt;
  return visit_stored(follows_bf16(c, {kX}),
                      [&](auto zero) { return channels_last_forward<decltype(zero)>(c); });
}

// dY is converted to the type in which X is stored, which is the larger saving.
std::optional<Kernel> channels_last_batch_normalization_grad(KernelContext& c) {
  if (!suits_channels_last(c)) return std::nullopt;
  return visit_stored(lies_in_bf16(c, kGradX),
                      [&](auto zero) { return channels_last_backward<decltype(zero)>(c); });
}

std::optional<Kernel> row_major_batch_normalization(KernelContext& c) {
  const bool training = trains(c.node(), c.opset());
  Kernel kernel;
  const bool known = visit_floating(c.dtype(kX), [&](auto zero) {
    using T = decltype(zero);
    kernel = training ? row_major_training<T>(c) : row_major_inference<T>(c);
  });
  if (!known) c.reject_dtype(kX);
  return training ? std::move(kernel) : with_statistics_passed_on(c, std::move(kernel));
}

std::optional<Kernel> row_major_batch_normalization_grad(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(kGradX), [&](auto zero) { kernel = row_major_backward<decltype(zero)>(c); }))
    c.reject_dtype(kGradX);
  return kernel;
}

}  // namespace ortrain
