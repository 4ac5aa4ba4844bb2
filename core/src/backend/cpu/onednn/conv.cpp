// Convolution with oneDNN: Conv, com.microsoft FusedConv and ConvGrad.
//
// Between operators, values stay in the layout that oneDNN chose for the convolution that produced them.
// Trainable weights are converted to the required layout in each run, unless they are stored in it
// (session/parameter_layouts.h); constant ones are converted once, when the Program is compiled. The gradient
// of weights is stored like the weights.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <numeric>
#include <optional>

#include "backend/cpu/conv/conv_kernels.h"
#include "backend/cpu/conv/winograd.h"
#include "backend/cpu/onednn/dnnl.h"
#include "backend/cpu/onednn/kernels.h"
#include "runtime/fork_lock.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

using dnnl::memory;
using Forward = dnnl::convolution_forward::primitive_desc;
using BackwardData = dnnl::convolution_backward_data::primitive_desc;
using BackwardWeights = dnnl::convolution_backward_weights::primitive_desc;

using Layouts = std::vector<std::pair<memory::desc, memory::desc>>;  // of X and Y, the best first

// A convolution in oneDNN's terms.
struct DnnlConvolution {
  DnnlType type;  // of the operands; the gradients of weights and bias are always float
  DnnlType made;  // of the result, Y or dX
  Shape x, y, w;  // grouped weights have the group as a separate first axis
  int64_t filters;
  bool depthwise;
  // Images with one column are seen as images with one row, in which oneDNN's kernels find neighbours.
  bool transposed;
  memory::dims strides, dilations, before, after;

  DnnlConvolution(const Convolution& conv, DnnlType operands, DnnlType result)
      : type(operands),
        made(result),
        x(conv.x),
        y(conv.y),
        w(conv.w),
        filters(conv.w[0]),
        depthwise(conv.groups > 1 && conv.groups == conv.x[1] && conv.groups == conv.w[0]),
        transposed(conv.x.size() == 4 && conv.x[2] > 1 && conv.x[3] == 1 && conv.w[3] == 1 &&
                   conv.y[3] == 1 && conv.window[1].before == 0) {
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
    if (transposed) {
      for (Shape* shape : {&x, &y, &w}) std::swap(shape->end()[-1], shape->end()[-2]);
      for (memory::dims* values : {&strides, &dilations, &before, &after})
        std::swap((*values)[0], (*values)[1]);
    }
  }

  // From the value's description to the one here, and back.
  memory::desc transpose(const memory::desc& desc) const {
    if (!transposed) return desc;
    std::vector<int> axes(static_cast<size_t>(desc.get_ndims()));
    std::iota(axes.begin(), axes.end(), 0);
    std::swap(axes.end()[-1], axes.end()[-2]);
    return desc.permute_axes(axes);
  }

  // The layouts offered to the forward pass, for an X of any origin.
  Layouts usual_layouts() const {
    const memory::desc any_x = dnnl_any(x, type), y_last = dnnl_channels_last(y, made);
    return {{any_x, dnnl_any(y, made)}, {any_x, y_last}, {dnnl_channels_last(x, type), y_last}};
  }

  // Descriptions for given layouts of X and Y; nothing if oneDNN has no primitive for them.
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
    return backward_weights(src, dst, dnnl_any(w), bias, hint);
  }
  std::optional<BackwardWeights> backward_weights(const memory::desc& src, const memory::desc& dst,
                                                  const memory::desc& weights, bool bias,
                                                  const Forward& hint) const {
    try {
      const auto algorithm = dnnl::algorithm::convolution_direct;
      if (bias)
        return BackwardWeights(dnnl_engine(), algorithm, src, weights, dnnl_plain({filters}), dst, strides,
                               dilations, before, after, hint, dnnl_attr());
      return BackwardWeights(dnnl_engine(), algorithm, src, weights, dst, strides, dilations, before, after,
                             hint, dnnl_attr());
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
};

// The first of `candidates` that gives an optimized primitive whose result has no padding, so that
// elementwise operators can treat it as flat; failing that, an optimized one; failing that, any except
// oneDNN's reference loops. For depthwise convolutions, primitives not specialized for them do sixteen times
// the work and do not count as optimized; ours is faster (backend/cpu/conv/depthwise_conv.h).
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
    } else if (!slow && !(conv.depthwise && conv.x.size() <= 4) &&
               !std::string_view(pd->impl_info_str()).starts_with("ref")) {
      slow = pd;
    }
  }
  return padded ? padded : slow;
}

