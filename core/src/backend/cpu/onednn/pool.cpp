// Pooling with oneDNN.
#include <algorithm>
#include <memory>
#include <optional>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/onednn/dnnl.h"
#include "backend/cpu/onednn/kernels.h"
#include "geometry/pooling.h"

namespace ortrain {
namespace {

using dnnl::memory;
using Forward = dnnl::pooling_forward::primitive_desc;
using Backward = dnnl::pooling_backward::primitive_desc;

// A pooling in oneDNN's terms.
struct DnnlPool {
  dnnl::algorithm algorithm;
  DnnlType type;
  Shape x, y;
  memory::dims kernel, strides, dilations, before, after;

  // The values are stored like input 0 of the node.
  static constexpr int64_t kMostKernel = 1 << 16;

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
  // The forward primitive, with the matching backward one if the node is trained.
  struct Pair {
    Forward forward;
    std::optional<Backward> backward;
  };
  std::optional<Pair> choose(const LayoutPtr& stored, bool training) const {
    // Its kernels go through all of a window, also where it reaches beyond the input; ours do not.
    for (size_t i = 0; i < kernel.size(); ++i)
      if (kernel[i] > kMostKernel || strides[i] > kMostKernel || dilations[i] > kMostKernel)
        return std::nullopt;
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

// What MaxPool saves for MaxPoolGrad instead of indices: oneDNN's record of where the maxima were.
class PoolWorkspace : public Layout {
 public:
  PoolWorkspace(const Forward& forward, const Backward& backward) : forward_(forward), backward_(backward) {}
  size_t bytes() const override { return forward_.workspace_desc().get_size(); }
  bool equals(const Layout& other) const override { return this == &other; }
  bool dense() const override { return false; }
  Kernel to_plain(Slot, Slot) const override { reject(); }
  Kernel from_plain(Slot, Slot) const override { reject(); }
  const Backward& backward() const { return backward_; }

 private:
  [[noreturn]] static void reject() {
    fail(ErrorCode::kFail, "the workspace of MaxPool can only be read by MaxPoolGrad");
  }
  Forward forward_;
  Backward backward_;
};

std::optional<Kernel> dnnl_pool_forward(KernelContext& c, const DnnlPool& pool, bool keep_workspace) {
  const auto pair = pool.choose(c.in_layout(0), keep_workspace);
  if (!pair) return std::nullopt;
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

// If padding counts, oneDNN divides by all elements of a window, even those beyond the padding that the node
// states.
bool divides_alike(const Window& window, bool count_padding) {
  return !count_padding ||
         std::all_of(window.begin(), window.end(), [](const WindowAxis& a) { return a.reach() <= a.after; });
}

dnnl::algorithm average(bool count_padding) {
  return count_padding ? dnnl::algorithm::pooling_avg_include_padding
                       : dnnl::algorithm::pooling_avg_exclude_padding;
}

// A layout for `shape` of the same kind as that of a value of shape `other`, if there is one.
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

bool counts_padding(const NodeContext& c) { return c.node().int_or("count_include_pad", 0) != 0; }

}  // namespace

std::optional<Kernel> onednn_max_pool(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const bool indices = c.has_output(1) && !c.used_only_by(1, "");
  if (indices && !c.used_only_by(1, "MaxPoolGrad")) return std::nullopt;
  return dnnl_pool_forward(c, DnnlPool(c, dnnl::algorithm::pooling_max, c.shape(0), window), indices);
}

// After a MaxPool that saved its workspace.
std::optional<Kernel> onednn_max_pool_grad(KernelContext& c) {
  const LayoutPtr stored = c.in_layout(1);
  const auto* workspace = dynamic_cast<const PoolWorkspace*>(stored.get());
  if (!workspace) return std::nullopt;
  const Backward& pd = workspace->backward();
  c.expect(pd.diff_src_desc().get_dims() == c.out_shape(0), "its indices come from a MaxPool over ",
           to_string(pd.diff_src_desc().get_dims()), ", but its result has shape ",
           to_string(c.out_shape(0)));
  return dnnl_pool_backward(c, pd, c.in(1, stored), pd.workspace_desc());
}

std::optional<Kernel> onednn_average_pool(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  if (!divides_alike(window, counts_padding(c))) return std::nullopt;
  return dnnl_pool_forward(c, DnnlPool(c, average(counts_padding(c)), c.shape(0), window), false);
}

std::optional<Kernel> onednn_average_pool_grad(KernelContext& c) {
  const Shape& x = c.out_shape(0);
  const Window window = read_pool(c, x);
  if (!divides_alike(window, counts_padding(c))) return std::nullopt;
  const DnnlPool pool(c, average(counts_padding(c)), x, window);
  const auto pair = pool.choose(like(c.in_layout(0), pool.y, x), true);
  if (!pair) return std::nullopt;
  return dnnl_pool_backward(c, *pair->backward, {}, memory::desc());
}

// Row-major planes are summed as they are stored; oneDNN is only used for values in another layout.
std::optional<Kernel> onednn_global_average_pool(KernelContext& c) {
  const Shape& x = c.shape(0);
  if (!c.in_layout(0) || x.size() > 5) return std::nullopt;
  Window window(x.size() - 2);
  for (size_t i = 0; i < window.size(); ++i) window[i].input = window[i].kernel = x[2 + i];
  return dnnl_pool_forward(c, DnnlPool(c, average(false), x, window), false);
}

}  // namespace ortrain
