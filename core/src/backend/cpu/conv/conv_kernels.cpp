// Kernels of convolution on the functions of this folder.
#include "backend/cpu/conv/conv_kernels.h"

#include "backend/cpu/channels_last.h"
#include "backend/cpu/conv/channels_last_depthwise.h"
#include "backend/cpu/conv/depthwise_conv.h"
#include "backend/cpu/conv/direct_conv.h"
#include "backend/cpu/conv/portable_conv.h"
#include "backend/cpu/conv/winograd.h"
#include "backend/cpu/strided_copy.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

ConvSizes sizes_of(const Convolution& conv) {
  return {conv.x[0], conv.x[1], conv.w[0], conv.groups, three_axes(conv.window)};
}

template <typename T>
Kernel portable_forward(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = sizes_of(conv);
  const int64_t workers = conv_workers(s);
  const Slot x = c.in(0), w = c.in(1), bias = c.has_input(2) ? c.in(2) : Slot{};
  const Slot y = c.out(0), scratch = c.scratch(static_cast<size_t>(conv_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_forward<T>(s, workers, f.at<const T>(x), f.at<const T>(w), f.at_or_null<const T>(bias), f.at<T>(y),
                    f.at<T>(scratch));
  };
}

template <typename T>
Kernel portable_fused(KernelContext& c, const Convolution& conv, const Activation& activation) {
  const Kernel forward = portable_forward<T>(c, conv);
  const Slot z = c.has_input(3) ? c.in(3) : Slot{};
  const Slot y = c.out(0);
  const int64_t n = c.out_size(0);
  return [=](const Frame& f) {
    forward(f);
    const T* addend = f.at_or_null<const T>(z);
    T* values = f.at<T>(y);
    parallel_for(n, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; addend && i < end; ++i) values[i] += addend[i];
      activation.apply(end - begin, values + begin);
    });
  };
}

template <typename T>
Kernel portable_backward_data(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = sizes_of(conv);
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), w = c.in(2);
  const Slot dx = c.out(0), scratch = c.scratch(static_cast<size_t>(conv_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_data<T>(s, workers, f.at<const T>(dy), f.at<const T>(w), f.at<T>(dx), f.at<T>(scratch));
  };
}

template <typename T>
Kernel portable_backward_weights(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = sizes_of(conv);
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), x = c.in(1);
  const Slot dw = c.out(1), scratch = c.scratch(static_cast<size_t>(conv_weights_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_weights<T>(s, workers, f.at<const T>(dy), f.at<const T>(x), f.at<T>(dw), f.at<T>(scratch));
  };
}

template <typename T>
Kernel portable_backward_bias(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = sizes_of(conv);
  const Slot dy = c.in(0), db = c.out(2);
  return [=](const Frame& f) { conv_backward_bias<T>(s, f.at<const T>(dy), f.at<T>(db)); };
}

// The gradients of depthwise convolutions in float; the caller asks whether `depthwise` suits them.
Kernel depthwise_backward_data(KernelContext& c, const DepthwiseConvolution& depthwise) {
  const Slot dy = c.in(0), w = c.in(2), dx = c.out(0);
  const Slot work = c.scratch(static_cast<size_t>(depthwise.work_size()) * sizeof(float));
  return [=](const Frame& f) {
    depthwise.backward_data(f.at<const float>(dy), f.at<const float>(w), f.at<float>(dx), f.at<float>(work));
  };
}

Kernel depthwise_backward_weights(KernelContext& c, const DepthwiseConvolution& depthwise) {
  const Slot dy = c.in(0), x = c.in(1), dw = c.out(1);
  const Slot work = c.scratch(static_cast<size_t>(depthwise.work_size()) * sizeof(float));
  return [=](const Frame& f) {
    depthwise.backward_weights(f.at<const float>(dy), f.at<const float>(x), f.at<float>(dw),
                               f.at<float>(work));
  };
}

// The sizes of a convolution by Winograd's algorithm with channels last, if the session allows it and it is
// faster.
std::optional<WinogradSizes> find_winograd(const KernelContext& c, const Convolution& conv) {
  if (!c.node().int_or(kWinograd, 0) || conv.window.size() != 2 || conv.groups != 1) return std::nullopt;
  for (const WindowAxis& a : conv.window)
    if (a.kernel != 3 || a.stride != 1 || a.dilation != 1 || a.before < 0 || a.before > 2 || a.reach() < 0 ||
        a.reach() > 2)
      return std::nullopt;
  const WindowAxis &h = conv.window[0], &w = conv.window[1];
  const WinogradSizes s{conv.x[0], conv.x[1], conv.w[0], h.input,  w.input,
                        h.output,  w.output,  h.before,  w.before, 0};
  if (!suits_winograd(s, max_threads())) return std::nullopt;
  return s;
}

