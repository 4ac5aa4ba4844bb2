// Elementwise operators of two values with broadcasting: Add, Sub, Mul, Div, PRelu, Mod, Pow, and DivGrad.
//
// A row is: name, gradient of each operand before it is summed over the axes along which that operand was
// broadcast. The computation is in backend/cpu/elementwise/binary_functions.cpp.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/elementwise/integers.h"
#include "backend/cpu/reduce/reduction.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/wide_integers.h"
#include "ops/common/elementwise.h"
#include "runtime/broadcast.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// The remainder of integers a / b with the sign of a, as in C; 0 for b = -1, where the quotient may overflow.
template <typename T>
T remainder_like_c(T a, T b) {
  return b == static_cast<T>(-1) && std::is_signed_v<T> ? T{0} : static_cast<T>(a % b);
}

using Rule = Expression (*)(const Expression& dy, const Expression& a, const Expression& b,
                            const Expression& y);

struct BinaryRow {
  std::string_view type;
  Rule rules[2];         // of operand a and of operand b
  bool divides = false;  // by b; an integer b must not be 0
  bool slopes = false;   // a vector b has one element for each channel of a before opset 7
};

// A scalar formula, for the integer or for the floating-point types.
template <bool kIntegers, class F>
BinaryFunction plain_function(DType dtype, F) {
  BinaryFunction found = nullptr;
  visit_wide_numeric(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_integral_v<T> == kIntegers) found = plain_loop<T, T, F>;
  });
  return found;
}

#define RULE(...)                                                                                      \
  [](const Expression& dy, [[maybe_unused]] const Expression& a, [[maybe_unused]] const Expression& b, \
     [[maybe_unused]] const Expression& y) -> Expression { return __VA_ARGS__; }
// Max and Min are variadic and have their gradients in sum.cpp; the gradient of Mod is below.
// clang-format off
constexpr BinaryRow kRows[] = {
    {"Add", {RULE(dy), RULE(dy)}},
    {"Sub", {RULE(dy), RULE(-dy)}},
    {"Mul", {RULE(dy * b), RULE(dy * a)}},
    {"Div", {RULE(dy / b), RULE(-(dy / b * y))}, true},
    // Its derivative at 0 is the left derivative.
    {"PRelu", {RULE((a > 0.0).choose(dy, dy * b)), RULE((a > 0.0).choose(a.number(0), dy * a))}, false, true},
};
// clang-format on
#undef RULE

// The kernel for a result stored in bfloat16. Operands are read in the type in which they are stored: biases
// and factors are float.
Kernel bf16_kernel(KernelContext& c, std::string_view type) {
  const bool same = c.shape(0) == c.shape(1);
  const auto narrow = [&](size_t i) { return lies_in_bf16(c, i); };
  LayoutPtr layouts[2], made;
  for (size_t i = 0; i < 2; ++i) {
    // An operand in another order is converted to the order that is kept, unless it is float and the order
    // does not matter.
    if (narrow(i)) layouts[i] = c.shape(i) == c.out_shape(0) ? bf16_layout(c, i) : bf16_row_major(c.shape(i));
  }
  if (same) {
    made = narrow(0) ? layouts[0] : layouts[1];
    for (size_t i = 0; i < 2; ++i)
      if (narrow(i) || !same_layout(made, bf16_row_major(c.out_shape(0)))) layouts[i] = made;
  } else {
    // Any storage order can be processed as flat if the other operand is a single element.
    const bool scalar = c.size(0) == 1 || c.size(1) == 1;
    for (size_t i = 0; i < 2; ++i)
      if (narrow(i) && !(scalar && c.shape(i) == c.out_shape(0))) layouts[i] = bf16_row_major(c.shape(i));
    made = bf16_row_major(c.out_shape(0));
    for (size_t i = 0; scalar && i < 2; ++i)
      if (layouts[i] && c.shape(i) == c.out_shape(0)) made = layouts[i];
  }
  const Slot a = c.in(0, layouts[0]), b = c.in(1, layouts[1]);
  const bool bf16_a = layouts[0] != nullptr, bf16_b = layouts[1] != nullptr;
  const BinaryFunction function = bf16_function(type, bf16_a, bf16_b);
  const Slot y = bf16_a && bf16_b ? out_over(c, {0, 1}, made)
                 : bf16_a         ? out_over(c, {0}, made)
                                  : out_over(c, {1}, made);
  const Broadcast<2> shape({c.shape(0), c.shape(1)}, c.out_shape(0));
  const int64_t width_a = bf16_a ? 2 : 4, width_b = bf16_b ? 2 : 4;
  return [=](const Frame& f) {
    const std::byte *from_a = f.at<std::byte>(a), *from_b = f.at<std::byte>(b);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(shape.size(), 1, [&](int64_t begin, int64_t end) {
      shape.walk(begin, end, [&](int64_t at, const std::array<int64_t, 2>& in, int64_t n) {
        function(from_a + in[0] * width_a, shape.step(0), from_b + in[1] * width_b, shape.step(1),
                 to + at * 2, n);
      });
    });
  };
}

