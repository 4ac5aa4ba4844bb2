// Convolution: Conv, com.microsoft FusedConv and ConvGrad.
//
// Between operators values stay in the layout that oneDNN chose for the convolution that made them. Weights
// that are trained are brought into the wanted layout in each run, unless they are kept in it
// (ops/common/convolution_weights.h); constant ones once, when the Program is compiled. The gradient of
// weights lies as the weights do.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "backend/cpu/conv/portable_conv.h"
#include "backend/cpu/conv/winograd.h"
#include "backend/cpu/onednn/dnnl.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/convolution_weights.h"
#include "ops/common/window.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

void conv_shape(ShapeContext& c) {
  const Shape &x = c.shape(0), &w = c.shape(1);
  const Window window = read_convolution(c, x, w);
  c.expect(c.dtype(0) == c.dtype(1), "X and W must have one type, found ", to_string(c.dtype(0)), " and ",
           to_string(c.dtype(1)));
  if (c.has_input(2)) {
    c.expect(c.shape(2) == Shape{w[0]}, "the bias B must have shape [", w[0], "], found ",
             to_string(c.shape(2)));
    c.expect(c.dtype(2) == c.dtype(0), "X and B must have one type, found ", to_string(c.dtype(0)), " and ",
             to_string(c.dtype(2)));
  }
  c.output(0, c.dtype(0), output_shape(x[0], w[0], window));
}

// Y = activation(Conv(X, W, B) + Z).
void fused_conv_shape(ShapeContext& c) {
  conv_shape(c);
  if (!c.has_input(3)) return;
  const Shape &x = c.shape(0), &w = c.shape(1);
  const Shape y = output_shape(x[0], w[0], read_convolution(c, x, w));
  c.expect(c.shape(3) == y && c.dtype(3) == c.dtype(0), "the addend Z must be ", to_string(c.dtype(0)),
           to_string(y), ", found ", to_string(c.dtype(3)), to_string(c.shape(3)));
}

void conv_grad_shape(ShapeContext& c) {
  const Shape &x = c.shape(1), &w = c.shape(2);
  const Window window = read_convolution(c, x, w);
  const Shape y = output_shape(x[0], w[0], window);
  c.expect(c.shape(0) == y, "the gradient dY must have shape ", to_string(y), ", found ",
           to_string(c.shape(0)));
  c.expect(c.dtype(0) == c.dtype(1) && c.dtype(1) == c.dtype(2), "dY, X and W must have one type, found ",
           to_string(c.dtype(0)), ", ", to_string(c.dtype(1)), " and ", to_string(c.dtype(2)));
  c.output(0, c.dtype(1), x);
  c.output(1, c.dtype(1), w);
  c.output(2, c.dtype(1), {w[0]});
}

// Where X and W are among the inputs, and what the convolution looks like.
struct Convolution {
  Shape x, w, y;
  int64_t groups;
  Window window;

  Convolution(const NodeContext& c, size_t x_at, size_t w_at)
      : x(c.shape(x_at)),
        w(c.shape(w_at)),
        groups(c.node().int_or("group", 1)),
        window(read_convolution(c, x, w)) {
    y = output_shape(x[0], w[0], window);
  }
  ConvSizes sizes() const { return {x[0], x[1], w[0], groups, three_axes(window)}; }
};

// What FusedConv does to each element in the end. `a` and `b` are the operator's alpha and beta, or the
// bounds.
struct Activation {
  enum class Kind { kNone, kRelu, kLeakyRelu, kClip, kSigmoid, kTanh, kHardSigmoid };
  Kind kind = Kind::kNone;
  float a = 0, b = 0;

  template <typename T>
  T operator()(T v) const {
    const T alpha = static_cast<T>(a), beta = static_cast<T>(b);
    switch (kind) {
      case Kind::kRelu:
        return v < T(0) ? T(0) : v;
      case Kind::kLeakyRelu:
        return v < T(0) ? alpha * v : v;
      case Kind::kClip:
        return v < alpha ? alpha : v > beta ? beta : v;
      case Kind::kSigmoid:
        return T(1) / (T(1) + std::exp(-v));
      case Kind::kTanh:
        return std::tanh(v);
      case Kind::kHardSigmoid:
        return std::min(T(1), std::max(T(0), alpha * v + beta));
      case Kind::kNone:
        break;
    }
    return v;
  }
};