// The forward primitive for an X that is input `x_at`. ConvGrad requests it too, to find the layouts of the
// values around the convolution.
std::optional<Forward> choose_forward(const KernelContext& c, const DnnlConvolution& conv, size_t x_at,
                                      bool bias, const dnnl::primitive_attr& attr = dnnl_attr()) {
  Layouts candidates;
  if (c.in_layout(x_at)) {
    if (const auto stored = dnnl_stored(c, x_at, conv.type)) {
      const memory::desc x = conv.transpose(*stored);
      candidates.emplace_back(x, dnnl_any(conv.y, conv.made));
      // The depthwise primitives keep the order of X, but only if requested.
      if (conv.depthwise) candidates.emplace_back(x, dnnl_channels_last(conv.y, conv.made));
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

// How the weights at input i are stored, if oneDNN can describe it; otherwise they are requested row-major.
struct StoredWeights {
  LayoutPtr layout;
  memory::desc desc;

  StoredWeights(const KernelContext& c, size_t i, const DnnlConvolution& conv) : desc(dnnl_plain(conv.w)) {
    const LayoutPtr stored = c.in_layout(i);
    if (!stored || !is_dnnl(stored) || stored->bf16()) return;
    // Layouts proposed by a convolution have the group as an axis; others do not.
    const memory::desc given = dnnl_desc(stored, c.shape(i));
    if (given.get_ndims() != static_cast<int>(conv.w.size())) return;
    const memory::desc described = conv.transpose(given);
    if (described.get_dims() != conv.w) return;
    layout = stored;
    desc = described;
  }
};

// The weights (input i) in the layout that a primitive needs: a slot, and the kernel that fills it if they
// must be converted in each run. They are then converted into `scratch`, which is requested if it is not
// given.
Slot fetch_weights(KernelContext& c, size_t i, const DnnlConvolution& conv, const memory::desc& wanted,
                   std::vector<Kernel>& kernels, Slot scratch = {}) {
  const StoredWeights stored(c, i, conv);
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

// What the primitive applies to the result: an addend that is already in its memory, then the activation.
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

// A convolution by Winograd's algorithm, on values stored as oneDNN's convolution needs them.
struct WinogradConvolution {
  WinogradSizes sizes;
  memory::desc weights;
  int threads;
};

// That of the node, for X and Y in the given layouts; nothing if it is not suitable.
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

// Input i in the order `wanted`: in bfloat16 if it is stored so.
StoredSlot winograd_operand(KernelContext& c, size_t i, const memory::desc& wanted) {
  const LayoutPtr stored = c.in_layout(i);
  const auto narrow = dnnl_retyped(wanted, DnnlType::bf16);
  if (stored && stored->bf16() && narrow) return {c.in(i, dnnl_layout(*narrow)), true};
  return {c.in(i, dnnl_layout(wanted))};
}

StoredSlot winograd_result(KernelContext& c, size_t o, const memory::desc& made) {
  if (c.wants_bf16(o))
    if (const auto narrow = dnnl_retyped(made, DnnlType::bf16)) return {c.out(o, dnnl_layout(*narrow)), true};
  return {c.out(o, dnnl_layout(made))};
}

Kernel winograd_forward_kernel(KernelContext& c, const DnnlConvolution& conv, const Forward& pd,
                               const WinogradConvolution& found, bool relu) {
  std::vector<Kernel> kernels;
  const StoredSlot x = winograd_operand(c, 0, pd.src_desc());
  const Slot w = fetch_weights(c, 1, conv, found.weights, kernels);
  const Slot bias = c.has_input(2) ? c.in(2) : Slot{};
  const bool add = c.has_input(3);
  const Slot addend = add ? c.in(3, dnnl_layout(pd.dst_desc())) : Slot{};
  const StoredSlot y = add ? StoredSlot{c.out_inplace(0, {3}, dnnl_layout(pd.dst_desc()))}
                           : winograd_result(c, 0, pd.dst_desc());
  const Slot scratch = c.scratch(winograd_scratch(found.sizes, found.threads));
  kernels.push_back(
      [=, s = found.sizes, threads = found.threads, bytes = pd.dst_desc().get_size()](const Frame& f) {
        if (add && addend.index != y.slot.index)
          std::memcpy(f.at<std::byte>(y.slot), f.at<std::byte>(addend), bytes);
        winograd_forward(s, threads, x.in(f), f.at<float>(w), f.at_or_null<float>(bias), add, relu, y.out(f),
                         f.at<void>(scratch));
      });
  return chain(std::move(kernels));
}

Kernel dnnl_forward(KernelContext& c, const Convolution& sizes, const Activation& activation, DnnlType type) {
  const bool has_bias = c.has_input(2), has_addend = c.has_input(3);
  const DnnlConvolution conv(sizes, type, c.wants_bf16(0) ? type : DnnlType::f32);
  const std::optional<Forward> pd = choose_forward(c, conv, 0, has_bias, attr_with(activation, has_addend));
  if (!pd || (type != DnnlType::f32 && !is_fast(*pd))) return nullptr;
  const bool relu = activation.kind == Activation::Kind::kRelu;
  if (relu || activation.kind == Activation::Kind::kNone)
    if (const auto found = find_winograd(c, conv, pd->src_desc(), pd->dst_desc()))
      return winograd_forward_kernel(c, conv, *pd, *found, relu);
  std::vector<Kernel> kernels, after;
  const Slot x = dnnl_operand(c, 0, conv.transpose(pd->src_desc()), kernels);
  const Slot w = fetch_weights(c, 1, conv, pd->weights_desc(), kernels);
  const Slot bias = has_bias ? c.in(2) : Slot{};
  const memory::desc made = conv.transpose(pd->dst_desc());
  const LayoutPtr layout = dnnl_layout(made);
  const Slot addend = has_addend ? c.in(3, layout) : Slot{};
  const Slot y = has_addend ? c.out_inplace(0, {3}, layout) : dnnl_result(c, 0, made, after);
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
  return chain(std::move(kernels));
}

// The layouts offered to a backward primitive: those of the forward pass, then that of dY. `made` is the type
// of X or dX.
Layouts backward_layouts(const KernelContext& c, const DnnlConvolution& conv, const Forward& forward,
                         DnnlType made) {
  const std::optional<memory::desc> x = dnnl_retyped(forward.src_desc(), made),
                                    y = dnnl_retyped(forward.dst_desc(), conv.type);
  Layouts candidates;
  if (x && y) candidates.emplace_back(*x, *y);
  if (c.in_layout(0)) {
    if (const auto dy = dnnl_stored(c, 0, conv.type)) {
      if (x) candidates.emplace_back(*x, conv.transpose(*dy));
      candidates.emplace_back(dnnl_any(conv.x, made), conv.transpose(*dy));
    }
  }
  candidates.emplace_back(dnnl_any(conv.x, made), dnnl_any(conv.y, conv.type));
  candidates.emplace_back(dnnl_channels_last(conv.x, made), dnnl_channels_last(conv.y, conv.type));
  return candidates;
}

// What both halves of a ConvGrad share: dY as fetched for the first and, because they run one after the
// other, the memory through which weights and their gradient are converted to another layout.
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

  Slot fetch(KernelContext& c, const DnnlConvolution& conv, const memory::desc& wanted,
             std::vector<Kernel>& kernels) {
    if (!slot.defined() || !same_bytes(desc, wanted)) {
      slot = dnnl_operand(c, 0, conv.transpose(wanted), kernels);
      desc = wanted;
    }
    return slot;
  }
};

Kernel winograd_data_kernel(KernelContext& c, const DnnlConvolution& conv, const BackwardData& pd,
                            const WinogradConvolution& found, BackwardShare& share) {
  std::vector<Kernel> kernels;
  const StoredSlot dy = winograd_operand(c, 0, pd.diff_dst_desc());
  const bool passes = !c.constant(2) && !same_bytes(StoredWeights(c, 2, conv).desc, found.weights);
  const Slot w =
      fetch_weights(c, 2, conv, found.weights, kernels, passes ? share.room(c, conv, found.weights) : Slot{});
  const StoredSlot dx = winograd_result(c, 0, pd.diff_src_desc());
  const Slot scratch = c.scratch(winograd_scratch(found.sizes.transposed(), found.threads));
  kernels.push_back([=, s = found.sizes, threads = found.threads](const Frame& f) {
    winograd_backward_data(s, threads, dy.in(f), f.at<float>(w), dx.out(f), f.at<void>(scratch));
  });
  return chain(std::move(kernels));
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
  const Slot dy = share.fetch(c, conv, pd->diff_dst_desc(), kernels);
  const bool passes = !c.constant(2) && !same_bytes(StoredWeights(c, 2, conv).desc, pd->weights_desc());
  const Slot w = fetch_weights(c, 2, conv, pd->weights_desc(), kernels,
                               passes ? share.room(c, conv, pd->weights_desc()) : Slot{});
  const Slot dx = dnnl_result(c, 0, conv.transpose(pd->diff_src_desc()), after);
  kernels.push_back(dnnl_kernel(c, dnnl::convolution_backward_data(*pd), pd->scratchpad_desc(),
                                {{DNNL_ARG_DIFF_DST, pd->diff_dst_desc(), dy},
                                 {DNNL_ARG_WEIGHTS, pd->weights_desc(), w},
                                 {DNNL_ARG_DIFF_SRC, pd->diff_src_desc(), dx}}));
  for (Kernel& kernel : after) kernels.push_back(std::move(kernel));
  return chain(std::move(kernels));
}

Kernel winograd_weights_kernel(KernelContext& c, const DnnlConvolution& conv, const BackwardWeights& pd,
                               const WinogradConvolution& found, bool bias, BackwardShare& share) {
  std::vector<Kernel> kernels;
  const StoredSlot dy = winograd_operand(c, 0, pd.diff_dst_desc()), x = winograd_operand(c, 1, pd.src_desc());
  const StoredWeights stored(c, 2, conv);
  const Slot dw = c.out(1, stored.layout), db = bias ? c.out(2) : Slot{};
  const bool direct = same_bytes(stored.desc, found.weights);
  const Slot target = direct ? dw : share.room(c, conv, found.weights);
  const Slot scratch = c.scratch(winograd_weights_scratch(found.sizes, found.threads));
  kernels.push_back([=, s = found.sizes, threads = found.threads](const Frame& f) {
    winograd_backward_weights(s, threads, x.in(f), dy.in(f), f.at<float>(target), f.at_or_null<float>(db),
                              f.at<void>(scratch));
  });
  if (!direct) kernels.push_back(dnnl_reorder(found.weights, target, stored.desc, dw));
  return chain(std::move(kernels));
}

// The memory of a gradient of weights: X, dY, and the results dW and, if it is needed, dB.
struct WeightsSlots {
  Slot x, dy, dw, db;
};

// dW as a sum over parts of the batch: each part is computed by one thread in separate memory, and then the
// parts are added in order. oneDNN's primitives for several threads do the same, but their threads wait for
// each other inside of a region by spinning. That takes time slices, instead of microseconds, as soon as
// another program gets the processor of one of them.
//
// Null if there is one thread or image, or if the weights have more elements than the operands: oneDNN then
// divides the weights among its threads, which do not wait for each other.
Kernel weights_by_parts(KernelContext& c, const DnnlConvolution& conv, const Forward& forward,
                        const BackwardWeights& whole, const WeightsSlots& slots) {
  const int64_t batch = conv.x[0], parts = std::min<int64_t>(max_threads(), batch);
  const memory::desc made = whole.diff_weights_desc();
  const int64_t elements = static_cast<int64_t>(made.get_size() / sizeof(float));
  if (parts <= 1 || elements > element_count(conv.x) + element_count(conv.y)) return nullptr;
  const ThreadScope one(1);
  const bool bias = slots.db.defined();
  // A range of images of an operand, and the offset of the first one.
  const auto images = [](const memory::desc& operand, int64_t begin, int64_t end) {
    memory::dims dims = operand.get_dims();
    dims[0] = end - begin;
    const auto bytes = memory::data_type_size(operand.get_data_type());
    return std::pair{operand.submemory_desc(dims, memory::dims(dims.size())),
                     static_cast<size_t>(begin * operand.get_strides()[0]) * bytes};
  };
  const memory::desc bias_desc = dnnl_plain({conv.filters});
  const size_t sum_bytes = made.get_size(), bias_bytes = static_cast<size_t>(conv.filters) * sizeof(float);
  std::vector<BackwardWeights> primitives;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = batch * part / parts, end = batch * (part + 1) / parts;
    const auto pd =
        conv.backward_weights(images(whole.src_desc(), begin, end).first,
                              images(whole.diff_dst_desc(), begin, end).first, made, bias, forward);
    if (!pd || std::string_view(pd->impl_info_str()) != whole.impl_info_str()) return nullptr;
    primitives.push_back(*pd);
  }
  const auto others = static_cast<size_t>(parts - 1);
  const Slot sums = c.scratch(others * sum_bytes), biases = bias ? c.scratch(others * bias_bytes) : Slot{};
  std::vector<Kernel> kernels;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = batch * part / parts, end = batch * (part + 1) / parts;
    const auto& pd = primitives[static_cast<size_t>(part)];
    const auto [x_desc, x_offset] = images(whole.src_desc(), begin, end);
    const auto [dy_desc, dy_offset] = images(whole.diff_dst_desc(), begin, end);
    const bool first = part == 0;
    const size_t before = first ? 0 : static_cast<size_t>(part - 1);
    kernels.push_back(
        dnnl_kernel(c, dnnl::convolution_backward_weights(pd), pd.scratchpad_desc(),
                    {{DNNL_ARG_SRC, x_desc, slots.x, x_offset},
                     {DNNL_ARG_DIFF_DST, dy_desc, slots.dy, dy_offset},
                     {DNNL_ARG_DIFF_WEIGHTS, made, first ? slots.dw : sums, before * sum_bytes},
                     {DNNL_ARG_DIFF_BIAS, bias_desc, first ? slots.db : biases, before * bias_bytes}}));
  }
  return [=, kernels = std::move(kernels), filters = conv.filters](const Frame& f) {
    std::exception_ptr error;  // oneDNN may lack memory; an exception cannot leave a region
    std::atomic<bool> failed{false};
    parallel_for(parts, kGrain, [&](int64_t begin, int64_t end) {
      try {
        for (int64_t part = begin; part < end; ++part) kernels[static_cast<size_t>(part)](f);
      } catch (...) {
        if (!failed.exchange(true)) error = std::current_exception();
      }
    });
    if (error) std::rethrow_exception(error);
    const auto add = [&](float* to, const float* from, int64_t length, int64_t begin, int64_t end) {
      for (int64_t part = 1; part < parts; ++part, from += length)
        for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    };
    parallel_for(elements, parts, [&](int64_t begin, int64_t end) {
      add(f.at<float>(slots.dw), f.at<const float>(sums), elements, begin, end);
    });
    if (bias) add(f.at<float>(slots.db), f.at<const float>(biases), filters, 0, filters);
  };
}

// dW, and dB if it is needed.
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
  const Slot dy = share.fetch(c, conv, pd->diff_dst_desc(), kernels);
  const Slot x = dnnl_operand(c, 1, conv.transpose(pd->src_desc()), kernels);
  const StoredWeights stored(c, 2, conv);
  const Slot dw = c.out(1, stored.layout), db = bias ? c.out(2) : Slot{};
  const memory::desc made = pd->diff_weights_desc();
  const bool direct = same_bytes(stored.desc, made);
  const Slot target = direct ? dw : share.room(c, conv, made);
  if (Kernel by_parts = weights_by_parts(c, conv, forward, *pd, {x, dy, target, db}))
    kernels.push_back(std::move(by_parts));
  else
    kernels.push_back(dnnl_kernel(c, dnnl::convolution_backward_weights(*pd), pd->scratchpad_desc(),
                                  {{DNNL_ARG_SRC, pd->src_desc(), x},
                                   {DNNL_ARG_DIFF_DST, pd->diff_dst_desc(), dy},
                                   {DNNL_ARG_DIFF_WEIGHTS, made, target},
                                   {DNNL_ARG_DIFF_BIAS, dnnl_plain({conv.filters}), db}}));
  if (!direct) kernels.push_back(dnnl_reorder(made, target, stored.desc, dw));
  return chain(std::move(kernels));
}

