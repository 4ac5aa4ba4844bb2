// Batch normalization: BatchNormalization, and onnxruntime's BatchNormInternal and BatchNormalizationGrad,
// which training graphs use.
//
// In training the statistics are those of the batch, with the biased variance, and the running statistics
// move towards them: running = momentum * running + (1 - momentum) * batch. BatchNormalization outputs the
// new running statistics; BatchNormInternal also writes them to its inputs, which are model state.
//
// Their kernels are listed in backend/cpu/implementations.cpp.
#include <iterator>
#include <optional>

#include "geometry/batch_normalization.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/session_domain.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/nn/normalization_gradient.h"

namespace ortrain {

namespace {

using namespace batch_normalization;

// Checks that inputs [first, last) have one value per channel of X.
void check_channels(const NodeContext& c, size_t x, size_t first, size_t last) {
  static constexpr const char* kNames[] = {"", "", "scale", "mean", "inverse deviation"};
  static constexpr const char* kForwardNames[] = {"X", "scale", "bias", "mean", "variance"};
  c.expect(c.rank(x) >= 2, "its input X must have shape [N, C, ...], found ", to_string(c.shape(x)));
  for (size_t i = first; i < last; ++i) {
    const char* name = x == kX ? kForwardNames[i] : kNames[i];
    c.expect(c.shape(i) == Shape{c.shape(x)[1]}, "its ", name, " must have one value for each of the ",
             counted(c.shape(x)[1], "channel"), " of X ", to_string(c.shape(x)), ", found shape ",
             to_string(c.shape(i)));
    // Float and the 16-bit floats may be mixed: they have the same wide form.
    c.expect(wide_of(c.dtype(i)) == wide_of(c.dtype(x)), "its ", name, " must have the type of X, ",
             to_string(c.dtype(x)), ", found ", to_string(c.dtype(i)));
  }
}

DType forward_types(const ElementTypes& types, size_t o) { return types[o == 0 ? kX : kMean]; }

DType grad_types(const ElementTypes& types, size_t o) { return types[o == 0 ? kGradX : kGradScale]; }

void forward_shape(ShapeContext& c) {
  c.expect(c.node().int_or("spatial", 1) != 0, "statistics per position (spatial = 0) are not supported");
  check_channels(c, kX, kScale, kVariance + 1);
  c.output(0, c.dtype(kX), c.shape(kX));
  for (size_t o = 1; o < 6; ++o) c.output(o, c.dtype(kMean), {c.shape(kX)[1]});
}

void grad_shape(ShapeContext& c) {
  check_channels(c, kGradX, kGradScale, kGradInverse + 1);
  c.expect(c.shape(kGradDy) == c.shape(kGradX) && c.dtype(kGradDy) == c.dtype(kGradX), "dY must match X, ",
           to_string(c.dtype(kGradX)), to_string(c.shape(kGradX)), ", found ", to_string(c.dtype(kGradDy)),
           to_string(c.shape(kGradDy)));
  c.output(0, c.dtype(kGradX), c.shape(kGradX));
  for (size_t o = 1; o < 3; ++o) c.output(o, c.dtype(kGradScale), {c.shape(kGradX)[1]});
}

// -----------------------------------------------------------------------------------------------------------
// Gradients.

void training_gradient(GradientContext& g) {
  if (!updates_statistics(g.node())) {
    if (g.opset() < since::kTrainingMode)
      g.reject("the gradient of training mode is supported from opset ", since::kTrainingMode,
               " on, but the model has opset ", g.opset(), "; convert the model");
    g.retype_node("BatchNormInternal", kMicrosoft);
  }
  const Name mean = g.want_y(3), inverse = g.want_y(4);
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
  const auto by_channel = [&](const Expression& v) {
    return inner.empty() ? v : Expression(g, g.unsqueeze(v, inner));
  };
  const auto sum = [&](const Expression& v) {
    return Expression(g, g.reduce_sum(v, all_but_channels, false));
  };
  const Expression dy(g, g.dy(0)), x(g, g.x(kX)), scale(g, g.x(kScale)), mean(g, g.x(kMean));
  const Expression variance(g, g.x(kVariance));
  const Expression r =
      (variance + static_cast<double>(g.node().float_or("epsilon", 1e-5f))).call("Sqrt").call("Reciprocal");
  const Expression factor = scale * r;
  if (g.needs(kX)) g.set(kX, dy * by_channel(factor));
  if (g.needs(kBias)) g.set(kBias, sum(dy));
  if (g.needs(kMean)) g.set(kMean, -(factor * sum(dy)));
  if (!g.needs(kScale) && !g.needs(kVariance)) return;
  const Expression products = sum(dy * (x - by_channel(mean))) * r;  // Σ dY x̂
  if (g.needs(kScale)) g.set(kScale, products);
  if (g.needs(kVariance)) g.set(kVariance, factor * r * -0.5 * products);
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

// onnxruntime trains only with its own batch normalization: ONNX's in training mode has no kernel there. The
// two differ in the outputs that they save for the backward pass.
void use_internal(Node& node, const UniqueName& unique) {
  if (node.int_or("training_mode", 0) != 1) return;
  node.op_type = "BatchNormInternal";
  node.domain = kMicrosoft;
  static constexpr const char* kOutputs[] = {"Y", "running_mean", "running_var", "saved_mean",
                                             "saved_inv_std"};
  for (size_t o = node.outputs.size(); o < std::size(kOutputs); ++o)
    node.outputs.push_back(unique(concat(node.outputs[0], "_", kOutputs[o])));
}

// Writes a node that uses the statistics of the batch from the first run. The rule requests the variance
// itself, because a variance derived from the inverse deviation would differ in the last bit.
std::optional<Node> repeat_internal(const Node& node, const FirstOutput& first) {
  if (node.int_or("training_mode", 1) == 0) return std::nullopt;
  Node again = node;
  const bool clipped = node.has(kLow);
  again.domain = clipped ? kSessionDomain : "";
  again.op_type = clipped ? "ClippedBatchNormalization" : "BatchNormalization";
  again.inputs.resize(5);
  again.inputs[kMean] = first(3);
  again.inputs[kVariance] = first(5);
  again.outputs.resize(1);
  again.attributes = {{"epsilon", node.float_or("epsilon", 1e-5f)}, {"batch_statistics", int64_t{1}}};
  for (const char* name : {kLow, kHigh, kExcluded})
    if (node.has(name)) again.attributes[name] = node.attributes.at(name);
  return again;
}

ORTRAIN_OPERATOR(
    {.type = "BatchNormalization",
     .rules = {.shape = forward_shape, .gradient = forward_gradient, .element_type = forward_types},
     .traits = {.takes_bf16 = true, .train = use_internal}});
ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "BatchNormInternal",
     .signature =
         "X, scale, B, input_mean, input_var -> Y, running_mean?, running_var?, saved_mean?, saved_inv_std?",
     .rules = {.shape = forward_shape, .gradient = forward_gradient, .element_type = forward_types},
     .traits = {.impure = true,
                .updates = 1u << kMean | 1u << kVariance,
                .takes_bf16 = true,
                .repeat = repeat_internal}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BatchNormalizationGrad",
                  .signature = "dY, X, scale, mean, variance -> X_grad, scale_grad, bias_grad",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient, .element_type = grad_types},
                  .traits = {.takes_bf16 = true}});

