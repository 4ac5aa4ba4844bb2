// The element order in which channels are innermost: values [N, C, spatial...] are stored as [N, spatial...,
// C], and weights [M, C, kernel...] as [M, kernel..., C]. The kernels of a convolution read whole vectors of
// channels in this order, for any number of channels and any vector.
#pragma once

#include "op/kernel.h"
#include "op/operator.h"
#include "runtime/shape.h"

namespace ortrain {

// The order for floats of this shape; null if it is the row-major one, because there is one channel or one
// point.
LayoutPtr channels_last(const Shape& shape);
// Whether a node's values can have it: floats that are not all constants, whose kernels run when it is
// compiled and return row-major values.
bool suits_channels_last(const KernelContext& c);
// A copy of row-major floats in that order.
Tensor with_channels_last(const Tensor& values);
// The order of input i if it is stored with channels last, else null.
LayoutPtr stored_channels_last(const KernelContext& c, size_t i);

}  // namespace ortrain