Kernel winograd_kernel(KernelContext& c, const WinogradSizes& s, const Activation& activation) {
  const int threads = max_threads();
  const LayoutPtr layout = channels_last(c.out_shape(0));
  const Slot x = c.in(0, channels_last(c.shape(0))), w = c.in(1, channels_last(c.shape(1))),
             bias = c.has_input(2) ? c.in(2) : Slot{}, addend = c.has_input(3) ? c.in(3, layout) : Slot{},
             y = addend.defined() ? c.out_inplace(0, {3}, layout) : c.out(0, layout),
             work = c.scratch(winograd_scratch(s, threads));
  const bool relu = activation.kind == Activation::Kind::kRelu;
  return [=, n = c.out_size(0)](const Frame& f) {
    if (addend.defined() && addend.index != y.index)
      copy_bytes(f.at<std::byte>(y), f.at<const std::byte>(addend), static_cast<size_t>(n) * sizeof(float));
    float* to = f.at<float>(y);
    winograd_forward(s, threads, {f.at<void>(x)}, f.at<const float>(w), f.at_or_null<const float>(bias),
                     addend.defined(), relu, {to}, f.at<void>(work));
    if (relu || activation.kind == Activation::Kind::kNone) return;
    parallel_for(n, 4, [&](int64_t begin, int64_t end) { activation.apply(end - begin, to + begin); });
  };
}

// make(T{}) for the type of input 0.
template <typename Make>
Kernel typed(KernelContext& c, Make&& make) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = make(zero); })) c.reject_dtype(0);
  return kernel;
}

}  // namespace

std::optional<Kernel> portable_conv(KernelContext& c) {
  const Convolution conv(c, 0, 1);
  return typed(c, [&](auto zero) { return portable_forward<decltype(zero)>(c, conv); });
}

std::optional<Kernel> portable_fused_conv(KernelContext& c) {
  const Convolution conv(c, 0, 1);
  const Activation activation = read_activation(c.node());
  return typed(c, [&](auto zero) { return portable_fused<decltype(zero)>(c, conv, activation); });
}

// Only with constant weights, which are packed here; the gradient has no kernel of this kind.
std::optional<Kernel> direct_conv(KernelContext& c) {
  const Tensor* weights = c.constant(1);
  if (!weights || c.constant(0) || c.dtype(0) != DType::kFloat || c.precision() != Precision::kFloat)
    return std::nullopt;
  const Activation activation = read_activation(c.node());
  const bool relu = activation.kind == Activation::Kind::kRelu;
  if (!relu && activation.kind != Activation::Kind::kNone) return std::nullopt;
  const DirectConvolution direct(sizes_of(Convolution(c, 0, 1)));
  if (c.out_size(0) == 0 || !direct.suits()) return std::nullopt;
  Tensor packed(DType::kFloat, {direct.weights_size()});
  direct.pack(weights->data<float>(), packed.data<float>());
  const Slot w = c.fixed(std::move(packed)), x = c.in(0), bias = c.has_input(2) ? c.in(2) : Slot{},
             addend = c.has_input(3) ? c.in(3) : Slot{}, y = c.out(0),
             work = c.scratch(static_cast<size_t>(direct.work_size()) * sizeof(float));
  return [=](const Frame& f) {
    direct.run(f.at<const float>(x), f.at<const float>(w), f.at_or_null<const float>(bias),
               f.at_or_null<const float>(addend), relu, f.at<float>(y), f.at<float>(work));
  };
}

std::optional<Kernel> depthwise_conv(KernelContext& c) {
  if (c.dtype(0) != DType::kFloat) return std::nullopt;
  const DepthwiseConvolution depthwise(sizes_of(Convolution(c, 0, 1)));
  if (!depthwise.suits()) return std::nullopt;
  const Activation activation = read_activation(c.node());
  const Slot x = c.in(0), w = c.in(1), bias = c.has_input(2) ? c.in(2) : Slot{},
             addend = c.has_input(3) ? c.in(3) : Slot{}, y = c.out(0),
             work = c.scratch(static_cast<size_t>(depthwise.work_size()) * sizeof(float));
  return [=](const Frame& f) {
    depthwise.forward(f.at<const float>(x), f.at<const float>(w), f.at_or_null<const float>(bias),
                      f.at_or_null<const float>(addend), activation, f.at<float>(y), f.at<float>(work));
  };
}

