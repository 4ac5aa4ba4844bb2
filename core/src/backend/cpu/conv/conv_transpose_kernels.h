// Kernels of transposed convolution that need no library.
#pragma once

#include <optional>

#include "backend/cpu/conv/conv_kernels.h"
#include "geometry/conv_transpose.h"

namespace ortrain {

// In float, with channels last.
std::optional<Kernel> channels_last_conv_transpose(KernelContext& c);
std::optional<Kernel> channels_last_conv_transpose_grad(KernelContext& c);
std::optional<Kernel> row_major_conv_transpose(KernelContext& c);
std::optional<Kernel> row_major_conv_transpose_grad(KernelContext& c);
// All of ConvTransposeGrad, using those of its parts that are already given.
Kernel row_major_conv_transpose_grad(KernelContext& c, const Transposed& t, ConvGradParts parts);

}  // namespace ortrain
