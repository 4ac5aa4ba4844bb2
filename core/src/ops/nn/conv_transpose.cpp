// Transposed convolution: ConvTranspose and its gradient ConvTransposeGrad (com.microsoft).
//
// It is the gradient of a convolution with regard to that convolution's input: X plays the part of dY and the
// result that of dX. So the portable kernels are those of convolution with the parts exchanged, and so is the
// Window here: its `input` is the extent of Y, its `output` that of X. Along each axis
// Y[x * stride + k * dilation - before] += X[x] W[k].
#include <algorithm>
#include <optional>

#include "backend/cpu/conv/portable_conv.h"
#include "backend/cpu/onednn/dnnl.h"
#include "op/operator.h"
#include "ops/common/window.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

std::vector<int64_t> read_extents(const NodeContext& c, const char* name, size_t count, int64_t otherwise,
                                  int64_t smallest) {
  std::vector<int64_t> values = c.node().ints_or(name, {});
  if (values.empty()) return std::vector<int64_t>(count, otherwise);
  c.expect(values.size() == count, "attribute ", name, " must have ", count, " values, found ",
           to_string(values));
  for (const int64_t v : values)
    c.expect(v >= smallest, "every value of attribute ", name, " must be at least ", smallest, ", found ",
             to_string(values));
  return values;
}

