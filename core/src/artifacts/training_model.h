// The models built from a forward model: the training model, and the forward model with gradients.
//
// How a training model is built:
// 1. Operators without a gradient rule are decomposed (op/decomposition.h); that includes gradient
//    operators, so second derivatives are possible. The eval model keeps fused operators, so that the
//    exported model looks like the original.
// 2. The passes of the artifact phase run. BatchNormalization in training mode becomes BatchNormInternal,
//    which keeps the batch statistics for the backward pass.
// 3. The gradient builder walks back from the loss to the trainable parameters
//    (autodiff/gradient_builder.h).
// 4. The gradient of each parameter goes through InPlaceAccumulatorV2 into its accumulation buffer.
// 5. The weights become inputs of the model.
// All reasons that prevent training are collected, and the model is rejected with the complete list.
#pragma once

#include <string>
#include <vector>

#include "autodiff/gradient_request.h"
#include "graph/graph.h"

namespace ortrain {

// Every reason why the model cannot be trained, one per line; empty if it can.
std::string find_untrainable(const Model& forward, const GradientRequest& request);

// The trainable parameters that no gradient of the loss reaches.
std::vector<std::string> find_unreached(const Model& forward, const GradientRequest& request);

// The training model. Each of `parameters`, an initializer or an input of `forward`, becomes an input (the
// weights are removed from the model). Inputs: the user's, the parameters in the order of the model, the
// accumulation buffers, lazy_reset_grad. Outputs: the loss, request.other_outputs, the gradients of
// request.inputs, and for each parameter the flag that its gradient was accumulated. If there is nothing to
// train, there are no buffers and flags. If the model cannot be trained, throws an error with the text of
// find_untrainable().
Model build_training_model(const Model& forward, const GradientRequest& request,
                           const std::vector<std::string>& parameters);

// The forward model with one more output `<name>_grad`, after its other outputs, for each name in
// request.trainable. Here these may be names of any values of the model. The loss may be empty if there are
// cotangents.
Model build_gradient_model(const Model& forward, const GradientRequest& request);

}  // namespace ortrain
