// Batch normalization: BatchNormalization, and onnxruntime's BatchNormInternal and BatchNormalizationGrad,
// which training graphs use.
//
// In training the statistics are those of the batch, with the biased variance, and the running ones move
// towards them: running = momentum * running + (1 - momentum) * batch. BatchNormalization gives the new
// running statistics out, BatchNormInternal also writes them over its inputs, which are state of the model.
#include <cmath>
#include <cstring>
#include <optional>

#include "backend/cpu/norm/channel_statistics.h"
#include "backend/cpu/norm/portable_batch_normalization.h"
#include "backend/cpu/onednn/dnnl.h"
#include "op/operator.h"
#include "ops/common/bf16_storage.h"
#include "ops/nn/normalization_gradient.h"

namespace ortrain {

namespace {

constexpr int64_t kTrainingMode = 14;  // since this opset an attribute tells, before the outputs did

// Which tensor is which among the inputs.
enum Input : size_t { kX, kScale, kBias, kMean, kVariance };
enum GradInput : size_t { kGradDy, kGradX, kGradScale, kGradMean, kGradInverse };

bool is_internal(const Node& node) { return node.op_type == "BatchNormInternal"; }

bool trains(const Node& node, int64_t opset) {
  if (is_internal(node)) return node.int_or("training_mode", 1) != 0;
  if (opset >= kTrainingMode) return node.int_or("training_mode", 0) != 0;
  for (size_t o = 1; o < node.outputs.size(); ++o)
    if (node.has_output(o)) return true;
  return false;
}

BatchSizes sizes_of(const Shape& x) { return {x[0], x[1], element_count(x, 2, x.size())}; }

// Checks that inputs [first, last) hold one value a channel of X.
void check_channels(const NodeContext& c, size_t x, size_t first, size_t last) {
  static constexpr const char* kNames[] = {"", "", "scale", "mean", "inverse deviation"};
  static constexpr const char* kForwardNames[] = {"X", "scale", "bias", "mean", "variance"};
  c.expect(c.rank(x) >= 2, "its input X must have shape [N, C, ...], found ", to_string(c.shape(x)));
  for (size_t i = first; i < last; ++i) {
    const char* name = x == kX ? kForwardNames[i] : kNames[i];
    c.expect(c.shape(i) == Shape{c.shape(x)[1]}, "its ", name, " must have one value for each of the ",
             c.shape(x)[1], " channels of X ", to_string(c.shape(x)), ", found shape ",
             to_string(c.shape(i)));
    // float and the 16-bit floats go together.
    c.expect(wide_of(c.dtype(i)) == wide_of(c.dtype(x)), "its ", name, " must have the type of X, ",
             to_string(c.dtype(x)), ", found ", to_string(c.dtype(i)));
  }
}

DType forward_types(const ElementTypes& types, size_t o) { return types[o == 0 ? kX : kMean]; }

DType grad_types(const ElementTypes& types, size_t o) { return types[o == 0 ? kGradX : kGradScale]; }

void forward_shape(ShapeContext& c) {
  c.expect(c.node().int_or("spatial", 1) != 0, "statistics for each place (spatial = 0) are not supported");
  check_channels(c, kX, kScale, kVariance + 1);
  c.output(0, c.dtype(kX), c.shape(kX));
  for (size_t o = 1; o < 6; ++o) c.output(o, c.dtype(kMean), {c.shape(kX)[1]});
}

void grad_shape(ShapeContext& c) {
  check_channels(c, kGradX, kGradScale, kGradInverse + 1);
  c.expect(c.shape(kGradDy) == c.shape(kGradX) && c.dtype(kGradDy) == c.dtype(kGradX), "dY must be like X, ",
           to_string(c.dtype(kGradX)), to_string(c.shape(kGradX)), ", found ", to_string(c.dtype(kGradDy)),
           to_string(c.shape(kGradDy)));
  c.output(0, c.dtype(kGradX), c.shape(kGradX));
  for (size_t o = 1; o < 3; ++o) c.output(o, c.dtype(kGradScale), {c.shape(kGradX)[1]});
}

// -----------------------------------------------------------------------------------------------------------
// oneDNN.

#if ORTRAIN_ONEDNN

using dnnl::memory;
using Forward = dnnl::batch_normalization_forward::primitive_desc;
using Backward = dnnl::batch_normalization_backward::primitive_desc;

const auto kAffine = dnnl::normalization_flags::use_scale | dnnl::normalization_flags::use_shift;

// X as oneDNN is shown it. The layout is what the value is stored in; the description has at least four axes,
// which all optimized primitives take.
struct View {
  LayoutPtr layout;
  memory::desc desc;
};

// The layout of X where it has one, else channels last: oneDNN has no optimized primitive for row-major
// planes.
std::optional<View> choose_view(const LayoutPtr& stored, const Shape& shape) {
  if (shape.size() > 5 || !is_dnnl(stored)) return std::nullopt;
  Shape padded = shape;
  while (padded.size() < 4) padded.insert(padded.begin() + 2, 1);
  const DnnlType type = stored && stored->bf16() ? DnnlType::bf16 : DnnlType::f32;
  try {
    if (!stored || stored->reshaped(shape)) {  // row-major
      // With one point a channel, row-major order is channels last.
      const LayoutPtr layout =
          element_count(shape, 2, shape.size()) == 1 ? stored : dnnl_layout(dnnl_channels_last(shape, type));
      return View{layout, dnnl_channels_last(padded, type)};
    }
    return View{stored, dnnl_desc(stored, shape).reshape(padded)};
  } catch (const dnnl::error&) {
    return std::nullopt;
  }
}

// With given statistics: oneDNN adds up its own one by one in float, five times the error on a plane of
// 16384.
std::optional<Forward> describe_forward(const View& view, float epsilon) {
  try {
    Forward pd(dnnl_engine(), dnnl::prop_kind::forward_inference, view.desc, view.desc, epsilon,
               kAffine | dnnl::normalization_flags::use_global_stats, dnnl_attr());
    if (is_fast(pd)) return pd;
  } catch (const dnnl::error&) {
  }
  return std::nullopt;
}

std::optional<Backward> describe_backward(const View& view) {
  try {
    const Forward hint(dnnl_engine(), dnnl::prop_kind::forward_training, view.desc, view.desc, 0.f, kAffine,
                       dnnl_attr());
    // Statistics come as 1 / sqrt(variance + epsilon); the square of that, inverted, is a variance for
    // epsilon 0.
    Backward pd(dnnl_engine(), dnnl::prop_kind::backward, view.desc, view.desc, view.desc, 0.f, kAffine, hint,
                dnnl_attr());
    if (is_fast(pd)) return pd;
  } catch (const dnnl::error&) {
  }
  return std::nullopt;
}

// How the channels lie in that layout, where each value of X is there once: channels last, or blocks of
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

#endif

// -----------------------------------------------------------------------------------------------------------
// Forward.

// Where the statistics of a training step go.
struct Statistics {
  Slot mean, variance;  // of the batch
  struct Running {
    Slot before, after;  // `after` may be undefined or the same memory
  };
  Running running[2];  // mean, variance
  Slot state[2];       // the same, updated in place
  Slot inverse;        // 1 / sqrt(variance + epsilon)
  int64_t channels = 0;
  float momentum = 0, epsilon = 0;
  bool empty = false;  // no values in the batch: running statistics stay as they are
};

template <typename T>
void update_statistics(const Statistics& s, const Frame& f) {
  const T* batch[2] = {f.at<const T>(s.mean), f.at<const T>(s.variance)};
  const T keep = s.empty ? T(1) : static_cast<T>(s.momentum), take = T(1) - keep;
  for (int k = 0; k < 2; ++k) {
    const T* before = f.at<const T>(s.running[k].before);
    T* after = f.at_or_null<T>(s.running[k].after);
    T* state = f.at_or_null<T>(s.state[k]);
    for (int64_t i = 0; i < s.channels; ++i) {
      const T value = keep * before[i] + take * batch[k][i];
      if (after) after[i] = value;
      if (state) state[i] = value;
    }
  }
  if (T* inverse = f.at_or_null<T>(s.inverse))
    for (int64_t i = 0; i < s.channels; ++i)
      inverse[i] = T(1) / std::sqrt(batch[1][i] + static_cast<T>(s.epsilon));
}

// Outputs 1 to 5 of a training node. Opset 9 to 13 gives out the variance of the batch as output 4,
// onnxruntime's operator the inverse deviation; output 5, which recomputation asks for, is its variance.
Statistics plan_statistics(KernelContext& c) {
  Statistics s;
  s.channels = c.shape(kX)[1];
  s.momentum = c.node().float_or("momentum", 0.9f);
  s.epsilon = c.node().float_or("epsilon", 1e-5f);
  s.empty = c.size(kX) == 0;
  const size_t bytes = static_cast<size_t>(s.channels) * size_of(c.dtype(kX));
  const bool internal = is_internal(c.node());
  const auto wanted = [&](size_t o) { return c.has_output(o) && !c.used_only_by(o, ""); };
  for (int k = 0; k < 2; ++k) {
    const size_t input = k == 0 ? kMean : kVariance, output = static_cast<size_t>(k) + 1;
    if (internal) s.state[k] = c.state(input);
    s.running[k].before = internal ? s.state[k] : c.in(input);
    if (wanted(output)) s.running[k].after = c.out(output);
  }
  s.mean = wanted(3) ? c.out(3) : c.scratch(bytes);
  const size_t variance = internal ? 5 : 4;
  s.variance = wanted(variance) ? c.out(variance) : c.scratch(bytes);
  if (wanted(4) && internal) s.inverse = c.out(4);
  return s;
}

template <typename T>
Kernel portable_training(KernelContext& c) {
  const BatchSizes sizes = sizes_of(c.shape(kX));
  const Slot x = c.in(kX), scale = c.in(kScale), bias = c.in(kBias);
  const Statistics s = plan_statistics(c);
  const Slot y = c.out(0);
  return [=](const Frame& f) {
    batch_statistics<T>(sizes, f.at<const T>(x), f.at<T>(s.mean), f.at<T>(s.variance));
    batch_normalize<T>(sizes, f.at<const T>(x), f.at<const T>(scale), f.at<const T>(bias),
                       f.at<const T>(s.mean), f.at<const T>(s.variance), static_cast<T>(s.epsilon),
                       f.at<T>(y));
    update_statistics<T>(s, f);
  };
}

// Without training, the outputs for running statistics are what came in.
Kernel with_statistics_passed_on(KernelContext& c, Kernel normalize) {
  const size_t bytes = static_cast<size_t>(c.shape(kX)[1]) * size_of(c.dtype(kX));
  for (size_t o = 1; o < std::min<size_t>(c.output_count(), 5); ++o) {
    if (!c.has_output(o) || c.used_only_by(o, "")) continue;
    const Slot from = c.in(o % 2 == 1 ? kMean : kVariance), to = c.out(o);
    normalize = [=, before = std::move(normalize)](const Frame& f) {
      before(f);
      if (bytes > 0) std::memcpy(f.at<std::byte>(to), f.at<std::byte>(from), bytes);
    };
  }
  return normalize;
}

template <typename T>
Kernel portable_inference(KernelContext& c) {
  const BatchSizes sizes = sizes_of(c.shape(kX));
  const T epsilon = static_cast<T>(c.node().float_or("epsilon", 1e-5f));
  const Slot x = c.in(kX), scale = c.in(kScale), bias = c.in(kBias), mean = c.in(kMean),
             variance = c.in(kVariance);
  const Slot y = c.out_inplace(0, {kX});
  return [=](const Frame& f) {
    batch_normalize<T>(sizes, f.at<const T>(x), f.at<const T>(scale), f.at<const T>(bias),
                       f.at<const T>(mean), f.at<const T>(variance), epsilon, f.at<T>(y));
  };
}

#if ORTRAIN_ONEDNN
Kernel dnnl_forward(KernelContext& c, bool training) {
  const auto view = choose_view(c.in_layout(kX), c.shape(kX));
  if (!view) return nullptr;
  const auto pd = describe_forward(*view, c.node().float_or("epsilon", 1e-5f));
  const auto layout = channel_layout(*view, c.shape(kX));
  // With the statistics of a batch given, the kernel is that which found them.
  const bool batch = training || c.node().int_or("batch_statistics", 0) != 0;
  if (!pd || (batch && (!layout || c.size(kX) == 0))) return nullptr;
  const memory::desc channels = dnnl_plain({c.shape(kX)[1]});
  const Slot x = c.in(kX, view->layout), scale = c.in(kScale), bias = c.in(kBias);
  Statistics s;
  if (training) s = plan_statistics(c);
  const Slot mean = training ? s.mean : c.in(kMean), variance = training ? s.variance : c.in(kVariance);
  const Slot sums = training ? c.scratch(channel_statistics_scratch(*layout)) : Slot{};
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
#endif

Kernel forward_kernel(KernelContext& c) {
  const bool training = trains(c.node(), c.opset());
  Kernel kernel;
#if ORTRAIN_ONEDNN
  if (suits_onednn(c)) kernel = dnnl_forward(c, training);
#endif
  if (!kernel) {
    const bool known = visit_floating(c.dtype(kX), [&](auto zero) {
      using T = decltype(zero);
      kernel = training ? portable_training<T>(c) : portable_inference<T>(c);
    });
    if (!known) c.reject_dtype(kX);
  }
  return training ? kernel : with_statistics_passed_on(c, std::move(kernel));
}

// -----------------------------------------------------------------------------------------------------------
// Backward.

template <typename T>
Kernel portable_backward(KernelContext& c) {
  const BatchSizes sizes = sizes_of(c.shape(kGradX));
  const Slot dy = c.in(kGradDy), x = c.in(kGradX), scale = c.in(kGradScale);
  const Slot mean = c.in(kGradMean), inverse = c.in(kGradInverse);
  const Slot dx = c.used_only_by(0, "") ? Slot{} : c.out_inplace(0, {kGradDy});
  const Slot dscale = c.out(1), dbias = c.out(2);
  return [=](const Frame& f) {
    batch_normalize_backward<T>(sizes, f.at<const T>(dy), f.at<const T>(x), f.at<const T>(scale),
                                f.at<const T>(mean), f.at<const T>(inverse), f.at_or_null<T>(dx),
                                f.at_or_null<T>(dscale), f.at_or_null<T>(dbias));
  };
}

#if ORTRAIN_ONEDNN
Kernel dnnl_backward(KernelContext& c) {
  const auto view = choose_view(c.in_layout(kGradX), c.shape(kGradX));
  if (!view) return nullptr;
  const auto pd = describe_backward(*view);
  if (!pd) return nullptr;
  const int64_t count = c.shape(kGradX)[1];
  const memory::desc channels = dnnl_plain({count});
  const Slot dy = c.in(kGradDy, view->layout), x = c.in(kGradX, view->layout), scale = c.in(kGradScale);
  const Slot mean = c.in(kGradMean), inverse = c.in(kGradInverse);
  // oneDNN wants a place for every result.
  const Slot variance = c.scratch(channels.get_size());
  const auto result = [&](Slot slot, size_t bytes) { return slot.defined() ? slot : c.scratch(bytes); };
  const Slot dx = result(c.used_only_by(0, "") ? Slot{} : c.out_inplace(0, {kGradDy}, view->layout),
                         view->desc.get_size());
  const Slot dscale = result(c.out(1), channels.get_size()), dbias = result(c.out(2), channels.get_size());
  const Kernel backward = dnnl_kernel(c, dnnl::batch_normalization_backward(*pd), pd->scratchpad_desc(),
                                      {{DNNL_ARG_SRC, view->desc, x},
                                       {DNNL_ARG_DIFF_DST, view->desc, dy},
                                       {DNNL_ARG_SCALE, channels, scale},
                                       {DNNL_ARG_MEAN, channels, mean},
                                       {DNNL_ARG_VARIANCE, channels, variance},
                                       {DNNL_ARG_DIFF_SRC, view->desc, dx},
                                       {DNNL_ARG_DIFF_SCALE, channels, dscale},
                                       {DNNL_ARG_DIFF_SHIFT, channels, dbias}});
  return [=](const Frame& f) {
    const float* from = f.at<const float>(inverse);
    float* to = f.at<float>(variance);
    for (int64_t i = 0; i < count; ++i) to[i] = 1 / (from[i] * from[i]);
    backward(f);
  };
}
#endif

Kernel grad_kernel(KernelContext& c) {
#if ORTRAIN_ONEDNN
  if (suits_onednn(c))
    if (Kernel kernel = dnnl_backward(c)) return kernel;
#endif
  Kernel kernel;
  if (!visit_floating(c.dtype(kGradX), [&](auto zero) { kernel = portable_backward<decltype(zero)>(c); }))
    c.reject_dtype(kGradX);
  return kernel;
}

// -----------------------------------------------------------------------------------------------------------
// Gradients.

void training_gradient(GradientContext& g) {
  if (!is_internal(g.node())) {
    if (g.opset() < kTrainingMode)
      g.reject(concat("training mode has a gradient since opset ", kTrainingMode, ", the model has opset ",
                      g.opset(), "; convert the model"));
    g.retype_node("BatchNormInternal", kMicrosoft);
  }
  const std::string mean = g.want_y(3), inverse = g.want_y(4);
  const Attributes attributes = {{"epsilon", g.node().float_or("epsilon", 1e-5f)}};
  const auto d = g.emit("BatchNormalizationGrad", {g.dy(0), g.x(kX), g.x(kScale), mean, inverse}, 3,
                        attributes, kMicrosoft);
  for (const size_t i : {kX, kScale, kBias})
    if (g.needs(i)) g.set(i, d[i]);
}

// With constant statistics: Y = scale x̂ + bias, x̂ = (X - mean) r, r = 1 / sqrt(variance + epsilon).
void inference_gradient(GradientContext& g) {
  const auto rank = g.rank(g.x(kX));
  if (!rank) g.reject("the rank of its input is not known; run ONNX shape inference on the model first");
  std::vector<int64_t> inner, all_but_channels = {0};
  for (int64_t i = 2; i < *rank; ++i) {
    inner.push_back(i - 1);
    all_but_channels.push_back(i);
  }
  const auto by_channel = [&](const std::string& v) { return inner.empty() ? v : g.unsqueeze(v, inner); };
  const auto sum = [&](const std::string& v) { return g.reduce_sum(v, all_but_channels, false); };
  const std::string dy = g.dy(0);
  const std::string epsilon = g.scalar_like(g.x(kX), g.node().float_or("epsilon", 1e-5f));
  const std::string r = g("Reciprocal", {g("Sqrt", {g("Add", {g.x(kVariance), epsilon})})});
  const std::string factor = g("Mul", {g.x(kScale), r});
  if (g.needs(kX)) g.set(kX, g("Mul", {dy, by_channel(factor)}));
  if (g.needs(kBias)) g.set(kBias, sum(dy));
  if (g.needs(kMean)) g.set(kMean, g("Neg", {g("Mul", {factor, sum(dy)})}));
  if (!g.needs(kScale) && !g.needs(kVariance)) return;
  const std::string centered = g("Sub", {g.x(kX), by_channel(g.x(kMean))});
  const std::string products = g("Mul", {sum(g("Mul", {dy, centered})), r});  // Σ dY x̂
  if (g.needs(kScale)) g.set(kScale, products);
  if (!g.needs(kVariance)) return;
  const std::string halved = g("Mul", {g("Mul", {factor, r}), g.scalar_like(g.x(kX), -0.5)});
  g.set(kVariance, g("Mul", {halved, products}));
}

void forward_gradient(GradientContext& g) {
  if (trains(g.node(), g.opset()))
    training_gradient(g);
  else
    inference_gradient(g);
}

void grad_gradient(GradientContext& g) {
  const auto rank = g.rank(g.x(1));
  if (!rank) g.reject("the rank of its input is not known; run ONNX shape inference on the model first");
  NormalizedAxes axes{{0}, {0}, {}};
  for (int64_t i = 2; i < *rank; ++i) {
    axes.group.push_back(i);
    axes.parameters.push_back(i);
    axes.lifted.push_back(i - 1);
  }
  const auto lift = [&](size_t i) { return axes.lifted.empty() ? g.x(i) : g.unsqueeze(g.x(i), axes.lifted); };
  normalization_grad_gradient(g, axes, lift(3), lift(4));
}

ORTRAIN_OPERATOR({.type = "BatchNormalization",
                  .shape = forward_shape,
                  .kernel = forward_kernel,
                  .gradient = forward_gradient,
                  .takes_bf16 = true,
                  .element_type = forward_types});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BatchNormInternal",
                  .shape = forward_shape,
                  .kernel = forward_kernel,
                  .gradient = forward_gradient,
                  .impure = true,
                  .updates = 1u << kMean | 1u << kVariance,
                  .takes_bf16 = true,
                  .element_type = forward_types});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BatchNormalizationGrad",
                  .shape = grad_shape,
                  .kernel = grad_kernel,
                  .gradient = grad_gradient,
                  .takes_bf16 = true,
                  .element_type = grad_types});

}  // namespace

}  // namespace ortrain
