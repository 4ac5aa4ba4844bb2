// Operators of com.microsoft in training graphs, each a combination of a few standard operators: losses, sums
// with factors, tests for values that are not finite, padding, passing values through.
#include <cmath>

#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Losses against labels of the shape [..., C] (SoftmaxCrossEntropy) or class numbers [...] with a weight for
// each (SparseSoftmaxCrossEntropy). With p = softmax(logits) along the last axis:
//     loss = -sum(label log p) / N          N: the number of positions, or 1 if reduction is "sum"
//     loss = -sum(w log p[label]) / sum(w)  not divided if reduction is "sum"

bool means(const NodeWriter& e) {
  const std::string reduction = e.node().string_or("reduction", "mean");
  if (reduction != "mean" && reduction != "sum")
    e.reject("reduction must be 'mean' or 'sum', found '", reduction, "'");
  return reduction == "mean";
}

// The sum of all elements, of rank 0.
Expression total(const Expression& x) { return x.call("ReduceSum", {{"keepdims", int64_t{0}}}); }
Expression over_last(NodeWriter& e, const Expression& x) { return {e, e.reduce_sum(x, {-1}, false)}; }

void softmax_cross_entropy(DecompositionContext& e) {
  const Expression log_p(e, e("LogSoftmax", {e.x(0)}, {{"axis", int64_t{-1}}})), label(e, e.x(1));
  const Expression each = over_last(e, label * log_p);
  e.set(0, -each.call(means(e) ? "ReduceMean" : "ReduceSum", {{"keepdims", int64_t{0}}}));
  e.set(1, log_p);
}

// d logits = dY (p - label) / N
void softmax_cross_entropy_gradient(DecompositionContext& e) {
  const Expression dy(e, as_scalar(e, e.x(0))), log_p(e, e.x(1)), label(e, e.x(2));
  const Expression difference = log_p.call("Exp") - label;
  if (!means(e)) {
    e.set(0, dy * difference);
    return;
  }
  const Expression one_a_place = over_last(e, label - label) + 1.0;
  e.set(0, dy / total(one_a_place) * difference);
}

Expression weights_of(NodeWriter& e, const Expression& like, size_t i) {
  return e.has_x(i) ? Expression(e, e.x(i)) : like - like + 1.0;
}

void sparse_softmax_cross_entropy(DecompositionContext& e) {
  const Expression log_p(e, e("LogSoftmax", {e.x(0)}, {{"axis", int64_t{-1}}}));
  const Name place = e.unsqueeze(e.x(1), {-1});
  const Expression chosen(e, e.squeeze(e("GatherElements", {log_p, place}, {{"axis", int64_t{-1}}}), {-1}));
  const Expression weights = weights_of(e, chosen, 2);
  const Expression sum = -total(weights * chosen);
  e.set(0, means(e) ? sum / total(weights) : sum);
  e.set(1, log_p);
}

