// The models that are built from a forward model: the training model, and the forward model with gradients.
#pragma once

#include <string>
#include <vector>

#include "autodiff/gradient_request.h"
#include "graph/graph.h"

namespace ortrain {

// Every reason why the model cannot be trained, one a line; empty when it can.
std::string find_untrainable(const Model& forward, const GradientRequest& request);

// The trainable parameters that no gradient of the loss reaches.
std::vector<std::string> find_unreached(const Model& forward, const GradientRequest& request);

// The training model. Each of `parameters`, an initializer or an input of `forward`, becomes an input
// (weights leave the model); inputs: the user's, the parameters in the order of the model, the accumulation
// buffers, lazy_reset_grad; outputs: loss, others, gradients of request.inputs, accumulated flags. With
// nothing to train there are no buffers and flags. Throws with find_untrainable's text.
Model build_training_model(const Model& forward, const GradientRequest& request,
                           const std::vector<std::string>& parameters);

// The forward model with outputs `<name>_grad` behind its own, for each of request.trainable, which may be
// any value of the model here. The loss may be empty where there are cotangents.
Model build_gradient_model(const Model& forward, const GradientRequest& request);

}  // namespace ortrain
