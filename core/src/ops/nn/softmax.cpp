// Softmax and LogSoftmax and their gradient operators.
//
// softmax(x)_i = e^(x_i - m) / s and log softmax(x)_i = x_i - m - ln s, with m = max x and s = sum_j e^(x_j -
// m).
#include "backend/cpu/norm/softmax.h"
#include "backend/cpu/bf16_storage.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/elementwise.h"
#include "ops/common/variant.h"

namespace ortrain {
namespace {

// Before version 13 one softmax runs over all axes from `axis` on (flat); since then, only along `axis`.
SoftmaxShape shape_of(const NodeContext& c, bool flat) {
  const Shape& shape = c.shape(0);
  if (shape.empty()) return {};
  const size_t axis = static_cast<size_t>(
      normalize_axis(c.node().int_or("axis", flat ? 1 : -1), c.rank(0), c.node().label()));
  SoftmaxShape out;
  out.outer = element_count(shape, 0, axis);
  out.length = flat ? element_count(shape, axis, shape.size()) : shape[axis];
  out.inner = flat ? 1 : element_count(shape, axis + 1, shape.size());
  return out;
}

// The functions of this file are shared by Softmax and LogSoftmax, and by their gradients. The names of the
// gradient operators say whether the softmax is flat.
enum class Function { kSoftmax, kLog };
constexpr const char* gradient_type(Function f, bool flat) {
  return f == Function::kLog ? (flat ? "LogSoftmaxGrad" : "LogSoftmaxGrad_13")
                             : (flat ? "SoftmaxGrad" : "SoftmaxGrad_13");
}
bool is_flat(int64_t opset) { return opset < since::kOneSoftmaxAxis; }

void expect_floating(const NodeContext& c) {
  if (c.dtype(0) != DType::kFloat && c.dtype(0) != DType::kDouble) c.reject_dtype(0);
}

void shape(ShapeContext& c) {
  shape_of(c, is_flat(c.opset()));
  shape_like_first(c);
}

Kernel kernel(KernelContext& c, Function function) {
  expect_floating(c);
  const bool narrow = follows_bf16(c, {0});
  const LayoutPtr layout = narrow ? bf16_row_major(c.shape(0)) : nullptr;
  const Slot x = c.in(0, layout), y = c.out_inplace(0, {0}, layout);
  const SoftmaxShape s = shape_of(c, is_flat(c.opset()));
  const DType dtype = narrow ? DType::kBFloat16 : c.dtype(0);
  return [=](const Frame& f) {
    run_softmax(s, dtype, function == Function::kLog, f.at<std::byte>(x), f.at<std::byte>(y));
  };
}

void gradient(GradientContext& g, Function function) {
  const bool flat = is_flat(g.opset());
  g.set(0, g(gradient_type(function, flat), {g.dy(0), g.y(0)},
             {{"axis", g.node().int_or("axis", flat ? 1 : -1)}}, kMicrosoft));
}

// The axes of one softmax.
std::vector<int64_t> summed_axes(const Node& node, int64_t rank, bool flat) {
  std::vector<int64_t> axes;
  if (rank > 0) axes = {normalize_axis(node.int_or("axis", flat ? 1 : -1), rank, node.label())};
  while (flat && !axes.empty() && axes.back() + 1 < rank) axes.push_back(axes.back() + 1);
  return axes;
}

// u is the gradient of dX. Softmax, dX = Y (dY - sum(dY Y)): the gradient of dY is the same formula with u
// for dY, the gradient of Y is u (dY - sum(dY Y)) - dY sum(u Y). LogSoftmax, dX = dY - exp(Y) sum(dY): the
// gradients are u - sum(u exp(Y)) and -u exp(Y) sum(dY).
void grad_gradient(GradientContext& g, Function function, bool flat) {
  const std::vector<int64_t> axes = summed_axes(g.node(), need_rank(g, g.x(1)), flat);
  const auto sum = [&](const Expression& v) {
    return Expression(g, axes.empty() ? v.name() : g.reduce_sum(v, axes, true));
  };
  const Expression u(g, g.dy(0)), dy(g, g.x(0)), y(g, g.x(1));
  if (function == Function::kLog) {
    const Expression p = y.call("Exp");
    if (g.needs(0)) g.set(0, u - sum(u * p));
    if (g.needs(1)) g.set(1, -(u * p * sum(dy)));
  } else {
    if (g.needs(0)) g.set(0, u.call(gradient_type(function, flat), y, g.node().attributes, kMicrosoft));
    if (g.needs(1)) g.set(1, u * (dy - sum(dy * y)) - dy * sum(u * y));
  }
}

// The gradients with operators of ONNX.
void gradient_form(DecompositionContext& e, Function function, bool flat) {
  const std::vector<int64_t> axes = summed_axes(e.node(), need_rank(e, e.x(1)), flat);
  const auto sum = [&](const Expression& v) {
    return Expression(e, axes.empty() ? v.name() : e.reduce_sum(v, axes, true));
  };
  const Expression dy(e, e.x(0)), y(e, e.x(1));
  e.set(0, function == Function::kLog ? dy - y.call("Exp") * sum(dy) : y * (dy - sum(dy * y)));
}

void gradient_shape(ShapeContext& c, bool flat) {
  expect_same(c, 0, 1);
  shape_of(c, flat);
  shape_like_first(c);
}

Kernel gradient_kernel(KernelContext& c, Function function, bool flat) {
  expect_floating(c);
  const bool narrow = follows_bf16(c, {0, 1});
  const LayoutPtr layout = narrow ? bf16_row_major(c.shape(0)) : nullptr;
  const Slot dy = c.in(0, layout), y = c.in(1, layout), dx = c.out_inplace(0, {0, 1}, layout);
  const SoftmaxShape s = shape_of(c, flat);
  const DType dtype = narrow ? DType::kBFloat16 : c.dtype(0);
  return [=](const Frame& f) {
    run_softmax_gradient(s, dtype, function == Function::kLog, f.at<std::byte>(dy), f.at<std::byte>(y),
                         f.at<std::byte>(dx));
  };
}

std::optional<InputPositions> softmax_positions(const PositionQuery& q) {
  return row_positions(q, is_flat(q.opset) ? 1 : -1);
}

// A softmax between products stays in bfloat16; its logarithm is part of a loss, and stays in float.
template <Function F>
constexpr Operator forward_operator(const char* type) {
  return {.type = type,
          .rules = {.shape = shape, .gradient = kVariant<gradient, F>},
          .traits = {.takes_bf16 = F == Function::kSoftmax, .positions = softmax_positions},
          .kernels = {.cpu = kVariant<kernel, F>}};
}
template <Function F, bool Flat>
constexpr Operator gradient_operator() {
  return {.domain = kMicrosoft,
          .type = gradient_type(F, Flat),
          .signature = F == Function::kLog ? "dY, X -> dX" : "dY, Y -> dX",
          .rules = {.shape = kVariant<gradient_shape, Flat>, .gradient = kVariant<grad_gradient, F, Flat>},
          .traits = {.takes_bf16 = F == Function::kSoftmax},
          .kernels = {.cpu = kVariant<gradient_kernel, F, Flat>}};
}
ORTRAIN_OPERATOR({forward_operator<Function::kSoftmax>("Softmax")});
ORTRAIN_OPERATOR({forward_operator<Function::kLog>("LogSoftmax")});
ORTRAIN_OPERATOR({gradient_operator<Function::kSoftmax, true>()});
ORTRAIN_OPERATOR({gradient_operator<Function::kSoftmax, false>()});
ORTRAIN_OPERATOR({gradient_operator<Function::kLog, true>()});
ORTRAIN_OPERATOR({gradient_operator<Function::kLog, false>()});

ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "SoftmaxGrad",
                      {cold<kVariant<gradient_form, Function::kSoftmax, true>>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "SoftmaxGrad_13",
                      {cold<kVariant<gradient_form, Function::kSoftmax, false>>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "LogSoftmaxGrad",
                      {cold<kVariant<gradient_form, Function::kLog, true>>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "LogSoftmaxGrad_13",
                      {cold<kVariant<gradient_form, Function::kLog, false>>});

}  // namespace

}  // namespace ortrain