// A node whose X is not known yet.
class WithoutX : public NodeContext {
 public:
  WithoutX(const Node& node, const Shape& w) : NodeContext(node, 0), w_(w) {
    constexpr int64_t kBatch = 16, kSize = 32, kMost = 1 << 20;
    const std::vector<int64_t> dilations = node.ints_or("dilations", {});
    x_ = {kBatch, w[1] * std::clamp<int64_t>(node.int_or("group", 1), 1, w[0])};
    for (size_t a = 0; a + 2 < w.size(); ++a)
      x_.push_back(kSize +
                   w[a + 2] * (a < dilations.size() ? std::clamp<int64_t>(dilations[a], 1, kMost) : 1));
  }
  DType dtype(size_t) const override { return DType::kFloat; }
  const Shape& shape(size_t i) const override { return i == 0 ? x_ : w_; }
  const Tensor* constant(size_t) const override { return nullptr; }

 private:
  Shape x_, w_;
};

std::optional<Kernel> forward_kernel(KernelContext& c, const Activation& activation) {
  const Convolution conv(c, 0, 1);
  for (const DnnlType type : operand_types(c))
    if (Kernel kernel = dnnl_forward(c, conv, activation, type)) return kernel;
  return std::nullopt;
}

}  // namespace

std::optional<Kernel> onednn_conv(KernelContext& c) { return forward_kernel(c, {}); }

