// Elementwise operators with one input, their gradient operators, which also take the incoming gradient, and
// the session's operators that store the derivative.
//
// A row has the name, the domain, the attributes a and b with their defaults, the gradient as a formula on
// graph values, and the formula for integers if ONNX defines the operator for them. The formulas for floats
// are in backend/cpu/elementwise/unary_functions.cpp.
//
// Compiled for size: the loops over floats are in that file (CMakeLists.txt).
#include <cmath>
#include <iterator>
#include <limits>
#include <numbers>
#include <string>
#include <string_view>
#include <utility>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/elementwise/functions.h"
#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/session_domain.h"
#include "op/standard_form.h"
#include "op/wide_integers.h"
#include "ops/common/elementwise.h"
#include "ops/common/shape_helpers.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// A float attribute and its default.
struct Default {
  const char* name = nullptr;
  float value = 0;
};
struct Defaults {
  Default a = {}, b = {};
  static double value(const Node& node, const Default& which) {
    return which.name ? node.float_or(which.name, which.value) : 0;
  }
};

using Rule = void (*)(GradientContext& g, const Expression& dy, const Expression& x, const Expression& y,
                      double a, double b);

struct UnaryRow {
  std::string_view type, domain;
  UnaryFunction (*function)(DType);  // for floats
  Defaults defaults;
  Rule rule;                                                           // null: no gradient is propagated
  Kernel (*integers)(KernelContext& c, double a, double b) = nullptr;  // null: rejected
  int64_t since = 1;  // the first opset in which the operator has this meaning
};

using Derivative = Expression (*)(const Expression& x, double a);
using PairForm = Expression (*)(const NodeWriter& g, const Expression& dy, const Expression& x, double a);

// The gradient operator of a unary operator, dY s(X); its X may be the output Y of the operator.
struct PairRow {
  std::string_view type;
  PairFunction (*function)(DType);
  Defaults defaults;
  Derivative derivative = nullptr;  // s'; null: zero
  PairForm standard = nullptr;      // dY s(X) with operators of ONNX
};

// The operator by which a pass replaces an operator and its gradient
// (passes/save_activation_derivatives.cpp). It returns Y and s(X).
struct WithDerivativeRow {
  std::string_view type, gradient;  // `gradient`: the gradient operator that is replaced
  WithDerivativeFunction (*function)(DType);
  Defaults defaults;
};

// The rows without the rules that this build does not need: the linker keeps every function that a row points
// to.
constexpr UnaryRow without_left_out(UnaryRow row) {
  if (!kArtifactsPart.is_built) row.rule = nullptr;
  return row;
}
constexpr PairRow without_left_out(PairRow row) {
  if (!kArtifactsPart.is_built) row.derivative = nullptr, row.standard = nullptr;
  return row;
}

Expression square(const Expression& x) { return x * x; }

// dY where x > 0, else 0. A steep HardSigmoid is 1 or 0 there: runtimes compute it several times as fast as a
// comparison and a choice. Numbers of 16 bits are too small for its factor.
Expression where_positive(const NodeWriter& g, const Expression& x, const Expression& dy) {
  const DType dtype = g.dtype(x.name());
  if (dtype != DType::kFloat && dtype != DType::kDouble) return (x > 0.0).choose(dy, dy.number(0));
  return dy * x.call("HardSigmoid", {{"alpha", 3e38f}, {"beta", 0.0f}});
}

// Phi(x), the distribution function of the standard normal distribution.
Expression normal_distribution(const Expression& x) { return ((x * std::sqrt(0.5)).call("Erf") + 1.0) * 0.5; }

// The derivative of x Phi(x): Phi(x) + x phi(x).
Expression gelu_derivative(const Expression& x) {
  const Expression density = (x * x * -0.5).call("Exp") * (1 / std::sqrt(2 * std::numbers::pi));
  return normal_distribution(x) + x * density;
}

// The derivative of x sigmoid(u(x)), given sigmoid(u) and u'.
Expression sigmoid_product_derivative(const Expression& x, const Expression& s,
                                      const Expression& derivative) {
  return s + x * s * (1.0 - s) * derivative;
}

