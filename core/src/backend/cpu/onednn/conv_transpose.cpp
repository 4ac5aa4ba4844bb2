// Transposed convolution with oneDNN: ConvTranspose and ConvTransposeGrad.
#include <optional>
#include <string_view>

#include "backend/cpu/conv/conv_transpose_kernels.h"
#include "backend/cpu/onednn/dnnl.h"
#include "backend/cpu/onednn/kernels.h"

namespace ortrain {
namespace {

using dnnl::memory;
using Forward = dnnl::deconvolution_forward::primitive_desc;
using BackwardData = dnnl::deconvolution_backward_data::primitive_desc;
using BackwardWeights = dnnl::deconvolution_backward_weights::primitive_desc;

// The same in oneDNN's terms. Its weights are [groups,] outputs, inputs, kernel; those of ONNX inputs,
// outputs.
struct DnnlTransposed {
  Shape x, y, w;
  int64_t channels;
  memory::desc stored_w;  // how ONNX's weights are stored
  memory::dims strides, dilations, before, after;

  explicit DnnlTransposed(const Transposed& t) : x(t.x), y(t.y), channels(t.y[1]) {
    const int64_t inputs = t.x[1] / t.groups, outputs = t.w[1];
    const memory::dims kernel(t.w.begin() + 2, t.w.end());
    const int64_t points = element_count(kernel);
    w = {outputs, inputs};
    memory::dims steps = {points, outputs * points};
    if (t.groups > 1) {
      w.insert(w.begin(), t.groups);
      steps.insert(steps.begin(), inputs * outputs * points);
    }
    w.insert(w.end(), kernel.begin(), kernel.end());
    const memory::dims inner = strides_of(kernel);
    steps.insert(steps.end(), inner.begin(), inner.end());
    stored_w = memory::desc(w, memory::data_type::f32, steps);
    for (const WindowAxis& a : t.window) {
      strides.push_back(a.stride);
      dilations.push_back(a.dilation - 1);
      before.push_back(a.before);
      after.push_back(a.reach());
    }
  }

