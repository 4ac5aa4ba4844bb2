// Kernels of convolution on the functions of this folder.
#include "backend/cpu/conv/conv_kernels.h"

#include "backend/cpu/bf16_conversion.h"
#include "backend/cpu/channels_last.h"
#include "backend/cpu/conv/channels_last_depthwise.h"
#include "backend/cpu/conv/depthwise_conv.h"
#include "backend/cpu/conv/direct_conv.h"
#include "backend/cpu/conv/row_major_conv.h"
#include "backend/cpu/conv/separable_conv.h"
#include "backend/cpu/conv/winograd.h"
#include "backend/cpu/reduce/reduction.h"
#include "backend/cpu/strided_copy.h"
#include "geometry/separable_convolution.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

ConvSizes sizes_of(const Convolution& conv) {
  return {conv.x[0], conv.x[1], conv.w[0], conv.groups, three_axes(conv.window)};
}

template <typename T>
Kernel row_major_forward(KernelContext& c, const Convolution& conv) {
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
Kernel row_major_fused(KernelContext& c, const Convolution& conv, const Activation& activation) {
  Kernel forward = row_major_forward<T>(c, conv);
  const Slot z = c.has_input(3) ? c.in(3) : Slot{};
  const Slot y = c.out(0);
  const int64_t n = c.out_size(0);
  return [=, forward = std::move(forward)](const Frame& f) {
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
Kernel row_major_backward_data(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = sizes_of(conv);
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), w = c.in(2);
  const Slot dx = c.out(0), scratch = c.scratch(static_cast<size_t>(conv_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_data<T>(s, workers, f.at<const T>(dy), f.at<const T>(w), f.at<T>(dx), f.at<T>(scratch));
  };
}

template <typename T>
Kernel row_major_backward_weights(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = sizes_of(conv);
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), x = c.in(1);
  const Slot dw = c.out(1), scratch = c.scratch(static_cast<size_t>(conv_weights_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_weights<T>(s, workers, f.at<const T>(dy), f.at<const T>(x), f.at<T>(dw), f.at<T>(scratch));
  };
}

template <typename T>
Kernel row_major_backward_bias(KernelContext& c, const Convolution& conv) {
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
  WinogradSizes s{conv.x[0], conv.x[1], conv.w[0], h.input, w.input, h.output, w.output, h.before, w.before};
  s.tile = winograd_tile(s, max_threads());
  if (s.tile == 0) return std::nullopt;
  return s;
}

ChannelsLastConvolution channels_last_convolution(const KernelContext& c, const Convolution& conv) {
  return ChannelsLastConvolution(sizes_of(conv),
                                 c.precision() == Precision::kBf16 && convolutions_gain_from_pairs());
}

// y = activation(y) for n values, on this thread.
void apply(const Activation& activation, StoredOutput y, int64_t n) {
  if (!y.bf16) return activation.apply(n, y.floats());
  float piece[1024];
  for (int64_t i = 0; i < n; i += std::ssize(piece)) {
    const int64_t count = std::min<int64_t>(std::ssize(piece), n - i);
    widen_bf16(y.halves() + i, piece, count);
    activation.apply(count, piece);
    narrow_bf16(piece, y.halves() + i, count);
  }
}

Kernel winograd_kernel(KernelContext& c, const WinogradSizes& s, const Activation& activation) {
  const int threads = max_threads();
  const bool bf16 = c.wants_bf16(0);
  const LayoutPtr layout = channels_last(c.out_shape(0), bf16);
  const StoredSlot x = in_channels_last(c, 0);
  const Slot w = c.in(1, channels_last(c.shape(1))), bias = c.has_input(2) ? c.in(2) : Slot{},
             addend = c.has_input(3) ? c.in(3, layout) : Slot{};
  const StoredSlot y{addend.defined() ? c.out_inplace(0, {3}, layout) : c.out(0, layout), bf16};
  const Slot work = c.scratch(winograd_scratch(s, threads));
  const bool relu = activation.kind == Activation::Kind::kRelu;
  return [=, n = c.out_size(0), bytes = static_cast<size_t>(c.out_size(0)) * (bf16 ? 2 : 4)](const Frame& f) {
    const StoredOutput to = y.out(f);
    if (addend.defined() && addend.index != y.slot.index)
      copy_bytes(f.at<std::byte>(y.slot), f.at<const std::byte>(addend), bytes);
    winograd_forward(s, threads, x.in(f), f.at<const float>(w), f.at_or_null<const float>(bias),
                     addend.defined(), relu, to, f.at<void>(work));
    if (relu || activation.kind == Activation::Kind::kNone) return;
    parallel_for(n, 4, [&](int64_t begin, int64_t end) { apply(activation, to.from(begin), end - begin); });
  };
}

// For kernels that read and produce floats with channels last: values that are stored in bfloat16 are
// converted in memory of the node.
class Widened {
 public:
  Widened() = default;
  // For a second value: reuses the memory of an earlier value of the same size that is no longer needed.
  explicit Widened(const Widened& before) : free_(before.last_) {}

  Slot in(KernelContext& c, size_t i) {
    const StoredSlot stored = in_channels_last(c, i);
    if (!stored.bf16) return stored.slot;
    const int64_t n = c.size(i);
    const Slot floats = room(c, n);
    before_.push_back([=](const Frame& f) {
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        widen_bf16(f.at<const BFloat16>(stored.slot) + begin, f.at<float>(floats) + begin, end - begin);
      });
    });
    return floats;
  }
  Slot out(KernelContext& c, size_t o) {
    const StoredSlot stored = out_channels_last(c, o, c.wants_bf16(o));
    if (!stored.bf16) return stored.slot;
    const int64_t n = c.out_size(o);
    const Slot floats = room(c, n);
    after_.push_back([=](const Frame& f) {
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        narrow_bf16(f.at<const float>(floats) + begin, f.at<BFloat16>(stored.slot) + begin, end - begin);
      });
    });
    return floats;
  }
  // The given kernel between the conversions before and after it.
  Kernel around(Kernel kernel) {
    before_.push_back(std::move(kernel));
    for (Kernel& k : after_) before_.push_back(std::move(k));
    return chain(std::move(before_));
  }

 private:
  Slot room(KernelContext& c, int64_t n) {
    last_ = free_.defined() ? free_ : c.scratch(static_cast<size_t>(n) * sizeof(float));
    free_ = {};
    return last_;
  }

  Slot free_, last_;
  std::vector<Kernel> before_, after_;
};

