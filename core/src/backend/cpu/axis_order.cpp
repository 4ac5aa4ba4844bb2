#include "backend/cpu/axis_order.h"

namespace ortrain {

size_t AxisOrder::place(size_t axis, size_t rank) const {
  if (order == Order::kRowMajor || axis == 0) return axis;
  return axis == 1 ? rank - 1 : axis - 1;
}

AxisOrder order_of_inputs(const KernelContext& c) {
  if (c.dtype(0) == DType::kFloat)
    for (size_t i = 0; i < c.input_count(); ++i)
      if (c.has_input(i) && order_of(c.in_layout(i)) == Order::kChannelsLast) return {Order::kChannelsLast};
  return {};
}

}  // namespace ortrain
