// LayerNormalization, SimplifiedLayerNormalization (root mean square) and their gradient operators.
//
// Over all axes from `axis` on: h = (x - mean) s with s = 1 / sqrt(var + epsilon), y = scale h + bias. The
// simplified form has no mean and no bias. J. L. Ba et al., "Layer normalization", 2016; B. Zhang, R.
// Sennrich, "Root mean square layer normalization", 2019.
#include "ops/nn/layer_normalization.h"

#include <algorithm>

#include "backend/cpu/norm/layer_normalization_kernels.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/nn/normalization_gradient.h"

namespace ortrain {
namespace {

// The shape of the saved statistics: the shape of X, with size 1 from the axis on.
Shape statistics_shape(const NodeContext& c, size_t input) {
  Shape shape = c.shape(input);
  std::fill(shape.begin() + static_cast<ptrdiff_t>(normalized_axis(c, input)), shape.end(), 1);
  return shape;
}

// Scale and bias have one value per position from the axis on (leading dimensions of 1 are allowed).
void expect_parameter(const NodeContext& c, size_t x, size_t input, const char* what) {
  // Float and the 16-bit floats may be mixed: they have the same wide form.
  c.expect(wide_of(c.dtype(input)) == wide_of(c.dtype(x)), what, " must have the type of X, ",
           to_string(c.dtype(x)), ", found ", to_string(c.dtype(input)));
  const Shape wanted(c.shape(x).begin() + static_cast<ptrdiff_t>(normalized_axis(c, x)), c.shape(x).end());
  Shape found = c.shape(input);
  while (found.size() > wanted.size() && found.front() == 1) found.erase(found.begin());
  c.expect(found == wanted, what, " must have the shape of X from the axis on, ", to_string(wanted),
           ", found ", to_string(c.shape(input)));
}

// Y has the type of the scale in the simplified form; statistics are at least float.
template <bool Simplified>
DType element_types(const ElementTypes& types, size_t o) {
  return o == 0 ? types[Simplified ? 1 : 0] : wide_of(types[0]);
}

template <bool Simplified>
void shape(ShapeContext& c) {
  expect_parameter(c, 0, 1, "scale");
  if (c.has_input(2)) {
    c.expect(!Simplified, "it has no bias, found a third input");
    expect_parameter(c, 0, 2, "bias");
  }
  c.output(0, c.dtype(Simplified ? 1 : 0), c.shape(0));
  for (size_t o = 1; o < c.output_count(); ++o)
    if (c.has_output(o)) c.output(o, wide_of(c.dtype(0)), statistics_shape(c, 0));  // at least float
}

DType gradient_types(const ElementTypes& types, size_t o) { return types[o == 0 ? 1 : 2]; }

// Outputs of the gradient operators: dX, dscale and, unless simplified, dbias.
template <bool Simplified>
void gradient_shape(ShapeContext& c) {
  c.expect(wide_of(c.dtype(0)) == wide_of(c.dtype(1)) && c.shape(0) == c.shape(1),
           "dY and X must agree, found ", to_string(c.dtype(0)), " ", to_string(c.shape(0)), " and ",
           to_string(c.dtype(1)), " ", to_string(c.shape(1)));
  expect_parameter(c, 1, 2, "scale");
  const Shape statistics = statistics_shape(c, 1);
  for (size_t i = 3; i < (Simplified ? 4u : 5u); ++i)
    c.expect(wide_of(c.dtype(i)) == wide_of(c.dtype(1)) && c.size(i) == element_count(statistics), "input ",
             i, " must hold one number of type ", to_string(wide_of(c.dtype(1))),
             " a normalized group, shape ", to_string(statistics), ", found ", to_string(c.dtype(i)), " ",
             to_string(c.shape(i)));
  if (c.has_output(0)) c.output(0, c.dtype(1), c.shape(1));
  for (size_t o = 1; o < c.output_count(); ++o)
    if (c.has_output(o)) c.output(o, c.dtype(2), c.shape(2));
}

template <bool Simplified>
void gradient(GradientContext& g) {
  Names inputs = {g.dy(0), g.x(0), g.x(1)};
  for (size_t o = 1; o < (Simplified ? 2u : 3u); ++o) inputs.push_back(g.want_y(o));
  const auto gradients =
      g.emit(Simplified ? "SimplifiedLayerNormalizationGrad" : "LayerNormalizationGrad", inputs,
             Simplified ? 2 : 3, {{"axis", g.node().int_or("axis", -1)}}, kMicrosoft);
  for (size_t i = 0; i < gradients.size(); ++i)
    if (g.has_x(i) && g.needs(i)) g.set(i, gradients[i]);
}

// RMSNormalization of ONNX 23 has no output for the statistics, so they are recomputed.
void rms_gradient(GradientContext& g) {
  const Expression x(g, g.x(0));
  const int64_t axis = g.node().int_or("axis", -1);
  const auto rank = g.rank(x);
  if (!rank) g.reject("the rank of its input is not known, so its gradient cannot be built");
  std::vector<int64_t> axes;
  for (int64_t i = normalize_axis(axis, *rank, g.node().label()); i < *rank; ++i) axes.push_back(i);
  const Expression mean(g, g("ReduceMean", {x * x, g.int64s(axes)}));
  const Expression s =
      (mean + static_cast<double>(g.node().float_or("epsilon", 1e-5f))).call("Sqrt").call("Reciprocal");
  const auto gradients =
      g.emit("SimplifiedLayerNormalizationGrad", {g.dy(0), x, g.x(1), s}, 2, {{"axis", axis}}, kMicrosoft);
  for (size_t i = 0; i < 2; ++i)
    if (g.needs(i)) g.set(i, gradients[i]);
}

template <bool Simplified>
void grad_gradient(GradientContext& g) {
  const auto rank = g.rank(g.x(1));
  if (!rank) g.reject("the rank of its input is not known, so its gradient cannot be built");
  const int64_t axis = normalize_axis(g.node().int_or("axis", -1), *rank, g.node().label());
  NormalizedAxes axes;
  for (int64_t i = 0; i < *rank; ++i) (i < axis ? axes.parameters : axes.group).push_back(i);
  normalization_grad_gradient(g, axes, Simplified ? "" : g.x(3), g.x(Simplified ? 3 : 4));
}

// With operators of ONNX, in the type of the statistics. With h = (X - mean) s and g = dY scale:
// dX = s (g - mean(g) - h mean(g h)), without the first mean if simplified.
template <bool Simplified>
void grad_form(DecompositionContext& e) {
  const int64_t rank = need_rank(e, e.x(1));
  const int64_t axis = normalize_axis(e.node().int_or("axis", -1), rank, e.node().label());
  std::vector<int64_t> group, rows;
  for (int64_t i = 0; i < rank; ++i) (i < axis ? rows : group).push_back(i);
  const Name statistics = e.x(Simplified ? 3 : 4);
  const auto wide = [&](size_t i) { return Expression(e, cast_like(e, e.x(i), statistics)); };
  const auto mean = [&](const Expression& v) {
    return Expression(e, reduce(e, "ReduceMean", v, group, true));
  };
  const Expression dy = wide(0), x = wide(1), s(e, statistics);
  const Expression h = Simplified ? x * s : (x - Expression(e, e.x(3))) * s, g = dy * wide(2);
  if (e.has_y(0)) {
    const Expression rest = g - h * mean(g * h);
    e.set(0, cast_like(e, s * (Simplified ? rest : rest - mean(g)), e.x(1)));
  }
  const auto total = [&](const Expression& v) {
    const Name sum = rows.empty() ? v.name() : e.reduce_sum(v, rows, false);
    const bool exact = e.rank(e.x(2)) == rank - axis;
    return cast_like(e, exact ? sum : reshape_to(e, sum, e("Shape", {e.x(2)})), e.x(2));
  };
  if (e.has_y(1)) e.set(1, total(dy * h));
  if (!Simplified && e.has_y(2)) e.set(2, total(dy));
}

// X s scale with s = 1 / sqrt(mean(X^2) + epsilon).
void simplified_form(DecompositionContext& e) {
  const int64_t rank = need_rank(e, e.x(0));
  std::vector<int64_t> group;
  for (int64_t i = normalize_axis(e.node().int_or("axis", -1), rank, e.node().label()); i < rank; ++i)
    group.push_back(i);
  Expression x(e, e.x(0));
  if (size_of(e.dtype(x)) < size_of(DType::kFloat))
    x = x.call("Cast", {{"to", static_cast<int64_t>(DType::kFloat)}});
  const Expression mean(e, reduce(e, "ReduceMean", x * x, group, true));
  const Expression s =
      (mean + static_cast<double>(e.node().float_or("epsilon", 1e-5f))).call("Sqrt").call("Reciprocal");
  e.set(0, Expression(e, cast_like(e, x * s, e.x(1))) * Expression(e, e.x(1)));
  if (e.has_y(1)) e.set(1, s);
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "LayerNormalizationGrad", {cold<grad_form<false>>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "SimplifiedLayerNormalizationGrad", {cold<grad_form<true>>});
ORTRAIN_OPERATOR_FACT(StandardForm, "", "SimplifiedLayerNormalization", {cold<simplified_form>});

std::optional<InputPositions> layer_positions(const PositionQuery& q) { return row_positions(q, -1); }

ORTRAIN_OPERATOR(
    {.type = "LayerNormalization",
     .rules = {.shape = shape<false>, .gradient = gradient<false>, .element_type = element_types<false>},
     .traits = {.takes_bf16 = true, .independent_outputs = true, .positions = layer_positions},
     .kernels = {.cpu = layer_normalization<false>}});
ORTRAIN_OPERATOR(
    {.type = "SimplifiedLayerNormalization",
     .signature = "X, scale -> Y, inv_std_var?",
     .rules = {.shape = shape<true>, .gradient = gradient<true>, .element_type = element_types<true>},
     .traits = {.takes_bf16 = true, .independent_outputs = true, .positions = layer_positions},
     .kernels = {.cpu = layer_normalization<true>}});
ORTRAIN_OPERATOR(
    {.type = "RMSNormalization",
     .rules = {.shape = shape<true>, .gradient = rms_gradient, .element_type = element_types<true>},
     .traits = {.takes_bf16 = true, .positions = layer_positions},
     .kernels = {.cpu = layer_normalization<true>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "LayerNormalizationGrad",
                  .signature = "Y_grad, X, scale, mean, inv_std_dev -> X_grad?, scale_grad?, bias_grad?",
                  .rules = {.shape = gradient_shape<false>,
                            .gradient = grad_gradient<false>,
                            .element_type = gradient_types},
                  .traits = {.takes_bf16 = true},
                  .kernels = {.cpu = layer_normalization_grad<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "SimplifiedLayerNormalizationGrad",
                  .signature = "Y_grad, X, scale, inv_std_var -> X_grad?, scale_grad?",
                  .rules = {.shape = gradient_shape<true>,
                            .gradient = grad_gradient<true>,
                            .element_type = gradient_types},
                  .traits = {.takes_bf16 = true},
                  .kernels = {.cpu = layer_normalization_grad<true>}});

}  // namespace

std::optional<Node> layer_normalization_gradient_from_output(const Node& backward, const Node& forward) {
  const Operator* of_backward = find_operator(backward.domain, backward.op_type);
  const Operator* of_forward = find_operator(forward.domain, forward.op_type);
  if (!of_backward || of_backward != find_operator(kMicrosoft, "LayerNormalizationGrad") || !of_forward ||
      of_forward != find_operator("", "LayerNormalization") || !forward.has_input(2) ||
      !forward.has_output(2))
    return std::nullopt;
  Node from_output = backward;
  from_output.op_type = "InvertibleLayerNormalizationGrad";
  from_output.inputs = {backward.inputs[0], forward.outputs[0], forward.inputs[1], forward.inputs[2],
                        forward.outputs[2]};
  return from_output;
}

}  // namespace ortrain
