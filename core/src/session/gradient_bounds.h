// GradientBounds: bounds of the magnitude of gradients, which spare a session reading them.
//
// The optimizer step must not apply a gradient that is NaN or infinite. Train steps compute bounds of the
// gradients for which that is cheap (passes/bound_gradients.cpp); a gradient whose bound is a number of its
// type is finite. All others are read before the step changes anything.
//
// Reading all gradients took up to a tenth of a step where the batch is small and a step mostly moves
// memory. The bounds are states of the training model: they are overwritten and accumulated with the
// gradients, and dropped when a program writes gradients. A bound only ever saves reading a gradient. A
// bound that overflows is ignored, so there are no false alarms.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "graph/graph.h"
#include "state/checkpoint_state.h"

namespace ortrain {

class GradientBounds {
 public:
  explicit GradientBounds(const CheckpointState& state);

  // Adds the bounds to the inputs of a training model, and to its states.
  void add_inputs(Graph& graph) const;
  void add_states(std::unordered_map<std::string, Tensor>& states) const;

  // To be called before gradients are accumulated or applied: gradients that were written from outside since
  // the last call have no bound.
  void update(const CheckpointState& state);

  // Whether the gradient of the parameter with this index in the state is known to be finite.
  bool is_finite(size_t parameter) const;

 private:
  void forget();

  std::vector<std::string> names_;  // of the inputs; empty for a parameter that has no bound
  std::vector<double> limits_;      // the largest number of the gradient's type
  Tensor bounds_;                   // one for each parameter; infinite: unknown
  uint64_t gradients_version_;      // of the gradients that the bounds are about
};

}  // namespace ortrain
