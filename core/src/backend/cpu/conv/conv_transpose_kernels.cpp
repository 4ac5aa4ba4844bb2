// Kernels of transposed convolution: those of convolution with the roles exchanged.
#include "backend/cpu/conv/conv_transpose_kernels.h"

#include <algorithm>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/channels_last.h"
#include "backend/cpu/conv/conv_kernels.h"
#include "backend/cpu/conv/row_major_conv.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// The convolution from Y to X.
ConvSizes sizes_of(const Transposed& t) { return {t.x[0], t.y[1], t.x[1], t.groups, three_axes(t.window)}; }

template <typename T>
Kernel row_major_forward(KernelContext& c, const Transposed& t) {
  const ConvSizes s = sizes_of(t);
  const int64_t workers = conv_workers(s), channels = t.y[1], points = s.input_points();
  const Slot x = c.in(0), w = c.in(1), bias = c.has_input(2) ? c.in(2) : Slot{};
  const Slot y = c.out(0), scratch = c.scratch(static_cast<size_t>(conv_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    T* out = f.at<T>(y);
    conv_backward_data<T>(s, workers, f.at<const T>(x), f.at<const T>(w), out, f.at<T>(scratch));
    if (!bias.defined()) return;
    const T* b = f.at<const T>(bias);
    parallel_for(s.batch * channels, points, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane)
        for (int64_t i = 0; i < points; ++i) out[plane * points + i] += b[plane % channels];
    });
  };
}

template <typename T>
Kernel row_major_backward_data(KernelContext& c, const Transposed& t) {
  const ConvSizes s = sizes_of(t);
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), w = c.in(2);
  const Slot dx = c.out(0), scratch = c.scratch(static_cast<size_t>(conv_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_forward<T>(s, workers, f.at<const T>(dy), f.at<const T>(w), nullptr, f.at<T>(dx), f.at<T>(scratch));
  };
}

template <typename T>
Kernel row_major_backward_weights(KernelContext& c, const Transposed& t) {
  const ConvSizes s = sizes_of(t);
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), x = c.in(1);
  const Slot dw = c.out(1), scratch = c.scratch(static_cast<size_t>(conv_weights_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_weights<T>(s, workers, f.at<const T>(x), f.at<const T>(dy), f.at<T>(dw), f.at<T>(scratch));
  };
}

template <typename T>
Kernel row_major_backward_bias(KernelContext& c, const Transposed& t) {
  // The sums are over Y, which this function treats as the result of a convolution.
  ConvSizes s = sizes_of(t);
  s.filters = t.y[1];
  for (WindowAxis& a : s.window) a.output = a.input;
  const Slot dy = c.in(0), db = c.out(2);
  return [=](const Frame& f) { conv_backward_bias<T>(s, f.at<const T>(dy), f.at<T>(db)); };
}

}  // namespace

std::optional<Kernel> channels_last_conv_transpose(KernelContext& c) {
  if (!suits_channels_last(c) || c.size(0) == 0) return std::nullopt;
  const ChannelsLastConvolution conv(sizes_of(Transposed(c, 0, 1)));
  if (!conv.suits()) return std::nullopt;
  std::vector<Kernel> kernels;
  const StoredSlot x = in_channels_last(c, 0);
  const Slot w = packed_weights(c, 1, conv, true, kernels), bias = c.has_input(2) ? c.in(2) : Slot{};
  const StoredSlot y = out_channels_last(c, 0, c.wants_bf16(0));
  const Slot work = c.scratch(static_cast<size_t>(conv.backward_data_work(y.bf16)) * sizeof(float));
  kernels.push_back([=](const Frame& f) {
    conv.backward_data(x.in(f), f.at<const float>(w), f.at_or_null<const float>(bias), y.out(f),
                       f.at<float>(work));
  });
  return chain(std::move(kernels));
}

std::optional<Kernel> channels_last_conv_transpose_grad(KernelContext& c) {
  if (!suits_channels_last(c) || c.size(0) == 0 || c.size(1) == 0) return std::nullopt;
  const ChannelsLastConvolution conv(sizes_of(Transposed(c, 1, 2)));
  if (!conv.suits()) return std::nullopt;
  // An output may have a name but no reader, most often the gradient of the model's input.
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  const StoredSlot dy = in_channels_last(c, 0);
  // The two gradients are computed one after the other, in the same memory. The convolution goes from Y to X.
  const int64_t for_data = wanted(0) ? conv.forward_work(c.wants_bf16(0)) : 0,
                for_weights = wanted(1) ? conv.backward_weights_work(lies_in_bf16(c, 1)) : 0;
  const Slot work = c.scratch(static_cast<size_t>(std::max(for_data, for_weights)) * sizeof(float));
  std::vector<Kernel> kernels;
  if (wanted(0)) {
    const Slot w = packed_weights(c, 2, conv, false, kernels);
    const StoredSlot dx = out_channels_last(c, 0, c.wants_bf16(0));
    kernels.push_back([=](const Frame& f) {
      conv.forward(dy.in(f), f.at<const float>(w), nullptr, {}, {}, dx.out(f), f.at<float>(work));
    });
  }
  if (wanted(1)) {
    const StoredSlot x = in_channels_last(c, 1);
    const Slot dw = c.out(1, channels_last(c.out_shape(1)));
    kernels.push_back([=](const Frame& f) {
      conv.backward_weights(x.in(f), dy.in(f), f.at<float>(dw), f.at<float>(work));
    });
  }
  if (wanted(2)) kernels.push_back(channels_last_bias_gradient(c, dy));
  return chain(std::move(kernels));
}

std::optional<Kernel> row_major_conv_transpose(KernelContext& c) {
  const Transposed t(c, 0, 1);
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = row_major_forward<decltype(zero)>(c, t); }))
    c.reject_dtype(0);
  return kernel;
}

std::optional<Kernel> row_major_conv_transpose_grad(KernelContext& c) {
  return row_major_conv_transpose_grad(c, Transposed(c, 1, 2), {});
}

Kernel row_major_conv_transpose_grad(KernelContext& c, const Transposed& t, ConvGradParts parts) {
  // An output may have a name but no reader, most often the gradient of the model's input.
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    if (!parts.data && wanted(0)) parts.data = row_major_backward_data<T>(c, t);
    if (!parts.weights && wanted(1)) parts.weights = row_major_backward_weights<T>(c, t);
    if (!parts.bias && wanted(2)) parts.bias = row_major_backward_bias<T>(c, t);
  });
  if (!known) c.reject_dtype(0);
  std::vector<Kernel> kernels;
  for (Kernel* made : {&parts.data, &parts.weights, &parts.bias})
    if (*made) kernels.push_back(std::move(*made));
  return chain(std::move(kernels));
}

}  // namespace ortrain