// The argument of FastGelu's sigmoid, a x (1 + b x^2), and its derivative.
constexpr double kFastGeluB = 0.044715;
double fast_gelu_a() { return 2 * std::sqrt(2 / std::numbers::pi); }
Expression fast_gelu_argument(const Expression& x) {
  return fast_gelu_a() * x * (1.0 + kFastGeluB * (x * x));
}

// d/dx x w with w = tanh(softplus(x)): w + x sigmoid(x) (1 - w^2).
Expression mish_derivative(const Expression& x, const Expression& w) {
  return w + x * x.call("Sigmoid") * (1.0 - w * w);
}

// The second derivative of x Phi(x): (2 - x^2) phi(x).
Expression gelu_curvature(const Expression& x) {
  return (2.0 - x * x) * (x * x * -0.5).call("Exp") * (1 / std::sqrt(2 * std::numbers::pi));
}

// The second derivative of x s with s = sigmoid(u(x)): s (1 - s) (2 u' + x ((1 - 2 s) u'^2 + u'')).
Expression sigmoid_product_curvature(const Expression& x, const Expression& u, const Expression& derivative,
                                     const Expression& curvature) {
  const Expression s = u.call("Sigmoid");
  return s * (1.0 - s) * (2.0 * derivative + x * ((1.0 - 2.0 * s) * derivative * derivative + curvature));
}

Expression fast_gelu_curvature(const Expression& x) {
  const double a = fast_gelu_a(), b = kFastGeluB;
  return sigmoid_product_curvature(x, fast_gelu_argument(x), a * (1.0 + 3 * b * (x * x)), 6 * a * b * x);
}

Expression quick_gelu_curvature(const Expression& x, double a) {
  return sigmoid_product_curvature(x, a * x, x.number(a), x.number(0));
}

