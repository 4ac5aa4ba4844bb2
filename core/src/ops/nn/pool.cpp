// Pooling: MaxPool, AveragePool, GlobalAveragePool, GlobalMaxPool and the gradients MaxPoolGrad and
// AveragePoolGrad.
#include <algorithm>
#include <optional>

#include "backend/cpu/onednn/dnnl.h"
#include "backend/cpu/pool/portable_pool.h"
#include "op/operator.h"
#include "ops/common/bf16_storage.h"
#include "ops/common/window.h"

namespace ortrain {

namespace {

// The windows over X; those that pooling cannot use are refused.
Window read_pool(const NodeContext& c, const Shape& x) {
  const Window window = read_window(c, x);
  for (const WindowAxis& a : window)
    c.expect(a.before < a.span() && a.after < a.span(), "the padding (", a.before, " and ", a.after,
             ") must be smaller than the window, which spans ", a.span(), " elements");
  return window;
}

PoolSizes sizes_of(const NodeContext& c, const Shape& x, const Window& window) {
  return {x[0] * x[1], three_axes(window), c.node().int_or("count_include_pad", 0) != 0,
          c.node().int_or("storage_order", 0) != 0};
}

void max_pool_shape(ShapeContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const Shape y = output_shape(c.shape(0)[0], c.shape(0)[1], window);
  c.output(0, c.dtype(0), y);
  c.output(1, DType::kInt64, y);
}

void average_pool_shape(ShapeContext& c) {
  const Window window = read_pool(c, c.shape(0));
  c.output(0, c.dtype(0), output_shape(c.shape(0)[0], c.shape(0)[1], window));
}

// The shape of dX is the value of the last input, which is an addition of ours and may be left out; it then
// follows from what the model states of dX, or else from dY.
void pool_grad_shape(ShapeContext& c, size_t shape_input) {
  const Shape& dy = c.shape(0);
  std::vector<int64_t> stated = c.stated_shape(0);
  if (c.has_input(shape_input)) {
    stated = c.need_constant(shape_input).to_int64();
    c.expect(stated.size() == dy.size() && stated[0] == dy[0] && stated[1] == dy[1], "the shape ",
             to_string(stated), " of its result does not fit the gradient it is given, which has shape ",
             to_string(dy));
  }
  if (stated.size() == dy.size())
    stated.erase(stated.begin(), stated.begin() + 2);
  else
    stated.clear();
  const Window window = read_window_from_output(c, dy, stated);
  Shape dx = {dy[0], dy[1]};
  for (const WindowAxis& a : window) dx.push_back(a.input);
  c.output(0, c.dtype(0), std::move(dx));
}

void max_pool_grad_shape(ShapeContext& c) {
  c.expect(c.shape(1) == c.shape(0), "the indices must have the shape of dY ", to_string(c.shape(0)),
           ", found ", to_string(c.shape(1)));
  c.expect(c.dtype(1) == DType::kInt64, "the indices must have type int64, found ", to_string(c.dtype(1)));
  pool_grad_shape(c, 2);
}

void average_pool_grad_shape(ShapeContext& c) { pool_grad_shape(c, 1); }

void global_pool_shape(ShapeContext& c) {
  const Shape& x = c.shape(0);
  c.expect(x.size() >= 3, "its input must have shape [N, C, D1, ...], found ", to_string(x));
  c.expect(element_count(x, 2, x.size()) > 0, "its input ", to_string(x), " has channels without elements");
  Shape y(x.size(), 1);
  y[0] = x[0], y[1] = x[1];
  c.output(0, c.dtype(0), std::move(y));
}

// -----------------------------------------------------------------------------------------------------------
// oneDNN.

#if ORTRAIN_ONEDNN

using dnnl::memory;
using Forward = dnnl::pooling_forward::primitive_desc;
using Backward = dnnl::pooling_backward::primitive_desc;

// A pooling in oneDNN's terms.
struct DnnlPool {
  dnnl::algorithm algorithm;
  DnnlType type;
  Shape x, y;
  memory::dims kernel, strides, dilations, before, after;

