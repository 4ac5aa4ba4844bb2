// The layouts of values of type float that our kernels read and write: row-major or with channels last, as
// floats or in bfloat16; and those of bool.
#pragma once

#include "op/kernel.h"
#include "runtime/shape.h"

namespace ortrain {

enum class Order { kRowMajor, kChannelsLast };

// Null for row-major floats. The two orders are the same, and row-major is returned, for values with one
// channel or one point, and for those without points.
LayoutPtr stored_layout(const Shape& shape, Order order, bool bf16);

// The same for elements of one byte, such as those of bool.
LayoutPtr byte_layout(const Shape& shape, Order order);

// The order of values with such a layout: row-major if it is not one of these.
Order order_of(const LayoutPtr& layout);

}  // namespace ortrain
