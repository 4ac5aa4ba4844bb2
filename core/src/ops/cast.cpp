// Cast and CastLike between all numeric types, bool, float16 and bfloat16.

#include <cmath>
#include <limits>
#include <type_traits>

#include "ops/elementwise.h"
#include "ops/half.h"
#include "ops/operator.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

// Floating to integer cuts toward zero; what the target cannot hold becomes its nearest number, NaN becomes
// 0. Bool is whether the number differs from zero.
template <typename To, typename From>
To convert(From x) {
  if constexpr (kIsHalf<From>) {
    return convert<To>(static_cast<float>(x));
  } else if constexpr (kIsHalf<To>) {
    return To(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // 2^width is exact in From, the largest integer may not be.
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kPast = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * 2;
    if (std::isnan(x)) return 0;
    return x >= kPast  ? std::numeric_limits<To>::max()
           : x <= kLow ? std::numeric_limits<To>::min()
                       : static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <typename F>
bool visit_castable(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16:
      f(Float16{});
      return true;
    case DType::kBFloat16:
      f(BFloat16{});
      return true;
    default:
      return visit_numeric_or_bool(dtype, f);
  }
}

DType target_of(const NodeContext& c) {
  if (c.node().op_type == "CastLike") return c.dtype(1);
  c.expect(c.node().has("to"), "the attribute 'to' is missing");
  return static_cast<DType>(c.node().int_or("to", 0));
}

void shape(ShapeContext& c) {
  const DType to = target_of(c);
  if (!visit_castable(c.dtype(0), [](auto) {})) c.reject_dtype(0);
  c.expect(visit_castable(to, [](auto) {}), "it cannot cast to ", to_string(to));
  c.output(0, to, c.shape(0));
}

Kernel kernel(KernelContext& c) {
  if (c.dtype(0) == c.out_dtype(0)) {
    c.alias(0, 0);
    return nullptr;
  }
  Kernel kernel;
  const Slot x = c.in(0), y = c.out(0);
  const int64_t n = c.out_size(0);
  visit_castable(c.dtype(0), [&](auto from_zero) {
    visit_castable(c.out_dtype(0), [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      kernel = [=](const Frame& f) {
        const From* from = f.at<From>(x);
        To* to = f.at<To>(y);
        parallel_for(n, 1, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) to[i] = convert<To>(from[i]);
        });
      };
    });
  });
  return kernel;
}

// The gradient goes back in the input's type; from integers there is none to speak of.
void gradient(GradientContext& g) {
  const DType from = g.dtype(g.x(0));
  if (g.needs(0) && is_floating(from)) g.set(0, g("Cast", {g.dy(0)}, {{"to", static_cast<int64_t>(from)}}));
}

ORTRAIN_OPERATOR({.type = "Cast", .shape = shape, .kernel = kernel, .gradient = gradient, .since = 6});
ORTRAIN_OPERATOR({.type = "CastLike", .shape = shape, .kernel = kernel, .gradient = gradient});

}  // namespace
}  // namespace ortrain