// The windows over Y of a ConvTranspose of the given X and W.
Window read_windows(const NodeContext& c, const Shape& x, const Shape& w) {
  const size_t axes = x.size() - 2;
  const std::vector<int64_t> strides = read_extents(c, "strides", axes, 1, 1);
  const std::vector<int64_t> dilations = read_extents(c, "dilations", axes, 1, 1);
  const std::vector<int64_t> extra = read_extents(c, "output_padding", axes, 0, 0);
  const std::vector<int64_t> pads = read_extents(c, "pads", 2 * axes, 0, 0);
  const std::string auto_pad = c.node().string_or("auto_pad", "NOTSET");
  c.expect(auto_pad == "NOTSET" || auto_pad.empty() || auto_pad == "VALID" || auto_pad == "SAME_UPPER" ||
               auto_pad == "SAME_LOWER",
           "attribute auto_pad must be NOTSET, VALID, SAME_UPPER or SAME_LOWER, found '", auto_pad, "'");
  const bool same = auto_pad.starts_with("SAME");
  std::vector<int64_t> wanted = c.node().ints_or("output_shape", {});
  // Some exporters state batch and channels too.
  if (wanted.size() == axes + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  c.expect(wanted.empty() || wanted.size() == axes, "attribute output_shape must have ", axes,
           " values, found ", to_string(wanted));
  Window window(axes);
  for (size_t i = 0; i < axes; ++i) {
    WindowAxis& a = window[i];
    a.output = x[2 + i];
    a.kernel = w[2 + i];
    a.stride = strides[i];
    a.dilation = dilations[i];
    c.expect(a.output >= 1, "axis ", 2 + i, " of its input X ", to_string(x), " is empty");
    const int64_t full = (a.output - 1) * a.stride + a.span() + extra[i];
    if (!wanted.empty() || same) {
      a.input = wanted.empty() ? a.output * a.stride : wanted[i];
      // What the windows do not reach is zero; nothing is shifted for it.
      const int64_t total = std::max<int64_t>(0, full - a.input);
      a.before = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      a.after = total - a.before;
    } else {
      if (auto_pad != "VALID") {
        a.before = pads[i];
        a.after = pads[axes + i];
      }
      a.input = full - a.before - a.after;
    }
    c.expect(a.input >= 1, "axis ", 2 + i, " of its result would have ", a.input, " elements: padding ",
             a.before, " and ", a.after, " leave nothing of ", full);
  }
  return window;
}

// Where X and W are among the inputs, and what they make.
struct Transposed {
  Shape x, w, y;
  int64_t groups;
  Window window;

  Transposed(const NodeContext& c, size_t x_at, size_t w_at)
      : x(c.shape(x_at)), w(c.shape(w_at)), groups(c.node().int_or("group", 1)) {
    c.expect(x.size() >= 3 && x.size() <= 5,
             "its input X must have shape [N, C, D1] to [N, C, D1, D2, D3], found ", to_string(x));
    c.expect(w.size() == x.size(), "its weights W must have as many axes as X ", to_string(x), ", found ",
             to_string(w));
    c.expect(c.dtype(x_at) == c.dtype(w_at), "X and W must have one type, found ", to_string(c.dtype(x_at)),
             " and ", to_string(c.dtype(w_at)));
    c.expect(groups >= 1, "attribute group must be at least 1, found ", groups);
    c.expect(w[0] == x[1], "its input X ", to_string(x), " has ", x[1], " channels, but the weights W ",
             to_string(w), " take ", w[0]);
    c.expect(x[1] % groups == 0, "the ", x[1], " channels of X ", to_string(x), " cannot be shared by ",
             groups, " groups");
    const std::vector<int64_t> kernel(w.begin() + 2, w.end());
    for (const int64_t k : kernel) c.expect(k >= 1, "the kernel of W ", to_string(w), " is empty");
    const std::vector<int64_t> stated = c.node().ints_or("kernel_shape", kernel);
    c.expect(stated.empty() || stated == kernel, "attribute kernel_shape is ", to_string(stated),
             ", but W has shape ", to_string(w));
    window = read_windows(c, x, w);
    y = {x[0], w[1] * groups};
    for (const WindowAxis& a : window) y.push_back(a.input);
  }
  // The convolution from Y to X.
  ConvSizes sizes() const { return {x[0], y[1], x[1], groups, three_axes(window)}; }
};

void shape(ShapeContext& c) {
  const Transposed t(c, 0, 1);
  if (c.has_input(2)) {
    c.expect(c.shape(2) == Shape{t.y[1]}, "the bias B must have shape [", t.y[1], "], found ",
             to_string(c.shape(2)));
    c.expect(c.dtype(2) == c.dtype(0), "X and B must have one type, found ", to_string(c.dtype(0)), " and ",
             to_string(c.dtype(2)));
  }
  c.output(0, c.dtype(0), t.y);
}

void grad_shape(ShapeContext& c) {
  const Transposed t(c, 1, 2);
  c.expect(c.shape(0) == t.y, "the gradient dY must have shape ", to_string(t.y), ", found ",
           to_string(c.shape(0)));
  c.expect(c.dtype(0) == c.dtype(1), "dY and X must have one type, found ", to_string(c.dtype(0)), " and ",
           to_string(c.dtype(1)));
  c.output(0, c.dtype(1), t.x);
  c.output(1, c.dtype(1), t.w);
  c.output(2, c.dtype(1), {t.y[1]});
}

// -----------------------------------------------------------------------------------------------------------
// Portable kernels.

template <typename T>
Kernel portable_forward(KernelContext& c, const Transposed& t) {
  const ConvSizes s = t.sizes();
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
Kernel portable_backward_data(KernelContext& c, const Transposed& t) {
  const ConvSizes s = t.sizes();
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), w = c.in(2);
  const Slot dx = c.out(0), scratch = c.scratch(static_cast<size_t>(conv_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_forward<T>(s, workers, f.at<const T>(dy), f.at<const T>(w), nullptr, f.at<T>(dx), f.at<T>(scratch));
  };
}

template <typename T>
Kernel portable_backward_weights(KernelContext& c, const Transposed& t) {
  const ConvSizes s = t.sizes();
  const int64_t workers = conv_workers(s);
  const Slot dy = c.in(0), x = c.in(1);
  const Slot dw = c.out(1), scratch = c.scratch(static_cast<size_t>(conv_weights_scratch(s)) * sizeof(T));
  return [=](const Frame& f) {
    conv_backward_weights<T>(s, workers, f.at<const T>(x), f.at<const T>(dy), f.at<T>(dw), f.at<T>(scratch));
  };
}

template <typename T>
Kernel portable_backward_bias(KernelContext& c, const Transposed& t) {
  // The sums run over Y, which is the result of a convolution only in this function's eyes.
  ConvSizes s = t.sizes();
  s.filters = t.y[1];
  for (WindowAxis& a : s.window) a.output = a.input;
  const Slot dy = c.in(0), db = c.out(2);
  return [=](const Frame& f) { conv_backward_bias<T>(s, f.at<const T>(dy), f.at<T>(db)); };
}

// -----------------------------------------------------------------------------------------------------------
// oneDNN.

#if ORTRAIN_ONEDNN

using dnnl::memory;
using Forward = dnnl::deconvolution_forward::primitive_desc;
using BackwardData = dnnl::deconvolution_backward_data::primitive_desc;
using BackwardWeights = dnnl::deconvolution_backward_weights::primitive_desc;

// The same in oneDNN's terms. Its weights are [groups,] outputs, inputs, kernel; those of ONNX inputs,
// outputs.
struct DnnlTransposed {
  Shape x, y, w;
  int64_t channels;
  memory::desc stored_w;  // how ONNX's weights lie
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

// The first of the candidates that gives an optimized primitive whose result lies without padding, failing
// that an optimized one; nothing where there is none, and the portable kernels are as good.
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

// The weights (input i) in the layout that a primitive wants: a slot, and the kernel that fills it where it
// is scratch.
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
  return one_after_the_other(std::move(kernels));
}

// The layouts that a backward primitive is offered: those of the forward pass, then those in which dY came.
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
  return one_after_the_other(std::move(kernels));
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
  return one_after_the_other(std::move(kernels));
}

#endif

// -----------------------------------------------------------------------------------------------------------

Kernel kernel(KernelContext& c) {
  const Transposed t(c, 0, 1);
#if ORTRAIN_ONEDNN
  if (suits_onednn(c))
    if (Kernel kernel = dnnl_forward(c, DnnlTransposed(t))) return kernel;
#endif
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = portable_forward<decltype(zero)>(c, t); }))
    c.reject_dtype(0);
  return kernel;
}