// Followed by Relu or Clip (fuse_batch_normalization_clip). ClippedBatchNormalization repeats
// ClippedBatchNormInternal with its statistics.
ORTRAIN_OPERATOR(
    {.domain = kSessionDomain,
     .type = "ClippedBatchNormInternal",
     .signature =
         "X, scale, B, input_mean, input_var -> Y, running_mean?, running_var?, saved_mean?, saved_inv_std?",
     .rules = {.shape = forward_shape, .element_type = forward_types},
     .traits = {.impure = true,
                .updates = 1u << kMean | 1u << kVariance,
                .takes_bf16 = true,
                .repeat = repeat_internal},
     .made_from = {"BatchNormInternal", "BatchNormalizationGrad"}});
ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "ClippedBatchNormalization",
                  .signature = "X, scale, B, mean, variance -> Y",
                  .rules = {.shape = forward_shape, .element_type = forward_types},
                  .traits = {.takes_bf16 = true},
                  .made_from = {"BatchNormInternal", "BatchNormalizationGrad"}});
ORTRAIN_OPERATOR({.domain = kSessionDomain,
                  .type = "ClippedBatchNormalizationGrad",
                  .signature = "dY, X, scale, mean, variance, B -> X_grad, scale_grad, bias_grad",
                  .rules = {.shape = grad_shape, .element_type = grad_types},
                  .traits = {.takes_bf16 = true},
                  .made_from = {"BatchNormInternal", "BatchNormalizationGrad"}});