// Runs `kernel` unless an integer divisor (input 1) is zero.
Kernel guard_divisor(KernelContext& c, Kernel kernel) {
  if (is_floating(c.dtype(1))) return kernel;
  const Slot b = c.in(1);
  const int64_t n = c.size(1);
  const std::string label = c.node().label();
  Kernel guarded;
  visit_wide_integer(c.dtype(1), [&](auto zero) {
    using T = decltype(zero);
    guarded = [=, kernel = std::move(kernel)](const Frame& f) {
      const T* values = f.at<T>(b);
      require(std::find(values, values + n, T{0}) == values + n, ErrorCode::kInvalidArgument, label,
              ": integer division by zero");
      kernel(f);
    };
  });
  return guarded;
}

template <bool Slopes = false>
void binary_shape(ShapeContext& c) {
  c.output(0, c.dtype(0), broadcast_inputs(c, 0, Slopes));
}

Kernel typed_binary_kernel(KernelContext& c, const BinaryRow& row) {
  if (follows_bf16(c, {0, 1}) && operand_shape(c, 1, row.slopes) == c.shape(1))
    return bf16_kernel(c, row.type);
  const BinaryFunction function = binary_function(row.type, c.dtype(0));
  if (!function) c.reject_dtype(0);
  Kernel kernel = broadcast_kernel(c, function, 1, row.slopes);
  return row.divides ? guard_divisor(c, std::move(kernel)) : std::move(kernel);
}

Kernel binary_kernel(KernelContext& c, const BinaryRow& row) {
  return with_wide_integers(c, [&](KernelContext& wide) { return typed_binary_kernel(wide, row); });
}

// The second operand of a rule. If it is aligned with an axis of the first (operand_axis), axes of size 1 are
// appended, so that the rule's nodes broadcast it as the node did.
class SecondOperand {
 public:
  explicit SecondOperand(GradientContext& g, bool slopes = false) : g_(g), name_(g.x(1)) {
    if (g.opset() >= since::kBroadcasting || !(g.node().has("axis") || slopes)) return;
    const auto rank = g.rank(g.x(0)), own = g.rank(name_);
    if (!rank || !own) g.reject("the gradient of an operand at an axis needs operands of known rank");
    const bool channels = slopes && *own == 1 && (*g.dims(name_))[0].value != 1;
    const auto axis = operand_axis(g.node(), g.opset(), *rank, channels);
    if (!axis || *axis + *own == *rank) return;
    std::vector<int64_t> behind;
    for (int64_t i = 0; i < *rank; ++i) {
      if (i < *axis || i >= *axis + *own) outside_.push_back(i);
      if (i >= *axis + *own) behind.push_back(i - *axis);
    }
    if (!behind.empty()) name_ = g.unsqueeze(name_, behind);
  }
  Expression value() const { return {g_, name_}; }
  // Sums a gradient with the result's shape to the operand's own shape.
  Name sum(Name gradient) const {
    return outside_.empty() ? g_.unbroadcast(gradient, g_.y(0), 1) : g_.reduce_sum(gradient, outside_, false);
  }

 private:
  GradientContext& g_;
  Name name_;
  std::vector<int64_t> outside_;  // axes of the result that the operand does not have
};

