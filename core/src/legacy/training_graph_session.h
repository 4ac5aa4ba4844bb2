// TrainingGraphSession: a session of a training graph, whose runs train.
//
// It is a forward session whose model has state (session/session_state.h): weights, moments and counts are
// initializers of the graph. The nodes of the optimizer come last, and a run that has begun to update
// weights is not interrupted. Statistics of normalizations are updated earlier, so a run that fails
// restores them from a copy.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "legacy/training_graph.h"
#include "session/inference_session.h"

namespace ortrain {

class TrainingGraphSession : public InferenceSession {
 public:
  // A run executes the whole graph, whatever is fetched, unless its options restrict it. If it fails, the
  // states are as before.
  TrainingGraphSession(SessionOptions options, TrainingGraph graph, ModelNotes notes = {});

  // Sorted by name, without accumulated gradients.
  const std::vector<GraphState>& states() const;
  // A copy, in row-major order. Throws kInvalidArgument if there is no state of that name.
  Tensor state(const std::string& name) const;
  // Type and number of elements must be those of the state.
  void set_state(const std::string& name, const Tensor& value);
  // All weights, or all gradients that were accumulated (roles "weight" and "gradient"), in one buffer, each
  // row-major, sorted by the names of the weights.
  void copy_states_to_buffer(const std::string& role, const Tensor& buffer) const;
  void copy_buffer_to_states(const std::string& role, const Tensor& buffer);
  // Empty if there is none.
  const std::string& loss_scale_input() const;

 private:
  class State;
  TrainingGraphSession(SessionOptions options, Model&& model, ModelNotes notes, std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace ortrain