// -----------------------------------------------------------------------------------------------------------
// With operators of ONNX, but without BatchNormalization in training mode, for which onnxruntime has no
// kernel.

// The axes of X: the axes that Unsqueeze adds to a value per channel, and the axes over which the statistics
// are taken.
struct ChannelAxes {
  std::vector<int64_t> lifted, reduced = {0};
  ChannelAxes(const NodeWriter& e, size_t x) {
    const int64_t rank = need_rank(e, e.x(x));
    for (int64_t i = 2; i < rank; ++i) {
      lifted.push_back(i - 1);
      reduced.push_back(i);
    }
  }
};

void training_form(DecompositionContext& e) {
  const ChannelAxes axes(e, kX);
  const auto lift = [&](const Expression& v) {
    return axes.lifted.empty() ? v : Expression(e, e.unsqueeze(v, axes.lifted));
  };
  const auto mean_of = [&](const Expression& v) {
    return Expression(e, reduce(e, "ReduceMean", v, axes.reduced, true));
  };
  const auto flat = [&](const Expression& v) { return Expression(e, e.squeeze(v, axes.reduced)); };
  const Expression x(e, cast_like(e, e.x(kX), e.x(kMean)));
  const auto given = [&](size_t i) { return Expression(e, cast_like(e, e.x(i), e.x(kMean))); };
  const Expression mean = mean_of(x), centred = x - mean, variance = mean_of(centred * centred);
  const Expression inverse =
      (variance + static_cast<double>(e.node().float_or("epsilon", 1e-5f))).call("Sqrt").call("Reciprocal");
  e.set(0, cast_like(e, centred * (lift(given(kScale)) * inverse) + lift(given(kBias)), e.x(kX)));
  const double momentum = static_cast<double>(e.node().float_or("momentum", 0.9f));
  const auto moved = [&](size_t i, const Expression& batch) {
    return given(i) * momentum + flat(batch) * (1 - momentum);
  };
  if (e.has_y(1)) e.set(1, moved(kMean, mean));
  if (e.has_y(2)) e.set(2, moved(kVariance, variance));
  if (e.has_y(3)) e.set(3, flat(mean));
  if (e.has_y(4)) e.set(4, flat(inverse));
}

// dX = scale s (dY - mean(dY) - h mean(dY h)) with h = (X - mean) s.
void grad_form(DecompositionContext& e) {
  const ChannelAxes axes(e, kGradX);
  const auto lift = [&](const Expression& v) {
    return axes.lifted.empty() ? v : Expression(e, e.unsqueeze(v, axes.lifted));
  };
  const auto given = [&](size_t i) { return Expression(e, cast_like(e, e.x(i), e.x(kGradScale))); };
  const auto sum = [&](const Expression& v) { return Expression(e, e.reduce_sum(v, axes.reduced, false)); };
  const Expression dy = given(kGradDy), scale(e, e.x(kGradScale)), s = given(kGradInverse);
  const Expression centred = given(kGradX) - lift(given(kGradMean));
  const Expression bias_gradient = sum(dy), scale_gradient = sum(dy * centred) * s;
  const Name size = e("Gather", {e("Shape", {e.x(kGradX)}), e.int64s(axes.reduced)});
  const Expression count = Expression(e, e("ReduceProd", {size}, {{"keepdims", int64_t{0}}})).as(scale);
  const Expression factor = scale * s;
  const Expression of_x = lift(factor) * dy - lift(factor * s * scale_gradient / count) * centred -
                          lift(factor * bias_gradient / count);
  e.set(0, cast_like(e, of_x, e.x(kGradX)));
  e.set(1, scale_gradient);
  e.set(2, bias_gradient);
}

bool computes_statistics(const Node& node) { return node.int_or("training_mode", 0) != 0; }
ORTRAIN_OPERATOR_FACT(StandardForm, "", "BatchNormalization", {cold<training_form>, computes_statistics});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "BatchNormInternal", {cold<training_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "BatchNormalizationGrad", {cold<grad_form>});

}  // namespace

}  // namespace ortrain