Activation read_activation(const Node& node) {
  using Kind = Activation::Kind;
  static constexpr struct {
    std::string_view name;
    Kind kind;
    float a, b;
  } kKnown[] = {
      {"", Kind::kNone, 0, 0},
      {"Relu", Kind::kRelu, 0, 0},
      {"LeakyRelu", Kind::kLeakyRelu, 0.01f, 0},
      {"Clip", Kind::kClip, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max()},
      {"Sigmoid", Kind::kSigmoid, 0, 0},
      {"Tanh", Kind::kTanh, 0, 0},
      {"HardSigmoid", Kind::kHardSigmoid, 0.2f, 0.5f},
  };
  const std::string name = node.string_or("activation", "");
  for (const auto& known : kKnown) {
    if (known.name != name) continue;
    Activation activation{known.kind, known.a, known.b};
    if (const auto at = node.attributes.find("activation_params"); at != node.attributes.end()) {
      const auto* given = std::get_if<std::vector<float>>(&at->second);
      require(given && given->size() <= 2, ErrorCode::kInvalidGraph, node.label(),
              ": attribute activation_params must hold at most two floats");
      if (given->size() > 0) activation.a = (*given)[0];
      if (given->size() > 1) activation.b = (*given)[1];
    }
    return activation;
  }
  fail(ErrorCode::kInvalidGraph, node.label(), ": attribute activation is '", name,
       "', expected Relu, LeakyRelu, Clip, Sigmoid, Tanh or HardSigmoid");
}

// -----------------------------------------------------------------------------------------------------------
// Portable kernels.

template <typename T>
Kernel portable_forward(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = conv.sizes();
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
      for (int64_t i = begin; i < end; ++i)
        values[i] = activation(addend ? values[i] + addend[i] : values[i]);
    });
  };
}

template <typename T>
Kernel portable_backward_data(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = conv.sizes();
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), w = c.in(2);
  const Slot dx = c.out(0), scratch = c.scratch(static_cast<size_t>(conv_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_data<T>(s, workers, f.at<const T>(dy), f.at<const T>(w), f.at<T>(dx), f.at<T>(scratch));
  };
}

template <typename T>
Kernel portable_backward_weights(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = conv.sizes();
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), x = c.in(1);
  const Slot dw = c.out(1), scratch = c.scratch(static_cast<size_t>(conv_weights_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_weights<T>(s, workers, f.at<const T>(dy), f.at<const T>(x), f.at<T>(dw), f.at<T>(scratch));
  };
}

template <typename T>
Kernel portable_backward_bias(KernelContext& c, const Convolution& conv) {
  const ConvSizes s = conv.sizes();
  const Slot dy = c.in(0), db = c.out(2);
  return [=](const Frame& f) { conv_backward_bias<T>(s, f.at<const T>(dy), f.at<T>(db)); };
}

// -----------------------------------------------------------------------------------------------------------
// oneDNN.

#if ORTRAIN_ONEDNN

using dnnl::memory;
using Forward = dnnl::convolution_forward::primitive_desc;
using BackwardData = dnnl::convolution_backward_data::primitive_desc;
using BackwardWeights = dnnl::convolution_backward_weights::primitive_desc;

using Layouts = std::vector<std::pair<memory::desc, memory::desc>>;  // of X and Y, the best first

// A convolution in oneDNN's terms.
struct DnnlConvolution {
  DnnlType type;  // of the operands; the gradients of weights and bias are always float
  DnnlType made;  // of what is made of them, Y or dX
  Shape x, y, w;  // grouped weights have the group as an axis of their own, in front
  int64_t filters;
  bool depthwise;
  memory::dims strides, dilations, before, after;

  DnnlConvolution(const Convolution& conv, DnnlType operands, DnnlType result)
      : type(operands),
        made(result),
        x(conv.x),
        y(conv.y),
        w(conv.w),
        filters(conv.w[0]),
        depthwise(conv.groups > 1 && conv.groups == conv.x[1] && conv.groups == conv.w[0]) {
    if (conv.groups > 1) {
      w[0] /= conv.groups;
      w.insert(w.begin(), conv.groups);
    }
    for (const WindowAxis& a : conv.window) {
      strides.push_back(a.stride);
      dilations.push_back(a.dilation - 1);
      before.push_back(a.before);
      after.push_back(a.reach());
    }
  }

  // Those that the forward pass is offered wherever X comes from.
  Layouts usual_layouts() const {
    const memory::desc any_x = dnnl_any(x, type), y_last = dnnl_channels_last(y, made);
    return {{any_x, dnnl_any(y, made)}, {any_x, y_last}, {dnnl_channels_last(x, type), y_last}};
  }