// d logits = dY w (p - [class = label]) / sum(w)
void sparse_softmax_cross_entropy_gradient(DecompositionContext& e) {
  const Expression dy(e, as_scalar(e, e.x(0))), log_p(e, e.x(1));
  const Name place = e.unsqueeze(e.x(2), {-1});
  const Expression chosen(e, e("GatherElements", {log_p, place}, {{"axis", int64_t{-1}}}));
  const Expression weights = e.has_x(3) ? Expression(e, e.unsqueeze(e.x(3), {-1})) : chosen - chosen + 1.0;
  const Expression hit(
      e, e("ScatterElements", {log_p - log_p, place, chosen - chosen + 1.0}, {{"axis", int64_t{-1}}}));
  const Expression d = dy * weights * (log_p.call("Exp") - hit);
  e.set(0, means(e) ? d / total(weights) : d);
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums and products with constant factors.

double factor(const NodeWriter& e, size_t i) {
  const std::string name = concat("scale_", i);
  if (!e.node().has(name)) e.reject("attribute ", name, " is missing");
  return static_cast<double>(e.node().float_or(name, 0));
}

// sum_i scale_i input_i
void scaled_sum(DecompositionContext& e) {
  Expression sum = Expression(e, e.x(0)) * factor(e, 0);
  for (size_t i = 1; i < 3; ++i)
    if (e.has_x(i)) sum = sum + Expression(e, e.x(i)) * factor(e, i);
  e.set(0, sum);
}

// output_i = scale_i input
void batch_scale(DecompositionContext& e) {
  for (size_t o = 0; o < 3; ++o)
    if (e.has_y(o)) e.set(o, Expression(e, e.x(0)) * factor(e, o));
}

// Each input times a scalar, cast to another type; with fuse_outputs, all results are concatenated in one
// vector.
void mixed_precision_scale(DecompositionContext& e) {
  const Attributes to = {{"to", e.node().int_or("to", 0)}};
  const Expression scale(e, as_scalar(e, e.x(0)));
  Names scaled;
  for (size_t i = 1; i < e.node().inputs.size(); ++i)
    scaled.push_back((Expression(e, e.x(i)) * Expression(e, cast_like(e, scale, e.x(i)))).call("Cast", to));
  if (e.node().int_or("fuse_outputs", 0)) {
    for (Name& value : scaled) value = e("Reshape", {value, e.int64s({-1})});
    e.set(0, e("Concat", scaled, {{"axis", int64_t{0}}}));
    return;
  }
  for (size_t o = 0; o < scaled.size() && o < e.node().outputs.size(); ++o) e.set(o, scaled[o]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tests.

// Whether all elements of a bool tensor are true: their minimum, in a type that ReduceMin supports.
Name all_of(NodeWriter& e, Name x) {
  const Name number = e("Cast", {x}, {{"to", static_cast<int64_t>(DType::kInt32)}});
  return e("Cast", {e("ReduceMin", {number}, {{"keepdims", int64_t{0}}})},
           {{"to", static_cast<int64_t>(DType::kBool)}});
}

void all(DecompositionContext& e) { e.set(0, all_of(e, e.x(0))); }

void is_finite(DecompositionContext& e) {
  e.set(0, e("Not", {e("Or", {e("IsNaN", {e.x(0)}), e("IsInf", {e.x(0)})})}));
}

// Whether no element of any input is infinite or NaN; isinf_only tests only for infinity, isnan_only only for
// NaN.
void is_all_finite(DecompositionContext& e) {
  const bool inf_only = e.node().int_or("isinf_only", 0) != 0,
             nan_only = e.node().int_or("isnan_only", 0) != 0;
  if (inf_only && nan_only) e.reject("isinf_only and isnan_only are mutually exclusive");
  Name good;
  for (const std::string& x : e.node().inputs) {
    const Name bad = inf_only   ? e("IsInf", {x})
                     : nan_only ? e("IsNaN", {x})
                                : e("Or", {e("IsNaN", {x}), e("IsInf", {x})});
    const Name each = all_of(e, e("Not", {bad}));
    good = good.empty() ? each : e("And", {good, each});
  }
  e.set(0, good);
}

// ---------------------------------------------------------------------------------------------------------------------
// Passing values through.

void pass_through(DecompositionContext& e) {
  if (e.node().inputs.size() != e.node().outputs.size())
    e.reject("it has ", counted(e.node().inputs.size(), "input"), " and ",
             counted(e.node().outputs.size(), "output"), ", expected as many outputs as inputs");
  for (size_t i = 0; i < e.node().inputs.size(); ++i) e.set(i, e.x(i));
}

// Events order the work of different processes or streams. Kernels here run one after another, so everything
// that an event could wait for has already happened.
void pass_behind_event(DecompositionContext& e) {
  if (e.node().inputs.size() != e.node().outputs.size() + 1)
    e.reject("it has ", counted(e.node().inputs.size(), "input"), " and ",
             counted(e.node().outputs.size(), "output"), ", expected one more input than outputs");
  for (size_t i = 1; i < e.node().inputs.size(); ++i) e.set(i - 1, e.x(i));
}

// Passes values to Python in the middle of a run.
void yield(DecompositionContext& e) {
  e.reject(
      "this operator works only inside ORTModule: it passes the outputs of a module to ORTModule and waits "
      "for their gradients. Export the module itself; generate_artifacts adds the loss and the gradients");
}

// True once all inputs are available.
void group(DecompositionContext& e) { e.set(0, e.constant(Tensor::scalar(true).reshaped({1}))); }

// Consecutive parts of the elements of input 0, in the shapes given by the other inputs.
void view(DecompositionContext& e) {
  const Name flat = e("Reshape", {e.x(0), e.int64s({-1})});
  Name from = e.int64s({0});
  for (size_t i = 1; i < e.node().inputs.size(); ++i) {
    const Name count = reduce(e, "ReduceProd", e.x(i), {0}, true);
    const Name to = e("Add", {from, count});
    e.set(i - 1, reshape_to(e, e("Slice", {flat, from, to, e.int64s({0})}), e.x(i)));
    from = to;
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows of a batch without padding.

// The rows that `indices` select of [A, B, ...] seen as [A B, ...], and [A, B].
void flatten_and_unpad(DecompositionContext& e) {
  const Name rows = with_dims_after(e, {-1}, e.x(0), 2);
  e.set(0, e("Gather", {e("Reshape", {e.x(0), rows}), e.x(1)}, {{"axis", int64_t{0}}}));
  e.set(1, dims_of(e, e.x(0), 0, 2));
}

// The inverse: rows that are not selected are zero. unflatten_dims holds A and B.
void pad_and_unflatten(DecompositionContext& e) {
  const Attributes first = {{"axis", int64_t{0}}};
  const Name row = dims_of(e, e.x(0), 1, kToTheLast);
  const Name rows = e("Concat", {reduce(e, "ReduceProd", e.x(2), {0}, true), row}, first);
  const Name padded = e("GatherGrad", {rows, e.x(1), e.x(0)}, first, kMicrosoft);
  e.set(0, reshape_to(e, padded, e("Concat", {e.x(2), row}, first)));
}

ORTRAIN_DECOMPOSITION("SoftmaxCrossEntropy", "logits, label -> Y, log_prob?", softmax_cross_entropy);
ORTRAIN_DECOMPOSITION("SoftmaxCrossEntropyGrad", "dY, log_prob, label -> d_logits",
                      softmax_cross_entropy_gradient);
ORTRAIN_OPERATOR({.type = "SparseSoftmaxCrossEntropy",
                  .signature = "logits, label, weight? -> Y, log_prob?",
                  .rules = {.decompose = sparse_softmax_cross_entropy}});
ORTRAIN_OPERATOR({.type = "SparseSoftmaxCrossEntropyGrad",
                  .signature = "dY, log_prob, label, weight? -> d_logits",
                  .rules = {.decompose = sparse_softmax_cross_entropy_gradient}});
ORTRAIN_DECOMPOSITION("ScaledSum", "input_0, input_1, input_2? -> output", scaled_sum);
ORTRAIN_DECOMPOSITION("BatchScale", "input -> output_0, output_1, output_2?", batch_scale);
ORTRAIN_DECOMPOSITION("MixedPrecisionScale", "S, X... -> Y...", mixed_precision_scale);
ORTRAIN_DECOMPOSITION("All", "X -> Y", all);
ORTRAIN_DECOMPOSITION("IsFinite", "X -> Y", is_finite);
ORTRAIN_DECOMPOSITION("IsAllFinite", "input... -> output", is_all_finite);
ORTRAIN_DECOMPOSITION("PassThrough", "inputs... -> outputs...", pass_through);
ORTRAIN_DECOMPOSITION("RecordEvent", "EventIdentifier, InputData... -> OutputData...", pass_behind_event);
ORTRAIN_DECOMPOSITION("WaitEvent", "EventIdentifier, InputData... -> OutputData...", pass_behind_event);
ORTRAIN_DECOMPOSITION("YieldOp", "module_outputs... -> module_outputs_grad...", yield);
ORTRAIN_DECOMPOSITION("Group", "input_tensors... -> done", group);
ORTRAIN_DECOMPOSITION("View", "input, shapes... -> outputs...", view);
ORTRAIN_DECOMPOSITION("FlattenAndUnpad", "input, indices -> output, unflatten_dims", flatten_and_unpad);
ORTRAIN_DECOMPOSITION("PadAndUnflatten", "input, indices, unflatten_dims -> output", pad_and_unflatten);

}  // namespace
}  // namespace ortrain
