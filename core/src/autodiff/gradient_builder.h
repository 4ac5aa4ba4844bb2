// Builds the training graph of a forward graph: backward nodes, gradient accumulation, the contract of
// training models.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

struct GradientRequest {
  std::vector<std::string> trainable;              // parameters (initializers or inputs) that get a gradient
  std::string loss;                                // a scalar graph output
  std::vector<std::string> other_outputs;          // user outputs kept beside the loss, in order
  std::map<std::string, std::string> config = {};  // switches off passes that run first (passes/pass.h)
  // Values beside the loss at which gradients come in: of each, an input `<value>_grad` is added to the
  // model.
  std::vector<std::string> cotangents = {};
  bool any_loss_shape = false;  // else the loss is one number; of several, the sum is differentiated
  // Inputs of the model whose gradient, that of the step alone, is an output `<input>_grad` of the training
  // model.
  std::vector<std::string> inputs = {};
};

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