void binary_gradient(GradientContext& g, const BinaryRow& row) {
  const SecondOperand second(g, row.slopes);
  const Expression dy(g, g.dy(0)), a(g, g.x(0)), b = second.value(), y(g, g.y(0));
  if (g.needs(0)) g.set(0, g.unbroadcast(row.rules[0](dy, a, b, y), y, 0));
  if (g.needs(1)) g.set(1, second.sum(row.rules[1](dy, a, b, y)));
}

// The remainder of a with the sign of b, in floating point; rounding cannot make it exceed b.
template <typename T>
T floating_remainder(T a, T b) {
  const T r = std::fmod(a, b);
  if (r == 0) return std::copysign(r, b);
  return (r < 0) != (b < 0) ? r + b : r;
}

// Mod: fmod = 0 follows the divisor's sign, fmod = 1 follows the dividend's, as in C. The row computes the
// usual mode of the type: 0 for integers, 1 for floating-point types.
Kernel mod_kernel(KernelContext& c) {
  const bool like_c = c.node().int_or("fmod", 0) != 0;
  BinaryFunction function = binary_function("Mod", c.dtype(0));
  if (!function) c.reject_dtype(0);
  if (!is_floating(c.dtype(0)) && like_c)
    function = plain_function<true>(c.dtype(0), [](auto a, auto b) { return remainder_like_c(a, b); });
  if (is_floating(c.dtype(0)) && !like_c)
    function = plain_function<false>(c.dtype(0), [](auto a, auto b) { return floating_remainder(a, b); });
  return guard_divisor(c, broadcast_kernel(c, function, 10));
}

// y = a - b q with a whole quotient q, so da = dy and db = -dy q. Division rounds, so the remainder is used
// to recover q: q = round((a - y) / b).
void mod_gradient(GradientContext& g) {
  const Expression dy(g, g.dy(0)), a(g, g.x(0)), b(g, g.x(1)), y(g, g.y(0));
  if (g.needs(0)) g.set(0, g.unbroadcast(dy, y, 0));
  if (g.needs(1)) g.set(1, g.unbroadcast(-(dy * ((a - y) / b).call("Round")), y, 1));
}

// The exponent may have another type than the base.
void pow_shape(ShapeContext& c) { c.output(0, c.dtype(0), broadcast_inputs(c, 1)); }

// x^e. Integers to a non-negative power are exact (modulo the width); all other powers use pow.
template <typename T, typename E>
T power(T x, E e) {
  if constexpr (std::is_same_v<T, float> && std::is_same_v<E, float>) {
    return std::pow(x, e);
  } else if constexpr (std::is_integral_v<T> && std::is_integral_v<E>) {
    if (e >= 0) {
      uint64_t result = 1, base = wrap(x);
      for (uint64_t bits = static_cast<uint64_t>(e); bits; bits >>= 1, base *= base)
        if (bits & 1) result *= base;
      return static_cast<T>(result);
    }
    // 1 / x^|e| cut toward zero.
    return x == 1 ? T{1} : x == static_cast<T>(-1) ? static_cast<T>(e % 2 ? -1 : 1) : T{0};
  } else {
    const double y = std::pow(static_cast<double>(x), static_cast<double>(e));
    if constexpr (std::is_integral_v<T>) {
      // An out-of-range conversion would be undefined.
      constexpr double low = static_cast<double>(std::numeric_limits<T>::min());
      constexpr double high = static_cast<double>(std::numeric_limits<T>::max());
      return y >= high ? std::numeric_limits<T>::max()
             : y > low ? static_cast<T>(y)
                       : std::numeric_limits<T>::min();
    } else {
      return static_cast<T>(y);
    }
  }
}

template <typename T, typename E>
void power_row(const void* base, int64_t step_x, const void* exponents, int64_t step_e, void* to, int64_t n) {
  const T* x = static_cast<const T*>(base);
  const E* e = static_cast<const E*>(exponents);
  T* y = static_cast<T*>(to);
  if (step_e == 0 && *e == E{1}) {
    for (int64_t i = 0; i < n; ++i) y[i] = x[i * step_x];
  } else if (step_e == 0 && *e == E{2} && step_x == 1) {  // as in norms
    for (int64_t i = 0; i < n; ++i) y[i] = wrapping_product(x[i], x[i]);
  } else if (step_e == 0 && *e == E{2}) {
    for (int64_t i = 0; i < n; ++i) y[i] = wrapping_product(x[i * step_x], x[i * step_x]);
  } else if (step_e == 0 && *e == E{3}) {
    for (int64_t i = 0; i < n; ++i)
      y[i] = wrapping_product(wrapping_product(x[i * step_x], x[i * step_x]), x[i * step_x]);
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = power(x[i * step_x], e[i * step_e]);
  }
}