  // The values are kept as input 0 of the node is.
  DnnlPool(const KernelContext& c, dnnl::algorithm which, const Shape& x_shape, const Window& window)
      : algorithm(which), type(lies_in_bf16(c, 0) ? DnnlType::bf16 : DnnlType::f32), x(x_shape) {
    y = output_shape(x[0], x[1], window);
    for (const WindowAxis& a : window) {
      kernel.push_back(a.kernel);
      strides.push_back(a.stride);
      dilations.push_back(a.dilation - 1);
      before.push_back(a.before);
      after.push_back(a.reach());
    }
  }

  std::optional<Forward> forward(const memory::desc& src, bool training) const {
    try {
      const auto kind = training ? dnnl::prop_kind::forward_training : dnnl::prop_kind::forward_inference;
      Forward pd(dnnl_engine(), kind, algorithm, src, dnnl_any(y, type), strides, kernel, dilations, before,
                 after, dnnl_attr());
      if (is_fast(pd)) return pd;
    } catch (const dnnl::error&) {
    }
    return std::nullopt;
  }
  std::optional<Backward> backward(const memory::desc& src, const memory::desc& dst,
                                   const Forward& hint) const {
    try {
      Backward pd(dnnl_engine(), algorithm, src, dst, strides, kernel, dilations, before, after, hint,
                  dnnl_attr());
      if (is_fast(pd)) return pd;
    } catch (const dnnl::error&) {
    }
    return std::nullopt;
  }
  // The forward primitive, with the backward one that goes with it where the node is trained.
  struct Pair {
    Forward forward;
    std::optional<Backward> backward;
  };
  std::optional<Pair> choose(const LayoutPtr& stored, bool training) const {
    std::vector<memory::desc> candidates;
    if (is_dnnl(stored)) candidates.push_back(dnnl_desc(stored, x));
    candidates.push_back(dnnl_channels_last(x, type));
    for (const memory::desc& src : candidates) {
      auto fwd = forward(src, training);
      if (!fwd) continue;
      if (!training) return Pair{*fwd, std::nullopt};
      if (auto bwd = backward(src, fwd->dst_desc(), *fwd)) return Pair{*fwd, *bwd};
    }
    return std::nullopt;
  }
};

// What MaxPool leaves for MaxPoolGrad instead of indices: oneDNN's record of where the maxima were.
class PoolWorkspace : public Layout {
 public:
  PoolWorkspace(const Forward& forward, const Backward& backward) : forward_(forward), backward_(backward) {}
  size_t bytes() const override { return forward_.workspace_desc().get_size(); }
  bool equals(const Layout& other) const override { return this == &other; }
  bool dense() const override { return false; }
  Kernel to_plain(Slot, Slot) const override { refuse(); }
  Kernel from_plain(Slot, Slot) const override { refuse(); }
  const Backward& backward() const { return backward_; }