  std::optional<Forward> forward(const memory::desc& src, const memory::desc& dst, bool bias) const {
    try {
      const auto kind = dnnl::prop_kind::forward_training;
      const auto algorithm = dnnl::algorithm::deconvolution_direct;
      if (bias)
        return Forward(dnnl_engine(), kind, algorithm, src, dnnl_any(w), dnnl_plain({channels}), dst, strides,
                       dilations, before, after, dnnl_attr());
      return Forward(dnnl_engine(), kind, algorithm, src, dnnl_any(w), dst, strides, dilations, before, after,
                     dnnl_attr());
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
  std::optional<BackwardData> backward_data(const memory::desc& src, const memory::desc& dst,
                                            const Forward& hint) const {
    try {
      return BackwardData(dnnl_engine(), dnnl::algorithm::deconvolution_direct, src, dnnl_any(w), dst,
                          strides, dilations, before, after, hint, dnnl_attr());
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
  // Without the bias, which oneDNN would sum element by element.
  std::optional<BackwardWeights> backward_weights(const memory::desc& src, const memory::desc& dst,
                                                  const Forward& hint) const {
    try {
      return BackwardWeights(dnnl_engine(), dnnl::algorithm::deconvolution_direct, src, dnnl_any(w), dst,
                             strides, dilations, before, after, hint, dnnl_attr());
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }
};

using Layouts = std::vector<std::pair<memory::desc, memory::desc>>;  // of X and Y, the best first

// oneDNN runs a deconvolution on one of its convolutions, whose name follows its own.
bool is_fast_inside(const dnnl::primitive_desc_base& primitive) {
  const std::string_view name = primitive.impl_info_str();
  return is_fast(primitive) && name.find("+ref") == std::string_view::npos &&
         name.find("+gemm") == std::string_view::npos;
}

// The first of the candidates that gives an optimized primitive whose result has no padding; failing that, an
// optimized one; nothing if there is none, since the portable kernels are then as good.
template <typename Make, typename Result>
auto choose(const Layouts& candidates, Make make, Result result)
    -> decltype(make(memory::desc(), memory::desc())) {
  decltype(make(memory::desc(), memory::desc())) padded;
  for (const auto& [x, y] : candidates) {
    auto pd = make(x, y);
    if (!pd || !is_fast_inside(*pd)) continue;
    if (is_dense(result(*pd))) return pd;
    if (!padded) padded = pd;
  }
  return padded;
}

std::optional<Forward> choose_forward(const DnnlTransposed& t, const LayoutPtr& stored, bool bias) {
  Layouts candidates;
  if (stored && is_dnnl(stored)) candidates.emplace_back(dnnl_desc(stored, t.x), dnnl_any(t.y));
  candidates.emplace_back(dnnl_any(t.x), dnnl_any(t.y));
  candidates.emplace_back(dnnl_channels_last(t.x), dnnl_channels_last(t.y));
  return choose(
      candidates, [&](const memory::desc& x, const memory::desc& y) { return t.forward(x, y, bias); },
      [](const Forward& pd) { return pd.dst_desc(); });
}

// The weights (input i) in the layout that a primitive needs: a slot, and the kernel that fills it if it is
// scratch memory.
Slot fetch_weights(KernelContext& c, size_t i, const memory::desc& stored, const memory::desc& wanted,
                   std::vector<Kernel>& kernels) {
  const Slot plain = c.in(i);
  if (same_bytes(stored, wanted)) return plain;
  if (const Tensor* known = c.constant(i)) {
    Tensor packed(DType::kUInt8, {static_cast<int64_t>(wanted.get_size())});
    dnnl::memory source(stored, dnnl_engine(), known->raw()), target(wanted, dnnl_engine(), packed.raw());
    dnnl::reorder(source, target).execute(dnnl_stream(), source, target);
    dnnl_stream().wait();
    return c.fixed(std::move(packed));
  }
  const Slot slot = c.scratch(wanted.get_size());
  kernels.push_back(dnnl_reorder(stored, plain, wanted, slot));
  return slot;
}

Kernel dnnl_forward(KernelContext& c, const DnnlTransposed& t) {
  const bool has_bias = c.has_input(2);
  const std::optional<Forward> pd = choose_forward(t, c.in_layout(0), has_bias);
  if (!pd) return nullptr;
  std::vector<Kernel> kernels;
  const Slot x = c.in(0, dnnl_layout(pd->src_desc()));
  const Slot w = fetch_weights(c, 1, t.stored_w, pd->weights_desc(), kernels);
  const Slot bias = has_bias ? c.in(2) : Slot{};
  const Slot y = c.out(0, dnnl_layout(pd->dst_desc()));
  kernels.push_back(dnnl_kernel(c, dnnl::deconvolution_forward(*pd), pd->scratchpad_desc(),
                                {{DNNL_ARG_SRC, pd->src_desc(), x},
                                 {DNNL_ARG_WEIGHTS, pd->weights_desc(), w},
                                 {DNNL_ARG_BIAS, dnnl_plain({t.channels}), bias},
                                 {DNNL_ARG_DST, pd->dst_desc(), y}}));
  return chain(std::move(kernels));
}

// The layouts offered to a backward primitive: those of the forward pass, then that of dY.
Layouts backward_layouts(KernelContext& c, const DnnlTransposed& t, const Forward& forward) {
  Layouts candidates = {{forward.src_desc(), forward.dst_desc()}};
  const LayoutPtr dy = c.in_layout(0);
  if (dy && is_dnnl(dy)) candidates.emplace_back(dnnl_any(t.x), dnnl_desc(dy, t.y));
  candidates.emplace_back(dnnl_any(t.x), dnnl_any(t.y));
  candidates.emplace_back(dnnl_channels_last(t.x), dnnl_channels_last(t.y));
  return candidates;
}

Kernel dnnl_backward_data(KernelContext& c, const DnnlTransposed& t, const Forward& forward) {
  const auto pd = choose(
      backward_layouts(c, t, forward),
      [&](const memory::desc& x, const memory::desc& y) { return t.backward_data(x, y, forward); },
      [](const BackwardData& d) { return d.diff_src_desc(); });
  if (!pd) return nullptr;
  std::vector<Kernel> kernels;
  const Slot dy = c.in(0, dnnl_layout(pd->diff_dst_desc()));
  const Slot w = fetch_weights(c, 2, t.stored_w, pd->weights_desc(), kernels);
  const Slot dx = c.out(0, dnnl_layout(pd->diff_src_desc()));
  kernels.push_back(dnnl_kernel(c, dnnl::deconvolution_backward_data(*pd), pd->scratchpad_desc(),
                                {{DNNL_ARG_DIFF_DST, pd->diff_dst_desc(), dy},
                                 {DNNL_ARG_WEIGHTS, pd->weights_desc(), w},
                                 {DNNL_ARG_DIFF_SRC, pd->diff_src_desc(), dx}}));
  return chain(std::move(kernels));
}

Kernel dnnl_backward_weights(KernelContext& c, const DnnlTransposed& t, const Forward& forward) {
  const auto pd = choose(
      backward_layouts(c, t, forward),
      [&](const memory::desc& x, const memory::desc& y) { return t.backward_weights(x, y, forward); },
      [](const BackwardWeights& d) { return d.src_desc(); });
  if (!pd) return nullptr;
  const Slot dy = c.in(0, dnnl_layout(pd->diff_dst_desc()));
  const Slot x = c.in(1, dnnl_layout(pd->src_desc()));
  const Slot dw = c.out(1);
  const memory::desc made = pd->diff_weights_desc();
  const bool direct = same_bytes(t.stored_w, made);
  const Slot target = direct ? dw : c.scratch(made.get_size());
  std::vector<Kernel> kernels;
  kernels.push_back(dnnl_kernel(c, dnnl::deconvolution_backward_weights(*pd), pd->scratchpad_desc(),
                                {{DNNL_ARG_SRC, pd->src_desc(), x},
                                 {DNNL_ARG_DIFF_DST, pd->diff_dst_desc(), dy},
                                 {DNNL_ARG_DIFF_WEIGHTS, made, target}}));
  if (!direct) kernels.push_back(dnnl_reorder(made, target, t.stored_w, dw));
  return chain(std::move(kernels));
}

}  // namespace

std::optional<Kernel> onednn_conv_transpose(KernelContext& c) {
  if (Kernel kernel = dnnl_forward(c, DnnlTransposed(Transposed(c, 0, 1)))) return kernel;
  return std::nullopt;
}

// Parts for which there is no primitive are left to the portable kernels.
std::optional<Kernel> onednn_conv_transpose_grad(KernelContext& c) {
  const Transposed t(c, 1, 2);
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  ConvGradParts parts;
  const DnnlTransposed described(t);
  if (const auto forward = choose_forward(described, c.in_layout(1), false)) {
    if (wanted(0)) parts.data = dnnl_backward_data(c, described, *forward);
    if (wanted(1)) parts.weights = dnnl_backward_weights(c, described, *forward);
  }
  if (!parts.data && !parts.weights) return std::nullopt;
  return portable_conv_transpose_grad(c, t, std::move(parts));
}

}  // namespace ortrain
