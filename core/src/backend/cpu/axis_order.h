// The order of axes in memory, for operators that do the same along every axis: copies, broadcasting,
// reductions. Such an operator works on sorted shapes as if all values were row-major.
#pragma once

#include <vector>

#include "backend/cpu/stored_layout.h"
#include "op/operator.h"

namespace ortrain {

struct AxisOrder {
  Order order = Order::kRowMajor;

  // Of floats with this shape.
  LayoutPtr layout(const Shape& shape, bool bf16 = false) const { return stored_layout(shape, order, bf16); }
  // The facts of the axes, from the outermost axis to the innermost.
  template <typename T>
  std::vector<T> sorted(std::vector<T> facts) const {
    if (order == Order::kChannelsLast)
      for (size_t i = 2; i < facts.size(); ++i) {
        const T channels = facts[i - 1];
        facts[i - 1] = facts[i];
        facts[i] = channels;
      }
    return facts;
  }
  // The position of an axis among `rank` sorted axes.
  size_t place(size_t axis, size_t rank) const;
};

// Channels last if the node's first input has type float and an input is stored so.
AxisOrder order_of_inputs(const KernelContext& c);

}  // namespace ortrain