 private:
  [[noreturn]] static void refuse() {
    fail(ErrorCode::kFail, "the workspace of MaxPool can be read by MaxPoolGrad alone");
  }
  Forward forward_;
  Backward backward_;
};

Kernel dnnl_pool_forward(KernelContext& c, const DnnlPool& pool, bool keep_workspace) {
  const auto pair = pool.choose(c.in_layout(0), keep_workspace);
  if (!pair) return nullptr;
  const Forward& pd = pair->forward;
  const Slot x = c.in(0, dnnl_layout(pd.src_desc())), y = c.out(0, dnnl_layout(pd.dst_desc()));
  const Slot workspace =
      keep_workspace ? c.out(1, std::make_shared<PoolWorkspace>(pd, *pair->backward)) : Slot{};
  return dnnl_kernel(c, dnnl::pooling_forward(pd), pd.scratchpad_desc(),
                     {{DNNL_ARG_SRC, pd.src_desc(), x},
                      {DNNL_ARG_DST, pd.dst_desc(), y},
                      {DNNL_ARG_WORKSPACE, pd.workspace_desc(), workspace}});
}

Kernel dnnl_pool_backward(KernelContext& c, const Backward& pd, Slot workspace,
                          const memory::desc& workspace_desc) {
  const Slot dy = c.in(0, dnnl_layout(pd.diff_dst_desc())), dx = c.out(0, dnnl_layout(pd.diff_src_desc()));
  return dnnl_kernel(c, dnnl::pooling_backward(pd), pd.scratchpad_desc(),
                     {{DNNL_ARG_DIFF_DST, pd.diff_dst_desc(), dy},
                      {DNNL_ARG_DIFF_SRC, pd.diff_src_desc(), dx},
                      {DNNL_ARG_WORKSPACE, workspace_desc, workspace}});
}

// oneDNN divides by all elements of a window where padding counts, also by those behind the padding that the
// node states.
bool divides_alike(const Window& window, bool count_padding) {
  return !count_padding ||
         std::all_of(window.begin(), window.end(), [](const WindowAxis& a) { return a.reach() <= a.after; });
}

dnnl::algorithm average(bool count_padding) {
  return count_padding ? dnnl::algorithm::pooling_avg_include_padding
                       : dnnl::algorithm::pooling_avg_exclude_padding;
}

// A layout for `shape` of the kind in which a value of shape `other` is stored, as far as there is one.
LayoutPtr like(const LayoutPtr& stored, const Shape& other, const Shape& shape) {
  if (!stored || !is_dnnl(stored)) return nullptr;
  const memory::desc desc = dnnl_desc(stored, other);
  const DnnlType type = desc.get_data_type();
  if (same_bytes(desc, dnnl_channels_last(other, type))) return dnnl_layout(dnnl_channels_last(shape, type));
  if (desc.get_inner_idxs() != memory::dims{1}) return nullptr;
  using Tag = memory::format_tag;
  static constexpr Tag kBy8[] = {Tag::nCw8c, Tag::nChw8c, Tag::nCdhw8c};
  static constexpr Tag kBy16[] = {Tag::nCw16c, Tag::nChw16c, Tag::nCdhw16c};
  const int64_t block = desc.get_inner_blks()[0];
  if (block != 8 && block != 16) return nullptr;
  return dnnl_layout({shape, type, (block == 8 ? kBy8 : kBy16)[shape.size() - 3]});
}

#endif

// -----------------------------------------------------------------------------------------------------------
// Kernels.

template <typename T>
Kernel portable_max_pool(KernelContext& c, const PoolSizes& s, bool indices) {
  const Slot x = c.in(0), y = c.out(0), at = indices ? c.out(1) : Slot{};
  return [=](const Frame& f) { max_pool<T>(s, f.at<const T>(x), f.at<T>(y), f.at_or_null<int64_t>(at)); };
}

Kernel max_pool_kernel(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const PoolSizes s = sizes_of(c, c.shape(0), window);
  const bool indices = c.has_output(1) && !c.used_only_by(1, "");
#if ORTRAIN_ONEDNN
  if (suits_onednn(c) && (!indices || c.used_only_by(1, "MaxPoolGrad"))) {
    const DnnlPool pool(c, dnnl::algorithm::pooling_max, c.shape(0), window);
    if (Kernel kernel = dnnl_pool_forward(c, pool, indices)) return kernel;
  }
#endif
  switch (c.dtype(0)) {
    case DType::kFloat:
      return portable_max_pool<float>(c, s, indices);
    case DType::kDouble:
      return portable_max_pool<double>(c, s, indices);
    case DType::kInt8:
      return portable_max_pool<int8_t>(c, s, indices);
    case DType::kUInt8:
      return portable_max_pool<uint8_t>(c, s, indices);
    default:
      c.reject_dtype(0);
  }
}

// Makes the kernel of a floating type: make(T{}) for the type of input 0.
template <typename F>
Kernel floating_kernel(KernelContext& c, F&& make) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = make(zero); })) c.reject_dtype(0);
  return kernel;
}

Kernel max_pool_grad_kernel(KernelContext& c) {
#if ORTRAIN_ONEDNN
  const LayoutPtr stored = c.in_layout(1);
  if (const auto* workspace = dynamic_cast<const PoolWorkspace*>(stored.get())) {
    const Backward& pd = workspace->backward();
    c.expect(pd.diff_src_desc().get_dims() == c.out_shape(0), "its indices come from a MaxPool over ",
             to_string(pd.diff_src_desc().get_dims()), ", but its result has shape ",
             to_string(c.out_shape(0)));
    return dnnl_pool_backward(c, pd, c.in(1, stored), pd.workspace_desc());
  }
#endif
  const PoolSizes s = sizes_of(c, c.out_shape(0), read_pool(c, c.out_shape(0)));
  c.expect(!s.column_major, "there is no gradient for indices in storage_order 1");
  return floating_kernel(c, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot dy = c.in(0), indices = c.in(1), dx = c.out(0);
    return [=](const Frame& f) {
      max_pool_backward<T>(s, f.at<const T>(dy), f.at<const int64_t>(indices), f.at<T>(dx));
    };
  });
}

