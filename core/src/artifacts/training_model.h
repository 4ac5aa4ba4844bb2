// The models built from a forward model: the training model, and the forward model with gradients.
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
// accumulation buffers, lazy_reset_grad. Outputs: the loss, the others, the gradients of request.inputs, the
// accumulated flags. If there is nothing to train, there are no buffers and flags. Throws with
// find_untrainable's text.
Model build_training_model(const Model& forward, const GradientRequest& request,
                           const std::vector<std::string>& parameters);

// The forward model with an output `<name>_grad` after its own for each of request.trainable, which here may
// be any value of the model. The loss may be empty if there are cotangents.
Model build_gradient_model(const Model& forward, const GradientRequest& request);

}  // namespace ortrain
