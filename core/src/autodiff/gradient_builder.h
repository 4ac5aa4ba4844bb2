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
};

// Every reason why the model cannot be trained, one a line; empty when it can.
std::string find_untrainable(const Model& forward, const GradientRequest& request);

// The training model. Each of `parameters`, an initializer or an input of `forward`, becomes an input
// (weights leave the model); inputs: the user's, the parameters in the order of the model, the accumulation
// buffers, lazy_reset_grad; outputs: loss, others, accumulated flags. Throws with find_untrainable's text.
Model build_training_model(const Model& forward, const GradientRequest& request,
                           const std::vector<std::string>& parameters);

// The forward model with `<name>_grad` outputs for each of `inputs` beside its own: what gradient checks run.
Model build_gradient_model(const Model& forward, const GradientRequest& request);

}  // namespace ortrain
