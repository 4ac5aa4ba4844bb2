// What is asked of a gradient.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ortrain {

// The input of a training model that says whether gradients are overwritten or added to.
inline constexpr const char* kLazyReset = "lazy_reset_grad";

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

}  // namespace ortrain
