// Optimizer: applies the optimizer that an optimizer model describes to the parameters, in one pass over the
// state's arenas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/graph.h"
#include "ops/optimizer/optimizer_update.h"
#include "state/checkpoint_state.h"

namespace ortrain {

// Reads the model (nodes com.microsoft AdamWOptimizer or SGDOptimizerV2, with or without InplaceClipGradNorm
// before) and applies it.
class Optimizer {
 public:
  // Throws kNotImplemented naming every node that is not one of those, kInvalidGraph when there is no
  // optimizer.
  explicit Optimizer(const Model& model);

  // How many moments a parameter has: two with AdamW, none with SGD.
  int moment_count() const { return kind_ == Kind::kAdamW ? 2 : 0; }

  // The operator of the model that it implements.
  const char* type() const { return kind_ == Kind::kAdamW ? "AdamWOptimizer" : "SGDOptimizerV2"; }

  // One update of all trainable parameters with their gradients. `step` counts from 1. With `finite_only`,
  // changes nothing and returns false if a gradient is a NaN or infinite.
  bool apply(CheckpointState& state, float learning_rate, int64_t step, bool finite_only) const;

 private:
  enum class Kind { kAdamW, kSgd };
  Kind kind_ = Kind::kAdamW;
  AdamWAttributes adamw_;
  std::optional<float> max_norm_;
};

// The trainable parameters with gradients that are NaN or infinite, for an error message, and how many of
// each.
std::string nonfinite_gradients(const CheckpointState& state);

// The Euclidean norm of the gradients of all trainable parameters together.
double gradient_norm(const CheckpointState& state);

}  // namespace ortrain
