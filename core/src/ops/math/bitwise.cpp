// BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift on integers.
#include <limits>
#include <type_traits>

#include "op/operator.h"
#include "op/wide_integers.h"
#include "ops/common/elementwise.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

template <typename F>
bool visit_integer(DType dtype, F&& f) {
  return visit_types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>(dtype, f);
}

// Bits shifted out are lost. Shifts by a negative number or by all bits leave only the sign: -1 for a
// negative number shifted to the right, else 0.
template <typename T>
T shift_left(T x, T by) {
  if (by < 0 || static_cast<uint64_t>(by) >= 8 * sizeof(T)) return 0;
  return static_cast<T>(static_cast<uint64_t>(x) << by);
}

template <typename T>
T shift_right(T x, T by) {
  if (by < 0 || static_cast<uint64_t>(by) >= 8 * sizeof(T)) return x < 0 ? static_cast<T>(-1) : T{0};
  return static_cast<T>(x >> by);
}

void pair_shape(ShapeContext& c) {
  if (!visit_integer(c.dtype(0), [](auto) {})) c.reject_dtype(0);
  c.output(0, c.dtype(0), broadcast_inputs(c));
}

// `Formula`, of two elements, is stateless.
template <class Formula>
Kernel pair_kernel(KernelContext& c) {
  BinaryFunction function = nullptr;
  visit_wide_integer(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    function = plain_loop<T, T, Formula>;
  });
  return broadcast_kernel(c, function, 1);
}

bool shifts_left(const NodeContext& c) {
  const std::string direction = c.node().string_or("direction", "");
  c.expect(direction == "LEFT" || direction == "RIGHT", "direction must be 'LEFT' or 'RIGHT', found '",
           direction, "'");
  return direction == "LEFT";
}

void shift_shape(ShapeContext& c) {
  shifts_left(c);
  pair_shape(c);
}

Kernel shift_kernel(KernelContext& c) {
  using Left = decltype([](auto a, auto b) { return shift_left(a, b); });
  using Right = decltype([](auto a, auto b) { return shift_right(a, b); });
  return shifts_left(c) ? pair_kernel<Left>(c) : pair_kernel<Right>(c);
}

void not_shape(ShapeContext& c) {
  if (!visit_integer(c.dtype(0), [](auto) {})) c.reject_dtype(0);
  shape_like_first(c);
}

Kernel not_kernel(KernelContext& c) {
  Kernel kernel;
  visit_wide_integer(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out_inplace(0, {0});
    const int64_t n = c.out_size(0);
    kernel = [=](const Frame& f) {
      const T* from = f.at<T>(x);
      T* to = f.at<T>(y);
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = static_cast<T>(~from[i]);
      });
    };
  });
  return kernel;
}

template <class Formula>
constexpr Operator bitwise(std::string_view type, Formula) {
  return {.type = type,
          .rules = {.shape = pair_shape},
          .traits = {.stops_gradient = true},
          .kernels = {.cpu = wide_integers<pair_kernel<Formula>>}};
}
ORTRAIN_OPERATOR({bitwise("BitwiseAnd", [](auto a, auto b) { return a & b; })});
ORTRAIN_OPERATOR({bitwise("BitwiseOr", [](auto a, auto b) { return a | b; })});
ORTRAIN_OPERATOR({bitwise("BitwiseXor", [](auto a, auto b) { return a ^ b; })});
ORTRAIN_OPERATOR({.type = "BitShift",
                  .rules = {.shape = shift_shape},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = wide_integers<shift_kernel>}});
ORTRAIN_OPERATOR({.type = "BitwiseNot",
                  .rules = {.shape = not_shape},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = wide_integers<not_kernel>}});

}  // namespace
}  // namespace ortrain
