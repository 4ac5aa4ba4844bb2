// Batch normalization in the layouts of oneDNN: its primitive, with our own statistics and gradients.
#include <optional>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/norm/batch_normalization_kernels.h"
#include "backend/cpu/norm/channel_gradients.h"
#include "backend/cpu/norm/channel_statistics.h"
#include "backend/cpu/onednn/dnnl.h"
#include "backend/cpu/onednn/kernels.h"

namespace ortrain {

using namespace batch_normalization;

namespace {

using dnnl::memory;
using Forward = dnnl::batch_normalization_forward::primitive_desc;

const auto kAffine = dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;

// X as described to oneDNN. The layout is that of the stored value; the description has at least four axes,
// which all optimized primitives accept.
struct View {
  LayoutPtr layout;
  memory::desc desc;
};

// The layout of X if it has one, else channels last: oneDNN has no optimized primitive for row-major planes.
std::optional<View> choose_view(const LayoutPtr& stored, const Shape& shape) {
  if (shape.size() > 5 || !is_dnnl(stored)) return std::nullopt;
  Shape padded = shape;
  while (padded.size() < 4) padded.insert(padded.begin() + 2, 1);
  const DnnlType type = stored && stored->bf16() ? DnnlType::bf16 : DnnlType::f32;
  try {
    if (!stored || stored->reshaped(shape)) {  // row-major
      // With one point per channel, row-major order is channels last.
      const LayoutPtr layout =
          element_count(shape, 2, shape.size()) == 1 ? stored : dnnl_layout(dnnl_channels_last(shape, type));
      return View{layout, dnnl_channels_last(padded, type)};
    }
    return View{stored, dnnl_desc(stored, shape).reshape(padded)};
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
}

// With given statistics: oneDNN sums its own one value at a time in float, which gives five times the error
// on a plane of 16384.
std::optional<Forward> describe_forward(const View& view, float epsilon) {
  try {
    Forward pd(dnnl_engine(), dnnl::prop_kind::forward_inference, view.desc, view.desc, epsilon,
               kAffine | dnnl::normalization_flags::use_global_stats, dnnl_attr());
    if (is_fast(pd)) return pd;
  } catch (const dnnl::error&) {
  }
  return std::nullopt;
}

// How channels are stored in that layout, which has each value of X once: channels last, or blocks of
// channels.
std::optional<ChannelLayout> channel_layout(const View& view, const Shape& shape) {
  if (!is_dense(view.desc)) return std::nullopt;
  const int64_t channels = shape[1], rows = element_count(shape, 2, shape.size());
  const memory::dims strides = view.desc.get_strides(), blocks = view.desc.get_inner_blks();
  if (view.desc.get_inner_nblks() == 0 && strides[1] == 1) return ChannelLayout{shape[0], 1, rows, channels};
  if (view.desc.get_inner_nblks() == 1 && view.desc.get_inner_idxs()[0] == 1)
    return ChannelLayout{shape[0], channels / blocks[0], rows, blocks[0]};
  return std::nullopt;
}

Kernel dnnl_forward(KernelContext& c, bool training) {
  const auto view = choose_view(c.in_layout(kX), c.shape(kX));
  if (!view) return nullptr;
  const auto pd = describe_forward(*view, c.node().float_or("epsilon", 1e-5f));
  const auto layout = channel_layout(*view, c.shape(kX));
  // With given statistics of a batch, the kernel that computes them is used.
  const bool batch = training || c.node().int_or("batch_statistics", 0) != 0;
  if (!pd || (batch && (!layout || c.size(kX) == 0))) return nullptr;
  const memory::desc channels = dnnl_plain({c.shape(kX)[1]});
  const Slot x = c.in(kX, view->layout), scale = c.in(kScale), bias = c.in(kBias);
  Statistics s;
  if (training) s = plan_statistics(c);
  const Slot mean = training ? s.mean : c.in(kMean), variance = training ? s.variance : c.in(kVariance);
  const Slot sums = training ? c.scratch(channel_sums_scratch(*layout)) : Slot{};
  const Slot y = c.out_inplace(0, {kX}, view->layout);
  const Kernel normalize = dnnl_kernel(c, dnnl::batch_normalization_forward(*pd), pd->scratchpad_desc(),
                                       {{DNNL_ARG_SRC, view->desc, x},
                                        {DNNL_ARG_SCALE, channels, scale},
                                        {DNNL_ARG_SHIFT, channels, bias},
                                        {DNNL_ARG_MEAN, channels, mean},
                                        {DNNL_ARG_VARIANCE, channels, variance},
                                        {DNNL_ARG_DST, view->desc, y}});
  if (!training) return normalize;
  return [=, layout = *layout, narrow = lies_in_bf16(c, kX)](const Frame& f) {
    if (narrow)
      channel_statistics(layout, f.at<const BFloat16>(x), f.at<float>(mean), f.at<float>(variance),
                         f.at<void>(sums));
    else
      channel_statistics(layout, f.at<const float>(x), f.at<float>(mean), f.at<float>(variance),
                         f.at<void>(sums));
    normalize(f);
    update_statistics<float>(s, f);
  };
}

template <typename T>
Kernel backward(KernelContext& c, const View& view, const ChannelLayout& layout) {
  const Slot dy = c.in(kGradDy, view.layout), x = c.in(kGradX, view.layout), scale = c.in(kGradScale);
  const Slot mean = c.in(kGradMean), inverse = c.in(kGradInverse);
  const Slot dx = c.used_only_by(0, "") ? Slot{} : c.out_inplace(0, {kGradDy}, view.layout);
  const Slot dscale = c.out(1), dbias = c.out(2);
  const Slot scratch = c.scratch(channel_gradients_scratch(layout));
  return [=](const Frame& f) {
    channel_gradients(layout, f.at<const T>(dy), f.at<const T>(x), f.at_or_null<T>(dx),
                      {f.at<const float>(scale), f.at<const float>(mean), f.at<const float>(inverse),
                       f.at_or_null<float>(dscale), f.at_or_null<float>(dbias)},
                      f.at<void>(scratch));
  };
}

}  // namespace

std::optional<Kernel> onednn_batch_normalization(KernelContext& c) {
  const bool training = trains(c.node(), c.opset());
  Kernel kernel = dnnl_forward(c, training);
  if (!kernel) return std::nullopt;
  return training ? kernel : with_statistics_passed_on(c, std::move(kernel));
}

// oneDNN sums the gradients one value at a time in float too.
std::optional<Kernel> onednn_batch_normalization_grad(KernelContext& c) {
  const auto view = choose_view(c.in_layout(kGradX), c.shape(kGradX));
  if (!view) return std::nullopt;
  const auto layout = channel_layout(*view, c.shape(kGradX));
  if (!layout) return std::nullopt;
  return lies_in_bf16(c, kGradX) ? backward<BFloat16>(c, *view, *layout) : backward<float>(c, *view, *layout);
}

}  // namespace ortrain
