// Kernels of convolution that need no library.
#pragma once

#include <optional>
#include <vector>

#include "backend/cpu/conv/channels_last_conv.h"
#include "backend/cpu/stored_values.h"
#include "geometry/convolution.h"
#include "op/operator.h"

namespace ortrain {

std::optional<Kernel> direct_conv(KernelContext& c);     // Conv and FusedConv
std::optional<Kernel> depthwise_conv(KernelContext& c);  // the same, in float
// In float, with channels last.
std::optional<Kernel> channels_last_conv(KernelContext& c);  // Conv and FusedConv
std::optional<Kernel> channels_last_conv_grad(KernelContext& c);
std::optional<Kernel> channels_last_depthwise(KernelContext& c);  // Conv and FusedConv
std::optional<Kernel> channels_last_depthwise_grad(KernelContext& c);
std::optional<Kernel> separable_conv(KernelContext& c);
// The weights, input i, as the convolution's forward pass or its gradient of X reads them: packed once if
// they are constant, otherwise in each run, by a kernel that is added to `kernels`.
Slot packed_weights(KernelContext& c, size_t i, const ChannelsLastConvolution& conv, bool backward,
                    std::vector<Kernel>& kernels);
// The gradient of the bias, output 2, from input 0 with channels last, which is in `dy`.
Kernel channels_last_bias_gradient(KernelContext& c, StoredSlot dy);
std::optional<Kernel> row_major_conv(KernelContext& c);
std::optional<Kernel> row_major_fused_conv(KernelContext& c);
std::optional<Kernel> row_major_conv_grad(KernelContext& c);

// The kernels of a gradient of convolution: of the data, of the weights and of the bias.
struct ConvGradParts {
  Kernel data, weights, bias;
};
// All of ConvGrad, using those of its parts that are already given.
Kernel row_major_conv_grad(KernelContext& c, const Convolution& conv, ConvGradParts parts);

}  // namespace ortrain