Slot packed_weights(KernelContext& c, size_t i, const ChannelsLastConvolution& conv, bool backward,
                    std::vector<Kernel>& kernels) {
  const int64_t size = backward ? conv.packed_backward_size() : conv.packed_size();
  const auto pack = [=](const float* w, float* packed) {
    backward ? conv.pack_backward(w, packed) : conv.pack(w, packed);
  };
  if (const Tensor* known = c.constant(i)) {
    Tensor packed(DType::kFloat, {size});
    pack(with_channels_last(*known).data<float>(), packed.data<float>());
    return c.fixed(std::move(packed));
  }
  const Slot w = c.in(i, channels_last(c.shape(i))),
             packed = c.scratch(static_cast<size_t>(size) * sizeof(float));
  kernels.push_back([=](const Frame& f) { pack(f.at<const float>(w), f.at<float>(packed)); });
  return packed;
}

Kernel channels_last_bias_gradient(KernelContext& c, Slot dy) {
  const int64_t channels = c.shape(0)[1], points = c.size(0) / channels;
  const Slot db = c.out(2);
  return [=](const Frame& f) { sum_points(points, channels, f.at<const float>(dy), f.at<float>(db)); };
}

std::optional<Kernel> channels_last_depthwise(KernelContext& c) {
  if (!suits_channels_last(c) || !stored_channels_last(c, 0) || c.out_size(0) == 0) return std::nullopt;
  const ChannelsLastDepthwise conv(sizes_of(Convolution(c, 0, 1)));
  if (!conv.suits()) return std::nullopt;
  const Activation activation = read_activation(c.node());
  const LayoutPtr layout = channels_last(c.out_shape(0));
  const Slot x = c.in(0, channels_last(c.shape(0))), w = c.in(1), bias = c.has_input(2) ? c.in(2) : Slot{},
             addend = c.has_input(3) ? c.in(3, layout) : Slot{}, y = c.out(0, layout),
             work = c.scratch(static_cast<size_t>(conv.work_size()) * sizeof(float));
  return [=](const Frame& f) {
    conv.forward(f.at<const float>(x), f.at<const float>(w), f.at_or_null<const float>(bias),
                 f.at_or_null<const float>(addend), activation, f.at<float>(y), f.at<float>(work));
  };
}

std::optional<Kernel> channels_last_depthwise_grad(KernelContext& c) {
  if (!suits_channels_last(c) || !(stored_channels_last(c, 0) || stored_channels_last(c, 1)) ||
      c.size(0) == 0 || c.size(1) == 0)
    return std::nullopt;
  const ChannelsLastDepthwise conv(sizes_of(Convolution(c, 1, 2)));
  if (!conv.suits()) return std::nullopt;
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  const Slot dy = c.in(0, channels_last(c.shape(0)));
  std::vector<Kernel> kernels;
  if (wanted(0)) {
    const Slot w = c.in(2), dx = c.out(0, channels_last(c.out_shape(0))),
               work = c.scratch(static_cast<size_t>(conv.work_size()) * sizeof(float));
    kernels.push_back([=](const Frame& f) {
      conv.backward_data(f.at<const float>(dy), f.at<const float>(w), f.at<float>(dx), f.at<float>(work));
    });
  }
  if (wanted(1)) {
    const Slot x = c.in(1, channels_last(c.shape(1))), dw = c.out(1),
               work = c.scratch(static_cast<size_t>(conv.weights_work_size()) * sizeof(float));
    kernels.push_back([=](const Frame& f) {
      conv.backward_weights(f.at<const float>(dy), f.at<const float>(x), f.at<float>(dw), f.at<float>(work));
    });
  }
  if (wanted(2)) kernels.push_back(channels_last_bias_gradient(c, dy));
  return chain(std::move(kernels));
}