Kernel average_pool_kernel(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const PoolSizes s = sizes_of(c, c.shape(0), window);
#if ORTRAIN_ONEDNN
  if (suits_onednn(c) && divides_alike(window, s.count_padding)) {
    const DnnlPool pool(c, average(s.count_padding), c.shape(0), window);
    if (Kernel kernel = dnnl_pool_forward(c, pool, false)) return kernel;
  }
#endif
  return floating_kernel(c, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out(0);
    return [=](const Frame& f) { average_pool<T>(s, f.at<const T>(x), f.at<T>(y)); };
  });
}

Kernel average_pool_grad_kernel(KernelContext& c) {
  const Shape& x = c.out_shape(0);
  const Window window = read_pool(c, x);
  const PoolSizes s = sizes_of(c, x, window);
#if ORTRAIN_ONEDNN
  if (suits_onednn(c) && divides_alike(window, s.count_padding)) {
    const DnnlPool pool(c, average(s.count_padding), x, window);
    if (const auto pair = pool.choose(like(c.in_layout(0), pool.y, x), true))
      return dnnl_pool_backward(c, *pair->backward, {}, memory::desc());
  }
#endif
  return floating_kernel(c, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot dy = c.in(0), dx = c.out(0);
    return [=](const Frame& f) { average_pool_backward<T>(s, f.at<const T>(dy), f.at<T>(dx)); };
  });
}

template <typename T>
using GlobalPool = void (*)(int64_t planes, int64_t points, const T* x, T* y);

template <typename T>
Kernel global_kernel(KernelContext& c, GlobalPool<T> pool) {
  const Slot x = c.in(0), y = c.out(0);
  const int64_t planes = c.shape(0)[0] * c.shape(0)[1],
                points = element_count(c.shape(0), 2, c.shape(0).size());
  return [=](const Frame& f) { pool(planes, points, f.at<const T>(x), f.at<T>(y)); };
}

Kernel global_average_kernel(KernelContext& c) {
#if ORTRAIN_ONEDNN
  // Row-major planes are summed as they lie; only values in another layout are left to oneDNN.
  const Shape& x = c.shape(0);
  if (suits_onednn(c) && c.in_layout(0) && x.size() <= 5) {
    Window window(x.size() - 2);
    for (size_t i = 0; i < window.size(); ++i) window[i].input = window[i].kernel = x[2 + i];
    const DnnlPool pool(c, average(false), x, window);
    if (Kernel kernel = dnnl_pool_forward(c, pool, false)) return kernel;
  }
#endif
  return floating_kernel(c, [&](auto zero) { return global_kernel<decltype(zero)>(c, global_average); });
}

Kernel global_max_kernel(KernelContext& c) {
  return floating_kernel(c, [&](auto zero) { return global_kernel<decltype(zero)>(c, global_max); });
}

// -----------------------------------------------------------------------------------------------------------
// Gradients.

// MaxPoolGrad and AveragePoolGrad of onnxruntime are given dY alone: the extents of X must be stated in the
// model, which needs numbers. Where there are none, ours are given the shape of X too.
bool knows_space(GradientContext& g) {
  const auto dims = g.dims(g.x(0));
  return dims && std::all_of(dims->begin() + std::min<size_t>(2, dims->size()), dims->end(),
                             [](const Dim& d) { return d.known(); });
}