std::optional<Kernel> onednn_fused_conv(KernelContext& c) {
  return forward_kernel(c, read_activation(c.node()));
}

// Parts for which there is no primitive are left to the portable kernels.
std::optional<Kernel> onednn_conv_grad(KernelContext& c) {
  const Convolution conv(c, 1, 2);
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  ConvGradParts parts;
  BackwardShare share;
  for (const DnnlType type : operand_types(c)) {
    const DnnlConvolution described(conv, type, c.wants_bf16(0) ? type : DnnlType::f32);
    const auto forward = choose_forward(c, {conv, type, type}, 1, false);
    if (!forward) continue;
    if (wanted(0) && !parts.data) parts.data = dnnl_backward_data(c, described, *forward, share);
    if (wanted(1) && !parts.weights) {
      parts.weights = dnnl_backward_weights(c, described, *forward, wanted(2), share);
      if (parts.weights && wanted(2)) parts.bias = [](const Frame&) {};  // computed with the weights
    }
  }
  if (!parts.data && !parts.weights) return std::nullopt;
  return portable_conv_grad(c, conv, std::move(parts));
}

LayoutPtr onednn_weights_order(const Node& node, const Shape& w) {
  if (w.size() < 3 || element_count(w) == 0) return nullptr;
  try {
    const NoFork scope;
    const WithoutX context(node, w);
    const DnnlConvolution conv(Convolution(context, 0, 1), DnnlType::f32, DnnlType::f32);
    const std::optional<Forward> pd = choose(
        conv, conv.usual_layouts(),
        [&](const memory::desc& x, const memory::desc& y) { return conv.forward(x, y, false, dnnl_attr()); },
        [](const Forward& made) { return made.dst_desc(); });
    if (pd && is_fast(*pd) && is_dense(pd->weights_desc())) return dnnl_layout(pd->weights_desc());
  } catch (const Error&) {
    // The node is not valid; compiling its Program reports why.
  }
  return nullptr;
}

}  // namespace ortrain
