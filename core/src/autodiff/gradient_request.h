// A request for gradients.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace ortrain {

// The input of a training model that says whether gradients are overwritten or accumulated.
inline constexpr const char* kLazyReset = "lazy_reset_grad";

struct GradientRequest {
  std::vector<std::string> trainable;              // parameters (initializers or inputs) that get a gradient
  std::string loss;                                // a scalar graph output
  std::vector<std::string> other_outputs;          // user outputs kept besides the loss, in order
  std::map<std::string, std::string> config = {};  // switches off passes that run first (passes/pass.h)
  // Values besides the loss whose gradients are given: for each, an input `<value>_grad` is added to the
  // model.
  std::vector<std::string> cotangents = {};
  bool any_loss_shape =
      false;  // otherwise the loss is a single element; if it has several, their sum is differentiated
  // Inputs of the model whose gradient becomes an output `<input>_grad` of the training model. These
  // gradients are not accumulated.
  std::vector<std::string> inputs = {};
};

}  // namespace ortrain
