// Helpers of the gradient rules of convolution and transposed convolution.
#pragma once

#include <string>

#include "op/operator.h"

namespace ortrain {

// The gradient rule of ConvGrad and ConvTransposeGrad, whose forward operator is `type`. The forward operator
// is linear in the data and in the weights, so the gradient of its gradient consists of `type` and the
// gradient operator.
void product_grad_gradient(GradientContext& g, const std::string& type, const std::string& grad);

}  // namespace ortrain