void max_pool_gradient(GradientContext& g) {
  if (g.node().int_or("storage_order", 0) != 0) g.reject("there is no gradient for storage_order 1");
  const std::string indices = g.want_y(1);
  if (knows_space(g)) {
    g.set(0, g("MaxPoolGrad", {g.dy(0), indices}, g.node().attributes));
    return;
  }
  const std::string shape = g("Shape", {g.x(0)});
  constexpr int64_t kAddingScatter = 16;
  if (g.opset() < kAddingScatter) {
    g.set(0, g("MaxPoolGrad", {g.dy(0), indices, shape}, g.node().attributes));
    return;
  }
  // The same from operators that onnxruntime has too.
  const std::string line = g.int64s({-1});
  Tensor zero(g.dtype(g.x(0)), {1});
  zero.copy_from(Tensor::scalar(zero.dtype(), 0).reshaped({1}));
  const std::string zeros = g("Reshape", {g("ConstantOfShape", {shape}, {{"value", zero}}), line});
  const std::string sums =
      g("ScatterElements", {zeros, g("Reshape", {indices, line}), g("Reshape", {g.dy(0), line})},
        {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  g.set(0, g("Reshape", {sums, shape}));
}

void average_pool_gradient(GradientContext& g) {
  std::vector<std::string> inputs = {g.dy(0)};
  if (!knows_space(g)) inputs.push_back(g("Shape", {g.x(0)}));
  g.set(0, g("AveragePoolGrad", inputs, g.node().attributes));
}

// dX = dY / (elements of a channel), repeated.
void global_average_gradient(GradientContext& g) {
  const std::string shape = g("Shape", {g.x(0)});
  std::string scaled;
  if (knows_space(g)) {
    double points = 1;
    const std::vector<Dim> dims = *g.dims(g.x(0));
    for (size_t i = 2; i < dims.size(); ++i) points *= static_cast<double>(dims[i].value);
    scaled = g("Mul", {g.dy(0), g.scalar_like(g.x(0), 1 / points)});
  } else {
    const std::string space = g("Slice", {shape, g.int64s({2}), g.int64s({INT64_MAX})});
    const std::string points = g("ReduceProd", {space}, {{"keepdims", int64_t{0}}});
    scaled = g("Div", {g.dy(0), g("Cast", {points}, {{"to", static_cast<int64_t>(g.dtype(g.x(0)))}})});
  }
  g.set(0, g("Expand", {scaled, shape}));
}

// The gradient goes to the largest element; where several are equal they share it.
void global_max_gradient(GradientContext& g) {
  const auto rank = g.rank(g.x(0));
  if (!rank) g.reject("the rank of its input is not known; run ONNX shape inference on the model first");
  std::vector<int64_t> axes;
  for (int64_t i = 2; i < *rank; ++i) axes.push_back(i);
  const std::string mask =
      g("Cast", {g("Equal", {g.x(0), g.y(0)})}, {{"to", static_cast<int64_t>(g.dtype(g.x(0)))}});
  const std::string share = g("Div", {g.dy(0), g.reduce_sum(mask, axes, true)});
  g.set(0, g("Mul", {mask, share}));
}

// dX is linear in dY, and Y is what is at the indices, so this is u at the indices.
void max_pool_grad_gradient(GradientContext& g) {
  const std::string line = g("Reshape", {g.dy(0), g.int64s({-1})});
  g.set(0, g("Gather", {line, g.x(1)}, {{"axis", int64_t{0}}}));
}

void average_pool_grad_gradient(GradientContext& g) {
  g.set(0, g("AveragePool", {g.dy(0)}, g.node().attributes));
}

ORTRAIN_OPERATOR({.type = "MaxPool",
                  .shape = max_pool_shape,
                  .kernel = max_pool_kernel,
                  .gradient = max_pool_gradient,
                  .takes_bf16 = true,
                  .element_type = first_like_input<DType::kInt64>});
ORTRAIN_OPERATOR({.type = "MaxPoolGrad",
                  .shape = max_pool_grad_shape,
                  .kernel = max_pool_grad_kernel,
                  .gradient = max_pool_grad_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.type = "AveragePool",
                  .shape = average_pool_shape,
                  .kernel = average_pool_kernel,
                  .gradient = average_pool_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.type = "AveragePoolGrad",
                  .shape = average_pool_grad_shape,
                  .kernel = average_pool_grad_kernel,
                  .gradient = average_pool_grad_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.type = "GlobalAveragePool",
                  .shape = global_pool_shape,
                  .kernel = global_average_kernel,
                  .gradient = global_average_gradient,
                  .takes_bf16 = true});
ORTRAIN_OPERATOR({.type = "GlobalMaxPool",
                  .shape = global_pool_shape,
                  .kernel = global_max_kernel,
                  .gradient = global_max_gradient});

}  // namespace

}  // namespace ortrain