// The type to which exponents of type E are converted for a base of type T: an integer type for integers to
// the power of integers, which are exact; float if both are float; else double.
template <typename T, typename E>
using Exponent = std::conditional_t<
    std::is_integral_v<T> && std::is_integral_v<E>,
    std::conditional_t<std::is_same_v<E, uint64_t>, uint64_t, int64_t>,
    std::conditional_t<std::is_same_v<T, float> && std::is_same_v<E, float>, float, double>>;

template <typename T, typename E>
void mixed_power_row(const void* base, int64_t step_x, const void* exponents, int64_t step_e, void* to,
                     int64_t n) {
  using Read = Exponent<T, E>;
  constexpr int64_t kPiece = 256;
  Read read[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = std::min(kPiece, n - i);
    const E* from = static_cast<const E*>(exponents) + i * step_e;
    std::copy_n(from, step_e ? count : 1, read);
    power_row<T, Read>(static_cast<const T*>(base) + i * step_x, step_x, read, step_e,
                       static_cast<T*>(to) + i, count);
  }
}

// ONNX has Pow on four types, with any numeric exponent.
Kernel pow_kernel(KernelContext& c) {
  BinaryFunction function = nullptr;
  const bool known = visit_types<float, double, int32_t, int64_t>(c.dtype(0), [&](auto zero_x) {
    if (!visit_wide_numeric(c.dtype(1), [&](auto zero_e) {
          using T = decltype(zero_x);
          using E = decltype(zero_e);
          if constexpr (std::is_same_v<E, Exponent<T, E>>)
            function = power_row<T, E>;
          else
            function = mixed_power_row<T, E>;
        }))
      c.reject_dtype(1);
  });
  if (!known) c.reject_dtype(0);
  // A power that is not a small integer costs about sixty additions.
  const Tensor* e = c.constant(1);
  const bool cheap = e && e->size() == 1 && e->to_double()[0] == 2;
  return broadcast_kernel(c, function, cheap ? 1 : 60);
}

// dx = dy e x^(e-1), and 0 where e is 0; de = dy x^e ln x, and 0 where x is 0 and e is not negative: both
// products have a factor 0 there and another that is infinite.
void pow_gradient(GradientContext& g) {
  const Expression dy(g, g.dy(0)), x(g, g.x(0)), y(g, g.y(0));
  const SecondOperand second(g);
  const Expression raw = second.value();
  const Expression e = g.dtype(raw) == g.dtype(x) ? raw : raw.as(x);
  if (g.needs(0)) {
    const Tensor* known = g.constant_value(g.x(1));
    const std::vector<double> exponents = known ? known->to_double() : std::vector<double>{0};
    if (exponents.size() == 1 && exponents[0] == 2) {
      g.set(0, g.unbroadcast(dy * (x * 2.0), y, 0));
    } else {
      Expression gradient = dy * (e * x.call("Pow", e - 1.0));
      if (std::find(exponents.begin(), exponents.end(), 0.0) != exponents.end())
        gradient = e.call("Equal", e.number(0)).choose(e.number(0), gradient);
      g.set(0, g.unbroadcast(gradient, y, 0));
    }
  }
  if (g.needs(1)) {
    // e >= 0 is |e| = e; GreaterOrEqual is not in old opsets.
    const Expression flat = x.call("Equal", x.number(0)) && e.call("Equal", e.call("Abs"));
    g.set(1, second.sum(flat.choose(x.number(0), dy * (y * x.call("Log")))));
  }
}

// DivGrad: dA = sum dY / B, dB = sum -dY A / B^2, each over the axes along which its operand was broadcast.
void div_grad_shape(ShapeContext& c) {
  for (size_t i = 1; i < 3; ++i) {
    c.expect(c.dtype(i) == c.dtype(0), "input ", i, " must have the type of dY, ", to_string(c.dtype(0)),
             ", found ", to_string(c.dtype(i)));
    if (c.has_output(i - 1)) c.output(i - 1, c.dtype(i), c.shape(i));
  }
  c.expect(broadcast(c.shape(1), c.shape(2)) == c.shape(0), "dY has shape ", to_string(c.shape(0)),
           ", but A and B of shapes ", to_string(c.shape(1)), " and ", to_string(c.shape(2)), " give ",
           to_string(broadcast(c.shape(1), c.shape(2))));
}