// make(T{}) for the type of input 0.
template <typename Make>
Kernel typed(KernelContext& c, Make&& make) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = make(zero); })) c.reject_dtype(0);
  return kernel;
}

}  // namespace

std::optional<Kernel> row_major_conv(KernelContext& c) {
  const Convolution conv(c, 0, 1);
  return typed(c, [&](auto zero) { return row_major_forward<decltype(zero)>(c, conv); });
}

std::optional<Kernel> row_major_fused_conv(KernelContext& c) {
  const Convolution conv(c, 0, 1);
  const Activation activation = read_activation(c.node());
  return typed(c, [&](auto zero) { return row_major_fused<decltype(zero)>(c, conv, activation); });
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

Slot turned_weights(KernelContext& c, size_t i, const ChannelsLastDepthwise& conv,
                    std::vector<Kernel>& kernels) {
  if (const Tensor* known = c.constant(i)) {
    Tensor turned(DType::kFloat, {conv.turned_size()});
    conv.turn_weights(known->data<float>(), turned.data<float>());
    return c.fixed(std::move(turned));
  }
  const Slot w = c.in(i), turned = c.scratch(static_cast<size_t>(conv.turned_size()) * sizeof(float));
  kernels.push_back([=](const Frame& f) { conv.turn_weights(f.at<const float>(w), f.at<float>(turned)); });
  return turned;
}

Kernel channels_last_bias_gradient(KernelContext& c, StoredSlot dy) {
  const int64_t channels = c.shape(0)[1], points = c.size(0) / channels;
  const Reduction sum(Reduce::kSum, dy.bf16 ? DType::kBFloat16 : DType::kFloat, {points, channels},
                      {true, false});
  const Slot db = c.out(2), work = c.scratch(sum.scratch_bytes());
  return [=](const Frame& f) { sum.run(dy.in(f).data, f.at<float>(db), f.at<std::byte>(work)); };
}

// Depthwise convolutions read and produce floats.
std::optional<Kernel> channels_last_depthwise(KernelContext& c) {
  if (!suits_channels_last(c) || !stored_channels_last(c, 0) || c.size(0) == 0 || c.out_size(0) == 0)
    return std::nullopt;
  const ChannelsLastDepthwise conv(sizes_of(Convolution(c, 0, 1)));
  if (!conv.suits()) return std::nullopt;
  const Activation activation = read_activation(c.node());
  const LayoutPtr layout = channels_last(c.out_shape(0));
  Widened widened;
  std::vector<Kernel> kernels;
  const Slot x = widened.in(c, 0), w = turned_weights(c, 1, conv, kernels),
             bias = c.has_input(2) ? c.in(2) : Slot{}, addend = c.has_input(3) ? c.in(3, layout) : Slot{},
             y = widened.out(c, 0);
  kernels.push_back([=](const Frame& f) {
    conv.forward(f.at<const float>(x), f.at<const float>(w), f.at_or_null<const float>(bias),
                 f.at_or_null<const float>(addend), activation, f.at<float>(y));
  });
  return widened.around(chain(std::move(kernels)));
}

std::optional<Kernel> channels_last_depthwise_grad(KernelContext& c) {
  if (!suits_channels_last(c) || !(stored_channels_last(c, 0) || stored_channels_last(c, 1)) ||
      c.size(0) == 0 || c.size(1) == 0)
    return std::nullopt;
  const ChannelsLastDepthwise conv(sizes_of(Convolution(c, 1, 2)));
  if (!conv.suits()) return std::nullopt;
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  Widened gradient, data;
  const Slot dy = gradient.in(c, 0);
  std::vector<Kernel> kernels;
  if (wanted(0)) {
    const Slot w = turned_weights(c, 2, conv, kernels), dx = data.out(c, 0);
    kernels.push_back(data.around([=](const Frame& f) {
      conv.backward_data(f.at<const float>(dy), f.at<const float>(w), f.at<float>(dx));
    }));
  }
  if (wanted(1)) {
    Widened input(data);  // X is as large as dX
    const Slot x = input.in(c, 1), dw = c.out(1),
               work = c.scratch(static_cast<size_t>(conv.weights_work_size()) * sizeof(float));
    kernels.push_back(input.around([=](const Frame& f) {
      conv.backward_weights(f.at<const float>(dy), f.at<const float>(x), f.at<float>(dw), f.at<float>(work));
    }));
  }
  if (wanted(2)) kernels.push_back(channels_last_bias_gradient(c, {dy, false}));
  return gradient.around(chain(std::move(kernels)));
}

std::optional<Kernel> separable_conv(KernelContext& c) {
  const SeparableShapes shapes(c);
  if (c.out_size(0) == 0) return c.out(0), Kernel([](const Frame&) {});
  const SeparableConvolution conv(
      {shapes.x[0], shapes.expanded[1], shapes.expanded[1], shapes.expanded[1], three_axes(shapes.window)},
      shapes.channels, shapes.filters);
  c.expect(conv.suits(), "the windows or the dimensions are too large");
  Widened widened;
  std::vector<Kernel> kernels;
  struct StageSlots {
    Slot weights, bias;
    Activation activation;
    SeparableStage in(const Frame& f) const {
      return {f.at_or_null<const float>(weights), f.at_or_null<const float>(bias), activation};
    }
  };
  const auto stage = [&](size_t number, size_t i, auto&& packed) {
    if (!c.has_input(i)) return StageSlots{};
    return StageSlots{packed(), c.has_input(i + 1) ? c.in(i + 1) : Slot{}, separable_activation(c, number)};
  };
  const StageSlots first = stage(
      0, kSeparableFirst, [&] { return packed_weights(c, kSeparableFirst, *conv.first(), false, kernels); });
  const StageSlots middle =
      stage(1, kSeparableMiddle, [&] { return turned_weights(c, kSeparableMiddle, conv.middle(), kernels); });
  const StageSlots last = stage(
      2, kSeparableLast, [&] { return packed_weights(c, kSeparableLast, *conv.last(), false, kernels); });
  const bool folded = !suits_channels_last(c);  // then X and Y are row-major
  const LayoutPtr from = channels_last(c.shape(0)), to = channels_last(c.out_shape(0));
  const auto room = [&](const LayoutPtr& layout) { return c.scratch(layout->bytes()); };
  Slot x = folded ? c.in(0) : widened.in(c, 0), y = folded ? c.out(0) : widened.out(c, 0);
  if (folded && from) {
    const Slot plain = x;
    kernels.push_back(from->from_plain(plain, x = room(from)));
  }
  const Slot result = y;
  if (folded && to) y = room(to);
  const Slot work = c.scratch(static_cast<size_t>(conv.work_size()) * sizeof(float));
  kernels.push_back([=](const Frame& f) {
    conv.forward(f.at<const float>(x), first.in(f), middle.in(f), last.in(f), f.at<float>(y),
                 f.at<float>(work));
  });
  if (folded && to) kernels.push_back(to->to_plain(y, result));
  return widened.around(chain(std::move(kernels)));
}

std::optional<Kernel> channels_last_conv(KernelContext& c) {
  if (!suits_channels_last(c) || c.out_size(0) == 0) return std::nullopt;
  const Convolution described(c, 0, 1);
  const Activation activation = read_activation(c.node());
  if (const auto winograd = find_winograd(c, described)) return winograd_kernel(c, *winograd, activation);
  const ChannelsLastConvolution conv = channels_last_convolution(c, described);
  if (!conv.suits()) return std::nullopt;
  const bool bf16 = c.wants_bf16(0);
  std::vector<Kernel> kernels;
  const StoredSlot x = in_channels_last(c, 0);
  const Slot w = packed_weights(c, 1, conv, false, kernels), bias = c.has_input(2) ? c.in(2) : Slot{};
  const StoredSlot addend = c.has_input(3) ? in_channels_last(c, 3, bf16) : StoredSlot{};
  const LayoutPtr layout = channels_last(c.out_shape(0), bf16);
  const StoredSlot y{addend.slot.defined() ? c.out_inplace(0, {3}, layout) : c.out(0, layout), bf16};
  const Slot work = c.scratch(static_cast<size_t>(conv.forward_work(bf16)) * sizeof(float));
  kernels.push_back([=](const Frame& f) {
    conv.forward(x.in(f), f.at<const float>(w), f.at_or_null<const float>(bias), addend.in(f), activation,
                 y.out(f), f.at<float>(work));
  });
  return chain(std::move(kernels));
}

std::optional<Kernel> channels_last_conv_grad(KernelContext& c) {
  if (!suits_channels_last(c) || c.size(0) == 0 || c.size(1) == 0) return std::nullopt;
  const Convolution described(c, 1, 2);
  if (DepthwiseConvolution(sizes_of(described)).suits()) return std::nullopt;  // row-major
  const auto winograd = find_winograd(c, described);
  const ChannelsLastConvolution conv = channels_last_convolution(c, described);
  if (!winograd && !conv.suits()) return std::nullopt;
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  const int threads = max_threads();
  const StoredSlot dy = in_channels_last(c, 0);
  // The two gradients are computed one after the other, in the same memory.
  const auto bytes = [](int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); };
  const size_t for_data = !wanted(0) ? 0
                          : winograd ? winograd_scratch(winograd->transposed(), threads)
                                     : bytes(conv.backward_data_work(c.wants_bf16(0))),
               for_weights = !wanted(1) ? 0
                             : winograd ? winograd_weights_scratch(for_weight_gradient(*winograd), threads)
                                        : bytes(conv.backward_weights_work(dy.bf16));
  const Slot work = c.scratch(std::max(for_data, for_weights));
  std::vector<Kernel> kernels;
  if (wanted(0)) {
    const Slot w = winograd ? c.in(2, channels_last(c.shape(2))) : packed_weights(c, 2, conv, true, kernels);
    const StoredSlot dx = out_channels_last(c, 0, c.wants_bf16(0));
    kernels.push_back([=](const Frame& f) {
      if (winograd)
        winograd_backward_data(*winograd, threads, dy.in(f), f.at<const float>(w), dx.out(f),
                               f.at<void>(work));
      else
        conv.backward_data(dy.in(f), f.at<const float>(w), nullptr, dx.out(f), f.at<float>(work));
    });
  }
  if (wanted(1)) {
    const StoredSlot x = in_channels_last(c, 1);
    const Slot dw = c.out(1, channels_last(c.out_shape(1)));
    kernels.push_back([=](const Frame& f) {
      if (winograd)
        winograd_backward_weights(for_weight_gradient(*winograd), threads, x.in(f), dy.in(f), f.at<float>(dw),
                                  f.at<void>(work));
      else
        conv.backward_weights(dy.in(f), x.in(f), f.at<float>(dw), f.at<float>(work));
    });
  }
  if (wanted(2)) kernels.push_back(channels_last_bias_gradient(c, dy));
  return chain(std::move(kernels));
}

std::optional<Kernel> row_major_conv_grad(KernelContext& c) {
  return row_major_conv_grad(c, Convolution(c, 1, 2), {});
}

Kernel row_major_conv_grad(KernelContext& c, const Convolution& conv, ConvGradParts parts) {
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
    if (!parts.data && wanted(0)) parts.data = row_major_backward_data<T>(c, conv);
    if (!parts.weights && wanted(1)) parts.weights = row_major_backward_weights<T>(c, conv);
    if (!parts.bias && wanted(2)) parts.bias = row_major_backward_bias<T>(c, conv);
  });
  if (!known) c.reject_dtype(0);
  std::vector<Kernel> kernels;
  for (Kernel* kernel : {&parts.data, &parts.weights, &parts.bias})
    if (*kernel) kernels.push_back(std::move(*kernel));
  return chain(std::move(kernels));
}

}  // namespace ortrain