Kernel grad_kernel(KernelContext& c) {
  const Transposed t(c, 1, 2);
  // An output may have a name and no reader: the gradient of the model's input, most of all.
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  Kernel data, weights, bias;
#if ORTRAIN_ONEDNN
  if (suits_onednn(c)) {
    const DnnlTransposed described(t);
    if (const auto forward = choose_forward(described, c.in_layout(1), false)) {
      if (wanted(0)) data = dnnl_backward_data(c, described, *forward);
      if (wanted(1)) weights = dnnl_backward_weights(c, described, *forward);
    }
  }
#endif
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    if (!data && wanted(0)) data = portable_backward_data<T>(c, t);
    if (!weights && wanted(1)) weights = portable_backward_weights<T>(c, t);
    if (wanted(2)) bias = portable_backward_bias<T>(c, t);
  });
  if (!known) c.reject_dtype(0);
  std::vector<Kernel> kernels;
  for (Kernel* made : {&data, &weights, &bias})
    if (*made) kernels.push_back(std::move(*made));
  return one_after_the_other(std::move(kernels));
}

void gradient(GradientContext& g) {
  const size_t outputs = g.has_x(2) && g.needs(2) ? 3 : g.needs(1) ? 2 : 1;
  const auto d =
      g.emit("ConvTransposeGrad", {g.dy(0), g.x(0), g.x(1)}, outputs, g.node().attributes, kMicrosoft);
  for (size_t i = 0; i < outputs; ++i)
    if (g.needs(i)) g.set(i, d[i]);
}

ORTRAIN_OPERATOR({.type = "ConvTranspose", .shape = shape, .kernel = kernel, .gradient = gradient});
void grad_gradient(GradientContext& g) { product_grad_gradient(g, "ConvTranspose"); }

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ConvTransposeGrad",
                  .shape = grad_shape,
                  .kernel = grad_kernel,
                  .gradient = grad_gradient});

}  // namespace

}  // namespace ortrain
