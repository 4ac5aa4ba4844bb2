// The element order in which channels are innermost: values [N, C, spatial...] are stored as [N, spatial...,
// C], and weights [M, C, kernel...] as [M, kernel..., C]. The kernels of a convolution read whole vectors of
// channels in this order, for any number of channels and any vector.
#pragma once

#include "backend/cpu/stored_values.h"
#include "op/operator.h"
#include "runtime/shape.h"

namespace ortrain {

// The order for values of this shape, in float or bfloat16; row-major if it is the same order, because there
// is one channel or one point.
LayoutPtr channels_last(const Shape& shape, bool bf16 = false);
// Whether a node's values can have it: floats that are not all constants, whose kernels run when it is
// compiled and return row-major values.
bool suits_channels_last(const KernelContext& c);
// A copy of row-major floats with channels last.
Tensor with_channels_last(const Tensor& values);
// Whether input i is stored with channels last.
bool stored_channels_last(const KernelContext& c, size_t i);
// Input i with channels last, in the type in which it is stored or in a given one, and output o.
StoredSlot in_channels_last(KernelContext& c, size_t i);
StoredSlot in_channels_last(KernelContext& c, size_t i, bool bf16);
StoredSlot out_channels_last(KernelContext& c, size_t o, bool bf16);

}  // namespace ortrain
