// Kernels of layer normalization and of its simplified form, the root mean square.
#pragma once

#include <cstddef>

#include "op/operator.h"

namespace ortrain {

// The first of the normalized axes of a node whose input `x` is X.
size_t normalized_axis(const NodeContext& c, size_t x);

// X, scale, bias → Y and, where they are read, the statistics.
template <bool Simplified>
Kernel layer_normalization(KernelContext& c);
// dY, X, scale, statistics → dX, dscale, dbias.
template <bool Simplified>
Kernel layer_normalization_grad(KernelContext& c);

}  // namespace ortrain