  // Descriptions for given layouts of X and Y; nothing where oneDNN has no primitive for them.
  std::optional<Forward> forward(const memory::desc& src, const memory::desc& dst, bool bias,
                                 const dnnl::primitive_attr& attr) const {
    try {
      const auto kind = dnnl::prop_kind::forward_training;
      const auto algorithm = dnnl::algorithm::convolution_direct;
      if (bias)
        return Forward(dnnl_engine(), kind, algorithm, src, dnnl_any(w, type), dnnl_plain({filters}), dst,
                       strides, dilations, before, after, attr);
      return Forward(dnnl_engine(), kind, algorithm, src, dnnl_any(w, type), dst, strides, dilations, before,
                     after, attr);
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
  std::optional<BackwardData> backward_data(const memory::desc& src, const memory::desc& dst,
                                            const Forward& hint) const {
    try {
      return BackwardData(dnnl_engine(), dnnl::algorithm::convolution_direct, src, dnnl_any(w, type), dst,
                          strides, dilations, before, after, hint, dnnl_attr());
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
  std::optional<BackwardWeights> backward_weights(const memory::desc& src, const memory::desc& dst, bool bias,
                                                  const Forward& hint) const {
    try {
      const auto algorithm = dnnl::algorithm::convolution_direct;
      if (bias)
        return BackwardWeights(dnnl_engine(), algorithm, src, dnnl_any(w), dnnl_plain({filters}), dst,
                               strides, dilations, before, after, hint, dnnl_attr());
      return BackwardWeights(dnnl_engine(), algorithm, src, dnnl_any(w), dst, strides, dilations, before,
                             after, hint, dnnl_attr());
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
};

// The first of `candidates` that gives an optimized primitive whose result lies without padding, so that
// elementwise operators can walk it; failing that an optimized one, failing that any that is not oneDNN's
// reference loops. For depthwise convolutions the primitives that are not made for them do sixteen times the
// work, and count as not optimized.
template <typename Make, typename Result>
auto choose(const DnnlConvolution& conv, const Layouts& candidates, Make make, Result result)
    -> decltype(make(memory::desc(), memory::desc())) {
  decltype(make(memory::desc(), memory::desc())) padded, slow;
  for (const auto& [x, y] : candidates) {
    auto pd = make(x, y);
    if (!pd) continue;
    // Such as jit_dw:avx2 and, for channels last, brdgmm_dw:avx512_core.
    const bool fitting =
        !conv.depthwise || std::string_view(pd->impl_info_str()).find("_dw:") != std::string_view::npos;
    if (fitting && is_fast(*pd)) {
      if (is_dense(result(*pd))) return pd;
      if (!padded) padded = pd;
    } else if (!slow && !std::string_view(pd->impl_info_str()).starts_with("ref")) {
      slow = pd;
    }
  }
  return padded ? padded : slow;
}

// The forward primitive for an X that is input `x_at`. ConvGrad asks for it too, to find the layouts that the
// values around the convolution have.
std::optional<Forward> choose_forward(const KernelContext& c, const DnnlConvolution& conv, size_t x_at,
                                      bool bias, const dnnl::primitive_attr& attr = dnnl_attr()) {
  Layouts candidates;
  if (c.in_layout(x_at)) {
    if (const auto stored = dnnl_stored(c, x_at, conv.type)) {
      candidates.emplace_back(*stored, dnnl_any(conv.y, conv.made));
      // The depthwise primitives keep the order of X, and do so only when told.
      if (conv.depthwise) candidates.emplace_back(*stored, dnnl_channels_last(conv.y, conv.made));
    }
  }
  for (auto& layouts : conv.usual_layouts()) candidates.push_back(std::move(layouts));
  return choose(
      conv, candidates,
      [&](const memory::desc& x, const memory::desc& y) { return conv.forward(x, y, bias, attr); },
      [](const Forward& pd) { return pd.dst_desc(); });
}

// The types of operands that are tried, the best first.
std::vector<DnnlType> operand_types(const KernelContext& c) {
  if (c.precision() == Precision::kBf16) return {DnnlType::bf16, DnnlType::f32};
  return {DnnlType::f32};
}

// How weights of the given shape lie that are input i, as far as oneDNN can describe it; where it cannot they
// are to be had row-major.
struct StoredWeights {
  LayoutPtr layout;
  memory::desc desc;

  StoredWeights(const KernelContext& c, size_t i, const Shape& shape) : desc(dnnl_plain(shape)) {
    const LayoutPtr stored = c.in_layout(i);
    if (!stored || !is_dnnl(stored) || stored->bf16()) return;
    // Those that a convolution proposed have the group as an axis, those that came about otherwise have not.
    const memory::desc described = dnnl_desc(stored, c.shape(i));
    if (described.get_dims() != shape) return;
    layout = stored;
    desc = described;
  }
};

// The weights (input i) in the layout that a primitive wants: a slot, and the kernel that fills it where they
// have to be brought into that layout in each run. They go into `scratch` then, which is asked for where it
// is not given.
Slot fetch_weights(KernelContext& c, size_t i, const Shape& shape, const memory::desc& wanted,
                   std::vector<Kernel>& kernels, Slot scratch = {}) {
  const StoredWeights stored(c, i, shape);
  const memory::desc& from = stored.desc;
  const Slot weights = c.in(i, stored.layout);
  if (same_bytes(from, wanted)) return weights;
  if (const Tensor* known = c.constant(i)) {
    Tensor packed(DType::kUInt8, {static_cast<int64_t>(wanted.get_size())});
    dnnl::memory source(from, dnnl_engine(), known->raw()), target(wanted, dnnl_engine(), packed.raw());
    dnnl::reorder(source, target).execute(dnnl_stream(), source, target);
    dnnl_stream().wait();
    return c.fixed(std::move(packed));
  }
  if (!scratch.defined()) scratch = c.scratch(wanted.get_size());
  kernels.push_back(dnnl_reorder(from, weights, wanted, scratch));
  return scratch;
}

// What is done to the result in the primitive: an addend that lies in its place already, then the activation.
dnnl::primitive_attr attr_with(const Activation& activation, bool addend) {
  using Kind = Activation::Kind;
  dnnl::post_ops after;
  if (addend) after.append_sum();
  const auto eltwise = [&](dnnl::algorithm algorithm, float a = 0, float b = 0) {
    after.append_eltwise(algorithm, a, b);
  };
  switch (activation.kind) {
    case Kind::kRelu:
      eltwise(dnnl::algorithm::eltwise_relu);
      break;
    case Kind::kLeakyRelu:
      eltwise(dnnl::algorithm::eltwise_relu, activation.a);
      break;
    case Kind::kClip:
      eltwise(dnnl::algorithm::eltwise_clip, activation.a, activation.b);
      break;
    case Kind::kSigmoid:
      eltwise(dnnl::algorithm::eltwise_logistic);
      break;
    case Kind::kTanh:
      eltwise(dnnl::algorithm::eltwise_tanh);
      break;
    case Kind::kHardSigmoid:
      eltwise(dnnl::algorithm::eltwise_hardsigmoid, activation.a, activation.b);
      break;
    case Kind::kNone:
      break;
  }
  dnnl::primitive_attr attr = dnnl_attr();
  attr.set_post_ops(after);
  return attr;
}

// A convolution by Winograd's algorithm, between values that lie as oneDNN's convolution wants them.
struct WinogradConvolution {
  WinogradSizes sizes;
  memory::desc weights;
  int threads;
};

// That of the node, for an X and a Y of the given layouts; nothing where it does not suit.
std::optional<WinogradConvolution> find_winograd(const KernelContext& c, const DnnlConvolution& conv,
                                                 const memory::desc& x, const memory::desc& y) {
  if (!c.node().int_or(kWinograd, 0) || conv.w.size() != 4 || conv.w[2] != 3 || conv.w[3] != 3)
    return std::nullopt;
  const memory::dims ones{1, 1}, zeros{0, 0};
  if (conv.strides != ones || conv.dilations != zeros) return std::nullopt;
  for (const memory::dims& pads : {conv.before, conv.after})
    if (pads[0] < 0 || pads[0] > 2 || pads[1] < 0 || pads[1] > 2) return std::nullopt;
  using Tag = memory::format_tag;
  const auto lies = [](const memory::desc& desc, const Shape& shape, Tag tag) {
    return desc == memory::desc(shape, DnnlType::f32, tag);
  };
  for (const auto& [block, values, weights] :
       {std::tuple{16, Tag::nChw16c, Tag::OIhw16i16o}, std::tuple{8, Tag::nChw8c, Tag::OIhw8i8o}}) {
    if (conv.x[1] % block || conv.y[1] % block || !lies(x, conv.x, values) || !lies(y, conv.y, values))
      continue;
    WinogradConvolution found{{conv.x[0], conv.x[1], conv.y[1], conv.x[2], conv.x[3], conv.y[2], conv.y[3],
                               conv.before[0], conv.before[1], block},
                              {conv.w, DnnlType::f32, weights},
                              max_threads()};
    if (suits_winograd(found.sizes, found.threads)) return found;
  }
  return std::nullopt;
}

// A value that Winograd's convolution reads or makes, float or bfloat16.
struct WinogradValue {
  Slot slot;
  bool bf16 = false;

  WinogradInput in(const Frame& f) const { return {f.at<void>(slot), bf16}; }
  WinogradOutput out(const Frame& f) const { return {f.at<void>(slot), bf16}; }
};

// Input i in the order `wanted`: in bfloat16 where it lies so.
WinogradValue winograd_operand(KernelContext& c, size_t i, const memory::desc& wanted) {
  const LayoutPtr stored = c.in_layout(i);
  const auto narrow = dnnl_retyped(wanted, DnnlType::bf16);
  if (stored && stored->bf16() && narrow) return {c.in(i, dnnl_layout(*narrow)), true};
  return {c.in(i, dnnl_layout(wanted))};
}

WinogradValue winograd_result(KernelContext& c, size_t o, const memory::desc& made) {
  if (c.wants_bf16(o))
    if (const auto narrow = dnnl_retyped(made, DnnlType::bf16)) return {c.out(o, dnnl_layout(*narrow)), true};
  return {c.out(o, dnnl_layout(made))};
}

Kernel winograd_forward_kernel(KernelContext& c, const Forward& pd, const WinogradConvolution& found,
                               bool relu) {
  std::vector<Kernel> kernels;
  const WinogradValue x = winograd_operand(c, 0, pd.src_desc());
  const Slot w = fetch_weights(c, 1, found.weights.get_dims(), found.weights, kernels);
  const Slot bias = c.has_input(2) ? c.in(2) : Slot{};
  const bool add = c.has_input(3);
  const Slot addend = add ? c.in(3, dnnl_layout(pd.dst_desc())) : Slot{};
  const WinogradValue y = add ? WinogradValue{c.out_inplace(0, {3}, dnnl_layout(pd.dst_desc()))}
                              : winograd_result(c, 0, pd.dst_desc());
  const Slot scratch = c.scratch(winograd_scratch(found.sizes, found.threads));
  kernels.push_back(
      [=, s = found.sizes, threads = found.threads, bytes = pd.dst_desc().get_size()](const Frame& f) {
        if (add && addend.index != y.slot.index)
          std::memcpy(f.at<std::byte>(y.slot), f.at<std::byte>(addend), bytes);
        winograd_forward(s, threads, x.in(f), f.at<float>(w), f.at_or_null<float>(bias), add, relu, y.out(f),
                         f.at<void>(scratch));
      });
  return one_after_the_other(std::move(kernels));
}

Kernel dnnl_forward(KernelContext& c, const Convolution& sizes, const Activation& activation, DnnlType type) {
  const bool has_bias = c.has_input(2), has_addend = c.has_input(3);
  const DnnlConvolution conv(sizes, type, c.wants_bf16(0) ? type : DnnlType::f32);
  const std::optional<Forward> pd = choose_forward(c, conv, 0, has_bias, attr_with(activation, has_addend));
  if (!pd || (type != DnnlType::f32 && !is_fast(*pd))) return nullptr;
  const bool relu = activation.kind == Activation::Kind::kRelu;
  if (relu || activation.kind == Activation::Kind::kNone)
    if (const auto found = find_winograd(c, conv, pd->src_desc(), pd->dst_desc()))
      return winograd_forward_kernel(c, *pd, *found, relu);
  std::vector<Kernel> kernels, after;
  const Slot x = dnnl_operand(c, 0, pd->src_desc(), kernels);
  const Slot w = fetch_weights(c, 1, conv.w, pd->weights_desc(), kernels);
  const Slot bias = has_bias ? c.in(2) : Slot{};
  const LayoutPtr layout = dnnl_layout(pd->dst_desc());
  const Slot addend = has_addend ? c.in(3, layout) : Slot{};
  const Slot y = has_addend ? c.out_inplace(0, {3}, layout) : dnnl_result(c, 0, pd->dst_desc(), after);
  if (has_addend && addend.index != y.index)
    kernels.push_back([=, bytes = pd->dst_desc().get_size()](const Frame& f) {
      std::memcpy(f.at<std::byte>(y), f.at<std::byte>(addend), bytes);
    });
  kernels.push_back(dnnl_kernel(c, dnnl::convolution_forward(*pd), pd->scratchpad_desc(),
                                {{DNNL_ARG_SRC, pd->src_desc(), x},
                                 {DNNL_ARG_WEIGHTS, pd->weights_desc(), w},
                                 {DNNL_ARG_BIAS, dnnl_plain({conv.filters}), bias},
                                 {DNNL_ARG_DST, pd->dst_desc(), y}}));
  for (Kernel& kernel : after) kernels.push_back(std::move(kernel));
  return one_after_the_other(std::move(kernels));
}

// The layouts that a backward primitive is offered: those of the forward pass, then those in which dY came.
// `made` is the type of X or dX.
Layouts backward_layouts(const KernelContext& c, const DnnlConvolution& conv, const Forward& forward,
                         DnnlType made) {
  const std::optional<memory::desc> x = dnnl_retyped(forward.src_desc(), made),
                                    y = dnnl_retyped(forward.dst_desc(), conv.type);
  Layouts candidates;
  if (x && y) candidates.emplace_back(*x, *y);
  if (c.in_layout(0)) {
    if (const auto dy = dnnl_stored(c, 0, conv.type)) {
      if (x) candidates.emplace_back(*x, *dy);
      candidates.emplace_back(dnnl_any(conv.x, made), *dy);
    }
  }
  candidates.emplace_back(dnnl_any(conv.x, made), dnnl_any(conv.y, conv.type));
  candidates.emplace_back(dnnl_channels_last(conv.x, made), dnnl_channels_last(conv.y, conv.type));
  return candidates;
}

// What both halves of a ConvGrad share: dY as it was fetched for the first, and, for they run one after the
// other, the memory through which weights and their gradient pass into another layout.
struct BackwardShare {
  memory::desc desc;
  Slot slot;
  Slot scratch;
  size_t scratch_bytes = 0;

  Slot room(KernelContext& c, const DnnlConvolution& conv, const memory::desc& wanted) {
    if (scratch_bytes < wanted.get_size()) {
      scratch_bytes = std::max(wanted.get_size(), dnnl_plain(conv.w).get_size());
      scratch = c.scratch(scratch_bytes);
    }
    return scratch;
  }

  Slot fetch(KernelContext& c, const memory::desc& wanted, std::vector<Kernel>& kernels) {
    if (!slot.defined() || !same_bytes(desc, wanted)) {
      slot = dnnl_operand(c, 0, wanted, kernels);
      desc = wanted;
    }
    return slot;
  }
};

Kernel winograd_data_kernel(KernelContext& c, const DnnlConvolution& conv, const BackwardData& pd,
                            const WinogradConvolution& found, BackwardShare& share) {
  std::vector<Kernel> kernels;
  const WinogradValue dy = winograd_operand(c, 0, pd.diff_dst_desc());
  const bool passes = !c.constant(2) && !same_bytes(StoredWeights(c, 2, conv.w).desc, found.weights);
  const Slot w = fetch_weights(c, 2, conv.w, found.weights, kernels,
                               passes ? share.room(c, conv, found.weights) : Slot{});
  const WinogradValue dx = winograd_result(c, 0, pd.diff_src_desc());
  const Slot scratch = c.scratch(winograd_scratch(found.sizes.turned(), found.threads));
  kernels.push_back([=, s = found.sizes, threads = found.threads](const Frame& f) {
    winograd_backward_data(s, threads, dy.in(f), f.at<float>(w), dx.out(f), f.at<void>(scratch));
  });
  return one_after_the_other(std::move(kernels));
}

Kernel dnnl_backward_data(KernelContext& c, const DnnlConvolution& conv, const Forward& forward,
                          BackwardShare& share) {
  const auto pd = choose(
      conv, backward_layouts(c, conv, forward, conv.made),
      [&](const memory::desc& x, const memory::desc& y) { return conv.backward_data(x, y, forward); },
      [](const BackwardData& d) { return d.diff_src_desc(); });
  if (!pd || (conv.type != DnnlType::f32 && !is_fast(*pd))) return nullptr;
  if (const auto found = find_winograd(c, conv, pd->diff_src_desc(), pd->diff_dst_desc()))
    return winograd_data_kernel(c, conv, *pd, *found, share);
  std::vector<Kernel> kernels, after;
  const Slot dy = share.fetch(c, pd->diff_dst_desc(), kernels);
  const bool passes = !c.constant(2) && !same_bytes(StoredWeights(c, 2, conv.w).desc, pd->weights_desc());
  const Slot w = fetch_weights(c, 2, conv.w, pd->weights_desc(), kernels,
                               passes ? share.room(c, conv, pd->weights_desc()) : Slot{});
  const Slot dx = dnnl_result(c, 0, pd->diff_src_desc(), after);
  kernels.push_back(dnnl_kernel(c, dnnl::convolution_backward_data(*pd), pd->scratchpad_desc(),
                                {{DNNL_ARG_DIFF_DST, pd->diff_dst_desc(), dy},
                                 {DNNL_ARG_WEIGHTS, pd->weights_desc(), w},
                                 {DNNL_ARG_DIFF_SRC, pd->diff_src_desc(), dx}}));
  for (Kernel& kernel : after) kernels.push_back(std::move(kernel));
  return one_after_the_other(std::move(kernels));
}

Kernel winograd_weights_kernel(KernelContext& c, const DnnlConvolution& conv, const BackwardWeights& pd,
                               const WinogradConvolution& found, bool bias, BackwardShare& share) {
  std::vector<Kernel> kernels;
  const WinogradValue dy = winograd_operand(c, 0, pd.diff_dst_desc()),
                      x = winograd_operand(c, 1, pd.src_desc());
  const StoredWeights stored(c, 2, conv.w);
  const Slot dw = c.out(1, stored.layout), db = bias ? c.out(2) : Slot{};
  const bool direct = same_bytes(stored.desc, found.weights);
  const Slot target = direct ? dw : share.room(c, conv, found.weights);
  const Slot scratch = c.scratch(winograd_weights_scratch(found.sizes, found.threads));
  kernels.push_back([=, s = found.sizes, threads = found.threads](const Frame& f) {
    winograd_backward_weights(s, threads, x.in(f), dy.in(f), f.at<float>(target), f.at_or_null<float>(db),
                              f.at<void>(scratch));
  });
  if (!direct) kernels.push_back(dnnl_reorder(found.weights, target, stored.desc, dw));
  return one_after_the_other(std::move(kernels));
}

// dW, and dB where it is wanted.
Kernel dnnl_backward_weights(KernelContext& c, const DnnlConvolution& conv, const Forward& forward, bool bias,
                             BackwardShare& share) {
  const auto pd = choose(
      conv, backward_layouts(c, conv, forward, conv.type),
      [&](const memory::desc& x, const memory::desc& y) {
        return conv.backward_weights(x, y, bias, forward);
      },
      [](const BackwardWeights& d) { return d.src_desc(); });
  if (!pd || (conv.type != DnnlType::f32 && !is_fast(*pd))) return nullptr;
  if (const auto found = find_winograd(c, conv, pd->src_desc(), pd->diff_dst_desc()))
    return winograd_weights_kernel(c, conv, *pd, *found, bias, share);
  std::vector<Kernel> kernels;
  const Slot dy = share.fetch(c, pd->diff_dst_desc(), kernels);
  const Slot x = dnnl_operand(c, 1, pd->src_desc(), kernels);
  const StoredWeights stored(c, 2, conv.w);
  const Slot dw = c.out(1, stored.layout), db = bias ? c.out(2) : Slot{};
  const memory::desc made = pd->diff_weights_desc();
  const bool direct = same_bytes(stored.desc, made);
  const Slot target = direct ? dw : share.room(c, conv, made);
  kernels.push_back(dnnl_kernel(c, dnnl::convolution_backward_weights(*pd), pd->scratchpad_desc(),
                                {{DNNL_ARG_SRC, pd->src_desc(), x},
                                 {DNNL_ARG_DIFF_DST, pd->diff_dst_desc(), dy},
                                 {DNNL_ARG_DIFF_WEIGHTS, made, target},
                                 {DNNL_ARG_DIFF_BIAS, dnnl_plain({conv.filters}), db}}));
  if (!direct) kernels.push_back(dnnl_reorder(made, target, stored.desc, dw));
  return one_after_the_other(std::move(kernels));
}

// A node whose X is not known yet.
class WithoutX : public NodeContext {
 public:
  WithoutX(const Node& node, const Shape& w) : NodeContext(node, 0), w_(w) {
    constexpr int64_t kBatch = 16, kExtent = 32, kMost = 1 << 20;
    const std::vector<int64_t> dilations = node.ints_or("dilations", {});
    x_ = {kBatch, w[1] * std::clamp<int64_t>(node.int_or("group", 1), 1, w[0])};
    for (size_t a = 0; a + 2 < w.size(); ++a)
      x_.push_back(kExtent +
                   w[a + 2] * (a < dilations.size() ? std::clamp<int64_t>(dilations[a], 1, kMost) : 1));
  }
  DType dtype(size_t) const override { return DType::kFloat; }
  const Shape& shape(size_t i) const override { return i == 0 ? x_ : w_; }
  const Tensor* constant(size_t) const override { return nullptr; }

 private:
  Shape x_, w_;
};

#endif

// -----------------------------------------------------------------------------------------------------------

Kernel conv_kernel(KernelContext& c) {
  const Convolution conv(c, 0, 1);
#if ORTRAIN_ONEDNN
  if (suits_onednn(c))
    for (const DnnlType type : operand_types(c))
      if (Kernel kernel = dnnl_forward(c, conv, {}, type)) return kernel;
#endif
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = portable_forward<decltype(zero)>(c, conv); }))
    c.reject_dtype(0);
  return kernel;
}

Kernel fused_conv_kernel(KernelContext& c) {
  const Convolution conv(c, 0, 1);
  const Activation activation = read_activation(c.node());
#if ORTRAIN_ONEDNN
  if (suits_onednn(c))
    for (const DnnlType type : operand_types(c))
      if (Kernel kernel = dnnl_forward(c, conv, activation, type)) return kernel;
#endif
  Kernel kernel;
  if (!visit_floating(c.dtype(0),
                      [&](auto zero) { kernel = portable_fused<decltype(zero)>(c, conv, activation); }))
    c.reject_dtype(0);
  return kernel;
}

Kernel conv_grad_kernel(KernelContext& c) {
  const Convolution conv(c, 1, 2);
  // An output may have a name and no reader: the gradient of the model's input, most of all.
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  Kernel data, weights, bias;
#if ORTRAIN_ONEDNN
  if (suits_onednn(c)) {
    BackwardShare share;
    for (const DnnlType type : operand_types(c)) {
      const DnnlConvolution described(conv, type, c.wants_bf16(0) ? type : DnnlType::f32);
      const auto forward = choose_forward(c, {conv, type, type}, 1, false);
      if (!forward) continue;
      if (wanted(0) && !data) data = dnnl_backward_data(c, described, *forward, share);
      if (wanted(1) && !weights) {
        weights = dnnl_backward_weights(c, described, *forward, wanted(2), share);
        if (weights && wanted(2)) bias = [](const Frame&) {};  // made with the weights
      }
    }
  }
#endif
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    if (!data && wanted(0)) data = portable_backward_data<T>(c, conv);
    if (!weights && wanted(1)) weights = portable_backward_weights<T>(c, conv);
    if (!bias && wanted(2)) bias = portable_backward_bias<T>(c, conv);
  });
  if (!known) c.reject_dtype(0);
  std::vector<Kernel> kernels;
  for (Kernel* kernel : {&data, &weights, &bias})
    if (*kernel) kernels.push_back(std::move(*kernel));
  return one_after_the_other(std::move(kernels));
}

// From the gradient of the sum that the convolution gives.
void set_conv_gradients(GradientContext& g, const std::string& dy) {
  Attributes attributes = g.node().attributes;
  attributes.erase("activation");
  attributes.erase("activation_params");
  const size_t outputs = g.needs(2) ? 3 : g.needs(1) ? 2 : 1;
  const auto d = g.emit("ConvGrad", {dy, g.x(0), g.x(1)}, outputs, attributes, kMicrosoft);
  for (size_t i = 0; i < outputs; ++i)
    if (g.needs(i)) g.set(i, d[i]);
}

void conv_gradient(GradientContext& g) { set_conv_gradients(g, g.dy(0)); }

// All activations are such that their derivative follows from what they give.
std::string activation_gradient(GradientContext& g) {
  const Activation activation = read_activation(g.node());
  const Expression dy(g, g.dy(0)), y(g, g.y(0));
  const double a = static_cast<double>(activation.a), b = static_cast<double>(activation.b);
  using Kind = Activation::Kind;
  switch (activation.kind) {
    case Kind::kRelu:
      return dy.call("ReluGrad", y, {}, kMicrosoft);
    case Kind::kLeakyRelu:
      if (a < 0) g.reject("there is no gradient for LeakyRelu with a negative slope");
      return dy.call("LeakyReluGrad", y, {{"alpha", activation.a}}, kMicrosoft);
    case Kind::kClip:
      return (y > a && y < b).as(dy) * dy;
    case Kind::kSigmoid:
      return dy.call("SigmoidGrad", y, {}, kMicrosoft);
    case Kind::kTanh:
      return dy.call("TanhGrad", y, {}, kMicrosoft);
    case Kind::kHardSigmoid:
      return (y > 0.0 && y < 1.0).as(dy) * dy * a;
    case Kind::kNone:
      break;
  }
  return dy;
}

void fused_conv_gradient(GradientContext& g) {
  const std::string d = activation_gradient(g);
  if (g.needs(0) || g.needs(1) || g.needs(2)) set_conv_gradients(g, d);
  if (g.needs(3)) g.set(3, d);
}

void conv_grad_gradient(GradientContext& g) { product_grad_gradient(g, "Conv"); }

ORTRAIN_OPERATOR({.type = "Conv",
                  .shape = conv_shape,
                  .kernel = conv_kernel,
                  .gradient = conv_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FusedConv",
                  .shape = fused_conv_shape,
                  .kernel = fused_conv_kernel,
                  .gradient = fused_conv_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ConvGrad",
                  .shape = conv_grad_shape,
                  .kernel = conv_grad_kernel,
                  .gradient = conv_grad_gradient,
                  .takes_bf16 = true});

}  // namespace

bool reads_convolution_weights(const Node& node, size_t i) {
  if (node.domain.empty()) return node.op_type == "Conv" && i == 1;
  if (node.domain != kMicrosoft) return false;
  return (node.op_type == "FusedConv" && i == 1) || (node.op_type == "ConvGrad" && i == 2);
}

LayoutPtr convolution_weights_order([[maybe_unused]] const Node& node, [[maybe_unused]] const Shape& w) {
#if ORTRAIN_ONEDNN
  if (w.size() < 3 || element_count(w) == 0) return nullptr;
  try {
    const WithoutX context(node, w);
    const DnnlConvolution conv(Convolution(context, 0, 1), DnnlType::f32, DnnlType::f32);
    const std::optional<Forward> pd = choose(
        conv, conv.usual_layouts(),
        [&](const memory::desc& x, const memory::desc& y) { return conv.forward(x, y, false, dnnl_attr()); },
        [](const Forward& made) { return made.dst_desc(); });
    if (pd && is_fast(*pd) && is_dense(pd->weights_desc())) return dnnl_layout(pd->weights_desc());
  } catch (const Error&) {
    // The node is not valid; the Program that is compiled of it says why.
  }
#endif
  return nullptr;
}

}  // namespace ortrain