// Integer tensors are small, so a plain loop suffices.
template <class F>
Kernel wide_integer_kernel(KernelContext& c, F f) {
  Kernel kernel;
  const bool known = visit_wide_integer(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out_inplace(0, {0});
    const int64_t n = c.out_size(0);
    kernel = [=](const Frame& frame) {
      const T* from = frame.at<T>(x);
      T* to = frame.at<T>(y);
      for (int64_t i = 0; i < n; ++i) to[i] = f(from[i]);
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

template <class F>
Kernel integer_kernel(KernelContext& c, Overflow overflow, F f) {
  return with_wide_integers(
      c, [&](KernelContext& wide) { return wide_integer_kernel(wide, f); }, overflow);
}

template <typename T>
T shrink(T x, double limit, double bias) {
  const auto v = static_cast<double>(x);
  return v < -limit ? cast_number<T>(v + bias) : v > limit ? cast_number<T>(v - bias) : T{0};
}

#define STOPS nullptr
#define RULE(...)                                                                                     \
  [](GradientContext& g, [[maybe_unused]] const Expression& dy, [[maybe_unused]] const Expression& x, \
     [[maybe_unused]] const Expression& y, [[maybe_unused]] double a,                                 \
     [[maybe_unused]] double b) { g.set(0, __VA_ARGS__); }
#define INTEGERS_THAT(overflow, ...)                                                                 \
  [](KernelContext& c, [[maybe_unused]] double a, [[maybe_unused]] double b) {                       \
    return integer_kernel(c, Overflow::overflow, [=]<typename T>(T x) -> T { return __VA_ARGS__; }); \
  }
#define INTEGERS(...) INTEGERS_THAT(kWraps, __VA_ARGS__)
#define FLOATS nullptr
#define FLAT nullptr
#define DERIVATIVE(...) [](const Expression& x, [[maybe_unused]] double a) { return __VA_ARGS__; }
#define STANDARD(...)                                                                 \
  []([[maybe_unused]] const NodeWriter& g, const Expression& dy, const Expression& x, \
     [[maybe_unused]] double a) { return __VA_ARGS__; }
// clang-format off
constexpr UnaryRow kUnaryRows[] = {
    {"Neg", "", unary::Neg, {}, RULE(-dy), INTEGERS(static_cast<T>(T{0} - x))},
    {"Abs", "", unary::Abs, {}, RULE(dy * x.call("Sign")), INTEGERS(x < 0 ? static_cast<T>(T{0} - x) : x)},
    {"Sign", "", unary::Sign, {}, STOPS, INTEGERS(static_cast<T>((x > 0) - (x < 0)))},
    {"Floor", "", unary::Floor, {}, STOPS},
    {"Ceil", "", unary::Ceil, {}, STOPS},
    {"Round", "", unary::Round, {}, STOPS},
    {"Reciprocal", "", unary::Reciprocal, {}, RULE(-(dy * y * y))},
    {"Sqrt", "", unary::Sqrt, {}, RULE(dy * 0.5 / y)},
    {"Exp", "", unary::Exp, {}, RULE(dy * y)},
    {"Log", "", unary::Log, {}, RULE(dy / x)},
    {"Erf", "", unary::Erf, {},
      RULE(dy * (-(x * x)).call("Exp") * (2 / std::sqrt(std::numbers::pi))),
      INTEGERS(cast_number<T>(static_cast<float>(std::erf(static_cast<double>(x)))))},
    {"Sin", "", unary::Sin, {}, RULE(dy * x.call("Cos"))},
    {"Cos", "", unary::Cos, {}, RULE(-(dy * x.call("Sin")))},
    {"Tan", "", unary::Tan, {}, RULE(dy * (y * y + 1.0))},
    {"Asin", "", unary::Asin, {}, RULE(dy / (1.0 - x * x).call("Sqrt"))},
    {"Acos", "", unary::Acos, {}, RULE(-(dy / (1.0 - x * x).call("Sqrt")))},
    {"Atan", "", unary::Atan, {}, RULE(dy / (x * x + 1.0))},
    {"Sinh", "", unary::Sinh, {}, RULE(dy * x.call("Cosh"))},
    {"Cosh", "", unary::Cosh, {}, RULE(dy * x.call("Sinh"))},
    {"Asinh", "", unary::Asinh, {}, RULE(dy / (x * x + 1.0).call("Sqrt"))},
    {"Acosh", "", unary::Acosh, {}, RULE(dy / (x * x - 1.0).call("Sqrt"))},
    {"Atanh", "", unary::Atanh, {}, RULE(dy / (1.0 - x * x))},
    {"Tanh", "", unary::Tanh, {}, RULE(dy.call("TanhGrad", y, {}, kMicrosoft))},
    {"Sigmoid", "", unary::Sigmoid, {}, RULE(dy.call("SigmoidGrad", y, {}, kMicrosoft))},
    {"HardSigmoid", "", unary::HardSigmoid, {{"alpha", 0.2f}, {"beta", 0.5f}}, RULE(dy * a * (y > 0.0 && y < 1.0).as(x))},
    {"Softplus", "", unary::Softplus, {}, RULE(dy * x.call("Sigmoid"))},
    {"Softsign", "", unary::Softsign, {}, RULE(dy / square(x.call("Abs") + 1.0))},
    {"Relu", "", unary::Relu, {}, RULE(dy.call("ReluGrad", y, {}, kMicrosoft)), INTEGERS(x > 0 ? x : T{0})},
    // The sign of X follows from Y only if alpha is not negative.
    {"LeakyRelu", "", unary::LeakyRelu, {{"alpha", 0.01f}},
      RULE(a < 0 ? (x > 0.0).choose(dy, dy * a)
                 : dy.call("LeakyReluGrad", y, {{"alpha", static_cast<float>(a)}}, kMicrosoft))},
    {"ThresholdedRelu", "", unary::ThresholdedRelu, {{"alpha", 1.0f}}, RULE(dy * (x > a).as(x))},
    {"Elu", "", unary::Elu, {{"alpha", 1.0f}}, RULE((x > 0.0).choose(dy, dy * (y + a)))},
    {"Selu", "", unary::Selu, {{"alpha", 1.67326319217681884765625f}, {"gamma", 1.05070102214813232421875f}},
      RULE((x > 0.0).choose(dy * b, dy * (y + a * b))), FLOATS, 6},  // before opset 6, its constants were rounded
    {"Celu", "", unary::Celu, {{"alpha", 1.0f}}, RULE((x > 0.0).choose(dy, dy * (x / a).call("Exp")))},
    {"HardSwish", "", unary::HardSwish, {}, RULE((x > 3.0).choose(dy, (x < -3.0).choose(dy * 0.0, dy * (x / 3.0 + 0.5))))},
    {"Mish", "", unary::Mish, {}, RULE(dy * mish_derivative(x, x.call("Softplus").call("Tanh")))},
    {"Shrink", "", unary::Shrink, {{"lambd", 0.5f}, {"bias", 0.0f}},
      RULE(dy * (x.call("Abs") > a).as(x)), INTEGERS_THAT(kSaturates, shrink(x, a, b))},
    {"QuickGelu", kMicrosoft, unary::QuickGelu, {{"alpha", 1.702f}},
      RULE(dy.call("QuickGeluGrad", x, {{"alpha", static_cast<float>(a)}}, kMicrosoft))},
    {"Swish", "", unary::Swish, {{"alpha", 1.0f}}, RULE(dy.call("QuickGeluGrad", x, {{"alpha", static_cast<float>(a)}}, kMicrosoft))},
};

// ONNX has one operator for both forms of Gelu; onnxruntime has an operator for each (FastGelu, which may
// have a bias, is in ops/nn/bias_gelu.cpp).
constexpr UnaryRow kGelu =
    without_left_out({"Gelu", kMicrosoft, unary::Gelu, {}, RULE(dy.call("GeluGrad", x, {}, kMicrosoft))});
constexpr UnaryRow kFastGelu =
    without_left_out({"FastGelu", kMicrosoft, unary::FastGelu, {}, RULE(dy.call("FastGeluGrad", x, {}, kMicrosoft))});

constexpr PairRow kPairRows[] = {
    {"ReluGrad", pair::ReluGrad, {}, FLAT,
      STANDARD(where_positive(g, x, dy))},
    {"SigmoidGrad", pair::SigmoidGrad, {}, DERIVATIVE(1.0 - 2.0 * x),
      STANDARD(dy * (x * (1.0 - x)))},
    {"TanhGrad", pair::TanhGrad, {}, DERIVATIVE(-2.0 * x),
      STANDARD(dy * (1.0 - x * x))},
    {"LeakyReluGrad", pair::LeakyReluGrad, {{"alpha", 0.01f}}, FLAT,
      STANDARD((x > 0.0).choose(dy, dy * a))},
    {"GeluGrad", pair::GeluGrad, {}, DERIVATIVE(gelu_curvature(x)),
      STANDARD(gelu_derivative(x) * dy)},
    {"FastGeluGrad", pair::FastGeluGrad, {}, DERIVATIVE(fast_gelu_curvature(x)),
      STANDARD(sigmoid_product_derivative(x, fast_gelu_argument(x).call("Sigmoid"),
                                          fast_gelu_a() * (1.0 + 3 * kFastGeluB * (x * x))) * dy)},
    {"QuickGeluGrad", pair::QuickGeluGrad, {{"alpha", 1.702f}}, DERIVATIVE(quick_gelu_curvature(x, a)),
      STANDARD(sigmoid_product_derivative(x, (x * a).call("Sigmoid"), x.number(a)) * dy)},
};

// The bounds that a node does not give are infinite (passes/fuse_clip_gradient.cpp).
constexpr PairRow kClipGrad =
    {"ClipGrad", pair::ClipGrad, {{"min", -std::numeric_limits<float>::infinity()}, {"max", std::numeric_limits<float>::infinity()}}};

// Made by passes/fuse_hard_swish_gradient.cpp.
constexpr PairRow kHardSwishGrad = {"HardSwishGrad", pair::HardSwishGrad, {}};

constexpr WithDerivativeRow kWithDerivativeRows[] = {
    {"GeluAndDerivative", "GeluGrad", with_derivative::Gelu, {}},
    {"FastGeluAndDerivative", "FastGeluGrad", with_derivative::FastGelu, {}},
    {"QuickGeluAndDerivative", "QuickGeluGrad", with_derivative::QuickGelu, {{"alpha", 1.702f}}},
    {"SwishAndDerivative", "SigmoidGrad", with_derivative::QuickGelu, {{"alpha", 1.0f}}},
};
// clang-format on
#undef STOPS
#undef RULE
#undef INTEGERS
#undef INTEGERS_THAT
#undef FLOATS
#undef FLAT
#undef DERIVATIVE
#undef STANDARD

bool is_float_or_double(DType t) { return t == DType::kFloat || t == DType::kDouble; }

Kernel unary_kernel(KernelContext& c, const UnaryRow& row) {
  const double a = Defaults::value(c.node(), row.defaults.a), b = Defaults::value(c.node(), row.defaults.b);
  if (!is_float_or_double(c.dtype(0))) {
    if (!row.integers) c.reject_dtype(0);
    return row.integers(c, a, b);
  }
  const bool narrow = follows_bf16(c, {0});
  const DType kept = narrow ? DType::kBFloat16 : c.dtype(0);
  UnaryFunction function = row.function(kept);
  function.a = a, function.b = b;
  const LayoutPtr layout = narrow ? bf16_layout(c, 0) : flat_layout(c, 0);
  const Slot x = c.in(0, layout), y = c.out_inplace(0, {0}, layout);
  const int64_t n = c.out_size(0);
  const int64_t width = static_cast<int64_t>(size_of(kept));
  return [=](const Frame& f) {
    const std::byte* from = f.at<std::byte>(x);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(n, function.cost, [&](int64_t begin, int64_t end) {
      function(from + begin * width, to + begin * width, end - begin);
    });
  };
}

void unary_gradient(GradientContext& g, const UnaryRow& row) {
  row.rule(g, {g, g.dy(0)}, {g, g.x(0)}, {g, g.y(0)}, Defaults::value(g.node(), row.defaults.a),
           Defaults::value(g.node(), row.defaults.b));
}

void pair_shape(ShapeContext& c) {
  expect_same(c, 0, 1);
  shape_like_first(c);
}

Kernel pair_kernel(KernelContext& c, const PairRow& row) {
  if (!is_float_or_double(c.dtype(0))) c.reject_dtype(0);
  const bool narrow = follows_bf16(c, {0, 1});
  const DType kept = narrow ? DType::kBFloat16 : c.dtype(0);
  PairFunction function = row.function(kept);
  function.a = Defaults::value(c.node(), row.defaults.a);
  function.b = Defaults::value(c.node(), row.defaults.b);
  // The value of the forward pass decides the layout, because other kernels read that value too.
  LayoutPtr layout = narrow ? bf16_layout(c, lies_in_bf16(c, 1) ? 1 : 0) : flat_layout(c, 1);
  if (!layout) layout = flat_layout(c, 0);
  const Slot u = c.in(0, layout), v = c.in(1, layout), y = c.out_inplace(0, {0, 1}, layout);
  const int64_t n = c.out_size(0);
  const int64_t width = static_cast<int64_t>(size_of(kept));
  return [=](const Frame& f) {
    const std::byte *from_u = f.at<std::byte>(u), *from_v = f.at<std::byte>(v);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(n, function.cost, [&](int64_t begin, int64_t end) {
      function(from_u + begin * width, from_v + begin * width, to + begin * width, end - begin);
    });
  };
}

// A pass makes such a node from the form of its graph alone. A model may have the same nodes without a
// gradient, and there one operand may broadcast.
void made_pair_shape(ShapeContext& c) { c.output(0, c.dtype(0), broadcast_inputs(c)); }

Kernel made_pair_kernel(KernelContext& c, const PairRow& row) {
  if (c.shape(0) == c.shape(1)) return pair_kernel(c, row);
  if (!is_float_or_double(c.dtype(0))) c.reject_dtype(0);
  PairFunction function = row.function(c.dtype(0));
  function.a = Defaults::value(c.node(), row.defaults.a);
  function.b = Defaults::value(c.node(), row.defaults.b);
  const Shape& shape = c.out_shape(0);
  const size_t width = width_of(c, 0);
  const int64_t n = c.out_size(0);
  const auto copy_of = [&](size_t i) {
    return StridedCopy(width, shape, {0, broadcast_strides(c.shape(i), shape)}, {0, strides_of(shape)});
  };
  const Slot dy = c.in(0), x = c.in(1), dx = c.out(0), whole_x = c.scratch(static_cast<size_t>(n) * width);
  return [=, copy_dy = copy_of(0), copy_x = copy_of(1)](const Frame& f) {
    std::byte *to = f.at<std::byte>(dx), *other = f.at<std::byte>(whole_x);
    copy_dy(f.at<std::byte>(dy), to);
    copy_x(f.at<std::byte>(x), other);
    function(to, other, to, n);
  };
}

// dX = dY s(X): dX is s u for dY and u dY s'(X) for X, with u the gradient of dX.
void pair_gradient(GradientContext& g, const PairRow& row) {
  const Expression u(g, g.dy(0)), dy(g, g.x(0)), x(g, g.x(1));
  if (g.needs(0)) g.set(0, u.call(std::string(row.type), x, g.node().attributes, kMicrosoft));
  if (g.needs(1) && row.derivative)
    g.set(1, u * dy * row.derivative(x, Defaults::value(g.node(), row.defaults.a)));
}

void with_derivative_shape(ShapeContext& c) {
  shape_like_first(c);
  c.output(1, c.dtype(0), c.shape(0));
}

// Computes both outputs even if nothing reads one of them, which happens when only the other output is
// recomputed.
Kernel with_derivative_kernel(KernelContext& c, const WithDerivativeRow& row) {
  if (!is_float_or_double(c.dtype(0))) c.reject_dtype(0);
  const bool narrow = follows_bf16(c, {0});
  const DType kept = narrow ? DType::kBFloat16 : c.dtype(0);
  WithDerivativeFunction function = row.function(kept);
  function.a = Defaults::value(c.node(), row.defaults.a);
  const LayoutPtr layout = narrow ? bf16_layout(c, 0) : flat_layout(c, 0);
  const Slot x = c.in(0, layout);
  Slot derivative = c.out_inplace(1, {0}, layout), y = c.out(0, layout);
  const int64_t n = c.out_size(0);
  const int64_t width = static_cast<int64_t>(size_of(kept));
  for (Slot* result : {&derivative, &y})
    if (!result->defined()) *result = c.scratch(static_cast<size_t>(n * width));
  return [=](const Frame& f) {
    const std::byte* from = f.at<std::byte>(x);
    std::byte *to = f.at<std::byte>(y), *to_derivative = f.at<std::byte>(derivative);
    parallel_for(n, function.cost, [&](int64_t begin, int64_t end) {
      function(from + begin * width, to + begin * width, to_derivative + begin * width, end - begin);
    });
  };
}

const UnaryRow& gelu_row(const Node& node) {
  const std::string approximate = node.string_or("approximate", "none");
  require(approximate == "none" || approximate == "tanh", ErrorCode::kInvalidGraph, node.label(),
          ": approximate must be 'none' or 'tanh', found '", approximate, "'");
  return approximate == "tanh" ? kFastGelu : kGelu;
}

constexpr Operator gelu_operator(std::string_view domain) {
  return {.domain = domain,
          .type = "Gelu",
          .signature = domain.empty() ? "" : "X -> Y",
          .rules = {.shape = shape_like_first,
                    .gradient = [](GradientContext& g) { unary_gradient(g, gelu_row(g.node())); }},
          .traits = {.takes_bf16 = true, .positions = elementwise_positions},
          .kernels = {.cpu = [](KernelContext& c) { return unary_kernel(c, gelu_row(c.node())); }}};
}
ORTRAIN_OPERATOR({gelu_operator("")});
ORTRAIN_OPERATOR({gelu_operator(kMicrosoft)});

constexpr bool stops_gradient(const UnaryRow& row) { return !row.rule; }

// Each row is a separate constant, so that a build contains only the rows of its operators.
template <size_t I>
constexpr UnaryRow kUnaryRow = without_left_out(kUnaryRows[I]);
template <size_t I>
constexpr PairRow kPairRow = without_left_out(kPairRows[I]);
template <size_t I>
constexpr WithDerivativeRow kWithDerivativeRow = kWithDerivativeRows[I];

const bool registered_unary = register_rows<std::size(kUnaryRows)>([]<size_t I>() -> Operator {
  constexpr UnaryRow row = kUnaryRows[I];
  return {.domain = row.domain,
          .type = row.type,
          .signature = row.domain.empty() ? "" : "X -> Y",
          .rules = {.shape = shape_like_first,
                    .gradient = stops_gradient(row)
                                    ? nullptr
                                    : +[](GradientContext& g) { unary_gradient(g, kUnaryRow<I>); }},
          .traits = {.stops_gradient = stops_gradient(row),
                     .since = row.since,
                     .takes_bf16 = true,
                     .positions = elementwise_positions},
          .kernels = {.cpu = [](KernelContext& c) { return unary_kernel(c, kUnaryRow<I>); }}};
});
const bool registered_pairs = register_rows<std::size(kPairRows)>([]<size_t I>() -> Operator {
  return {
      .domain = kMicrosoft,
      .type = kPairRows[I].type,
      .signature = "dY, X -> dX",
      .rules = {.shape = pair_shape, .gradient = [](GradientContext& g) { pair_gradient(g, kPairRow<I>); }},
      .traits = {.takes_bf16 = true},
      .kernels = {.cpu = [](KernelContext& c) { return pair_kernel(c, kPairRow<I>); }}};
});

// A pair that a pass makes from nodes of both types.
template <const PairRow& row>
constexpr Operator made_pair(std::string_view first, std::string_view second) {
  return {.domain = kSessionDomain,
          .type = row.type,
          .signature = "dY, X -> dX",
          .rules = {.shape = made_pair_shape},
          .traits = {.takes_bf16 = true},
          .kernels = {.cpu = [](KernelContext& c) { return made_pair_kernel(c, row); }},
          .made_from = {first, second}};
}
ORTRAIN_OPERATOR({made_pair<kClipGrad>("Mul", "Cast")});
ORTRAIN_OPERATOR({made_pair<kHardSwishGrad>("HardSwish", "Where")});

// ---------------------------------------------------------------------------------------------------------
// Standard forms.

template <size_t I>
void pair_form(DecompositionContext& e) {
  const PairRow& row = kPairRow<I>;
  e.set(0, row.standard(e, {e, e.x(0)}, {e, e.x(1)}, Defaults::value(e.node(), row.defaults.a)));
}
const bool declared_pair_forms = []<size_t... I>(std::index_sequence<I...>) {
  if constexpr (kIsNeeded<StandardForm>)
    (OperatorFacts<StandardForm>::Declare(kMicrosoft, kPairRows[I].type, {pair_form<I>}), ...);
  return true;
}
(std::make_index_sequence<std::size(kPairRows)>());

void gelu_form(DecompositionContext& e) {
  const Expression x(e, e.x(0));
  e.set(0, e.opset() >= kGeluSince ? x.call("Gelu") : x * normal_distribution(x));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "Gelu", {cold<gelu_form>});

void quick_gelu_form(DecompositionContext& e) {
  const Expression x(e, e.x(0));
  e.set(0, x * (x * static_cast<double>(e.node().float_or("alpha", 1.702f))).call("Sigmoid"));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "QuickGelu", {cold<quick_gelu_form>});

const bool registered_with_derivatives =
    register_rows<std::size(kWithDerivativeRows)>([]<size_t I>() -> Operator {
      return {
          .domain = kSessionDomain,
          .type = kWithDerivativeRows[I].type,
          .signature = "X -> Y, derivative?",
          .rules = {.shape = with_derivative_shape},
          .traits = {.takes_bf16 = true, .independent_outputs = true},
          .kernels = {.cpu =
                          [](KernelContext& c) { return with_derivative_kernel(c, kWithDerivativeRow<I>); }},
          .made_from = {kWithDerivativeRows[I].gradient}};
    });

}  // namespace
}  // namespace ortrain