std::optional<Kernel> channels_last_conv(KernelContext& c) {
  if (!suits_channels_last(c) || c.out_size(0) == 0) return std::nullopt;
  const Convolution described(c, 0, 1);
  const Activation activation = read_activation(c.node());
  if (const auto winograd = find_winograd(c, described)) return winograd_kernel(c, *winograd, activation);
  const ChannelsLastConvolution conv(sizes_of(described));
  if (!conv.suits()) return std::nullopt;
  std::vector<Kernel> kernels;
  const Slot x = c.in(0, channels_last(c.shape(0))), w = packed_weights(c, 1, conv, false, kernels),
             bias = c.has_input(2) ? c.in(2) : Slot{},
             addend = c.has_input(3) ? c.in(3, channels_last(c.shape(3))) : Slot{},
             y = addend.defined() ? c.out_inplace(0, {3}, channels_last(c.out_shape(0)))
                                  : c.out(0, channels_last(c.out_shape(0))),
             work = c.scratch(static_cast<size_t>(conv.forward_work()) * sizeof(float));
  kernels.push_back([=](const Frame& f) {
    conv.forward(f.at<const float>(x), f.at<const float>(w), f.at_or_null<const float>(bias),
                 f.at_or_null<const float>(addend), activation, f.at<float>(y), f.at<float>(work));
  });
  return chain(std::move(kernels));
}

std::optional<Kernel> channels_last_conv_grad(KernelContext& c) {
  if (!suits_channels_last(c) || c.size(0) == 0 || c.size(1) == 0) return std::nullopt;
  const Convolution described(c, 1, 2);
  if (DepthwiseConvolution(sizes_of(described)).suits()) return std::nullopt;  // row-major
  const auto winograd = find_winograd(c, described);
  const ChannelsLastConvolution conv(sizes_of(described));
  if (!winograd && !conv.suits()) return std::nullopt;
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  const int threads = max_threads();
  const Slot dy = c.in(0, channels_last(c.shape(0)));
  std::vector<Kernel> kernels;
  if (wanted(0)) {
    const Slot w = winograd ? c.in(2, channels_last(c.shape(2))) : packed_weights(c, 2, conv, true, kernels),
               dx = c.out(0, channels_last(c.out_shape(0))),
               work = c.scratch(winograd ? winograd_scratch(winograd->transposed(), threads)
                                         : static_cast<size_t>(conv.backward_data_work()) * sizeof(float));
    kernels.push_back([=](const Frame& f) {
      if (winograd)
        winograd_backward_data(*winograd, threads, {f.at<void>(dy)}, f.at<const float>(w), {f.at<void>(dx)},
                               f.at<void>(work));
      else
        conv.backward_data(f.at<const float>(dy), f.at<const float>(w), nullptr, f.at<float>(dx),
                           f.at<float>(work));
    });
  }
  if (wanted(1)) {
    const Slot x = c.in(1, channels_last(c.shape(1))), dw = c.out(1, channels_last(c.out_shape(1))),
               work = c.scratch(winograd ? winograd_weights_scratch(*winograd, threads)
                                         : static_cast<size_t>(conv.backward_weights_work()) * sizeof(float));
    kernels.push_back([=](const Frame& f) {
      if (winograd)
        winograd_backward_weights(*winograd, threads, {f.at<void>(x)}, {f.at<void>(dy)}, f.at<float>(dw),
                                  nullptr, f.at<void>(work));
      else
        conv.backward_weights(f.at<const float>(dy), f.at<const float>(x), f.at<float>(dw),
                              f.at<float>(work));
    });
  }
  if (wanted(2)) kernels.push_back(channels_last_bias_gradient(c, dy));
  return chain(std::move(kernels));
}

std::optional<Kernel> portable_conv_grad(KernelContext& c) {
  return portable_conv_grad(c, Convolution(c, 1, 2), {});
}

Kernel portable_conv_grad(KernelContext& c, const Convolution& conv, ConvGradParts parts) {
  // An output may have a name but no reader, most often the gradient of the model's input.
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  if (c.dtype(0) == DType::kFloat) {
    const DepthwiseConvolution depthwise(sizes_of(conv));
    if (depthwise.suits() && !parts.data && wanted(0)) parts.data = depthwise_backward_data(c, depthwise);
    if (depthwise.suits() && !parts.weights && wanted(1))
      parts.weights = depthwise_backward_weights(c, depthwise);
  }
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    if (!parts.data && wanted(0)) parts.data = portable_backward_data<T>(c, conv);
    if (!parts.weights && wanted(1)) parts.weights = portable_backward_weights<T>(c, conv);
    if (!parts.bias && wanted(2)) parts.bias = portable_backward_bias<T>(c, conv);
  });
  if (!known) c.reject_dtype(0);
  std::vector<Kernel> kernels;
  for (Kernel* kernel : {&parts.data, &parts.weights, &parts.bias})
    if (*kernel) kernels.push_back(std::move(*kernel));
  return chain(std::move(kernels));
}

}  // namespace ortrain
