// BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift on integers.
#include <limits>
#include <type_traits>

#include "op/operator.h"
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
  if (c.node().op_type == "BitShift") {
    const std::string direction = c.node().string_or("direction", "");
    c.expect(direction == "LEFT" || direction == "RIGHT", "direction must be 'LEFT' or 'RIGHT', found '",
             direction, "'");
  }
  c.output(0, c.dtype(0), broadcast_inputs(c));
}

Kernel pair_kernel(KernelContext& c) {
  BinaryFunction function = nullptr;
  const std::string& type = c.node().op_type;
  const bool left = c.node().string_or("direction", "") == "LEFT";
  visit_integer(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const auto use = [&](auto formula) { function = plain_loop<T, T, decltype(formula)>; };
    if (type == "BitwiseAnd")
      use([](T a, T b) { return a & b; });
    else if (type == "BitwiseOr")
      use([](T a, T b) { return a | b; });
    else if (type == "BitwiseXor")
      use([](T a, T b) { return a ^ b; });
    else if (left)
      use([](T a, T b) { return shift_left(a, b); });
    else
      use([](T a, T b) { return shift_right(a, b); });
  });
  return broadcast_kernel(c, function, 1);
}

void not_shape(ShapeContext& c) {
  if (!visit_integer(c.dtype(0), [](auto) {})) c.reject_dtype(0);
  shape_like_first(c);
}

Kernel not_kernel(KernelContext& c) {
  Kernel kernel;
  visit_integer(c.dtype(0), [&](auto zero) {
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

#define ORTRAIN_BITWISE(name)                           \
  ORTRAIN_OPERATOR({.type = name,                       \
                    .rules = {.shape = pair_shape},     \
                    .traits = {.stops_gradient = true}, \
                    .kernels = {.cpu = pair_kernel}})
ORTRAIN_BITWISE("BitwiseAnd");
ORTRAIN_BITWISE("BitwiseOr");
ORTRAIN_BITWISE("BitwiseXor");
ORTRAIN_BITWISE("BitShift");
ORTRAIN_OPERATOR({.type = "BitwiseNot",
                  .rules = {.shape = not_shape},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = not_kernel}});

}  // namespace
}  // namespace ortrain