// Computes dA or, if `a` is not null, dB, before the sum over broadcast axes.
using DivGradRow = void (*)(const void* dy, const void* a, int64_t step_a, const void* b, int64_t step_b,
                            void* to, int64_t n);
template <typename T>
void div_grad_row(const void* dy, const void* a, int64_t step_a, const void* b, int64_t step_b, void* to,
                  int64_t n) {
  const T *d = static_cast<const T*>(dy), *u = static_cast<const T*>(a), *v = static_cast<const T*>(b);
  T* out = static_cast<T*>(to);
  if (u)
    for (int64_t i = 0; i < n; ++i) out[i] = -d[i] / v[i * step_b] * (u[i * step_a] / v[i * step_b]);
  else
    for (int64_t i = 0; i < n; ++i) out[i] = d[i] / v[i * step_b];
}

Kernel div_grad_kernel(KernelContext& c) {
  DivGradRow row = nullptr;
  if (!visit_floating(c.dtype(0), [&](auto zero) { row = div_grad_row<decltype(zero)>; })) c.reject_dtype(0);
  const Slot dy = c.in(0), a = c.in(1), b = c.in(2), da = c.out(0), db = c.out(1);
  const Broadcast<2> shape({c.shape(1), c.shape(2)}, c.shape(0));
  const auto width = static_cast<int64_t>(size_of(c.dtype(0)));
  const Slot full = c.scratch(static_cast<size_t>(shape.size() * width));
  const Reduction to_a = Reduction::sum_to(c.shape(0), c.shape(1), c.dtype(0));
  const Reduction to_b = Reduction::sum_to(c.shape(0), c.shape(2), c.dtype(0));
  const Slot scratch = c.scratch(std::max(to_a.scratch_bytes(), to_b.scratch_bytes()));
  return [=](const Frame& f) {
    const auto fill = [&](bool second) {
      parallel_for(shape.size(), 4, [&](int64_t begin, int64_t end) {
        shape.walk(begin, end, [&](int64_t at, const std::array<int64_t, 2>& in, int64_t n) {
          row(f.at<std::byte>(dy) + at * width, second ? f.at<std::byte>(a) + in[0] * width : nullptr,
              shape.step(0), f.at<std::byte>(b) + in[1] * width, shape.step(1),
              f.at<std::byte>(full) + at * width, n);
        });
      });
    };
    if (da.defined()) {
      fill(false);
      to_a.run(f.at<std::byte>(full), f.at<void>(da), f.at<std::byte>(scratch));
    }
    if (db.defined()) {
      fill(true);
      to_b.run(f.at<std::byte>(full), f.at<void>(db), f.at<std::byte>(scratch));
    }
  };
}

const bool registered = register_rows<std::size(kRows)>([]<size_t I>() -> Operator {
  return {.type = kRows[I].type,
          .rules = {.shape = binary_shape<kRows[I].slopes>,
                    .gradient = [](GradientContext& g) { binary_gradient(g, kRows[I]); }},
          .traits = {.takes_bf16 = true, .positions = broadcast_positions},
          .kernels = {.cpu = [](KernelContext& c) { return binary_kernel(c, kRows[I]); }}};
});
ORTRAIN_OPERATOR({.type = "Mod",
                  .rules = {.shape = binary_shape<>, .gradient = mod_gradient},
                  .kernels = {.cpu = wide_integers<mod_kernel>}});
ORTRAIN_OPERATOR({.type = "Pow",
                  .rules = {.shape = pow_shape, .gradient = pow_gradient},
                  .traits = {.positions = broadcast_positions},
                  .kernels = {.cpu = wide_integers<pow_kernel>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "DivGrad",
                  .signature = "dY, A, B -> dA?, dB?",
                  .rules = {.shape = div_grad_shape},
                  .traits = {.optional_outputs = true},
                  .kernels = {.cpu = div_grad_kernel}});

}  // namespace

}  // namespace ortrain
