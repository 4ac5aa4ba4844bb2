// InferenceSession: runs a model forward, or a training graph, whose runs update the session's state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "artifacts/training_graph.h"
#include "graph/graph.h"
#include "runtime/value.h"
#include "session/options.h"

namespace ortrain {

class InferenceSession {
 public:
  // Throws kNotImplemented naming every operator that has no kernel.
  InferenceSession(SessionOptions options, Model model, ModelNotes notes = {});
  // A run executes the whole graph, whatever is fetched, unless its options restrict it.
  InferenceSession(SessionOptions options, TrainingGraph graph, ModelNotes notes = {});
  ~InferenceSession();

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  // Initializers that a run may replace: those that are inputs of the model as well.
  const std::vector<ValueInfo>& overridable_initializers() const;
  // The model and what its file states besides, for what it says about itself.
  const Model& model() const;
  const ModelNotes& notes() const;

  // Runs with the named inputs and returns the named outputs (all of them when `output_names` is empty).
  // Inputs that these outputs do not need may be omitted.
  std::vector<Value> run(const std::vector<std::string>& input_names, const std::vector<Value>& inputs,
                         const std::vector<std::string>& output_names, const RunOptions* options = nullptr);
  // The same into `outputs`, one for each name: an undefined tensor is replaced with the result; a defined
  // one is checked before anything is computed, and then written into. One whose flag in `replaceable` is set
  // is replaced too where it does not fit.
  void run(const std::vector<std::string>& input_names, const std::vector<Value>& inputs,
           const std::vector<std::string>& output_names, std::vector<Value>& outputs,
           const RunOptions* options = nullptr, const std::vector<bool>& replaceable = {});

  // Options with a profile prefix start a recording when the session is created. Its start on a monotonic
  // clock in nanoseconds, 0 if nothing was recorded.
  uint64_t profiling_start() const;
  // Writes the recording to a file and returns its path; "" if nothing is being recorded.
  std::string end_profiling();

  // The state of a training graph, sorted by name, without accumulated gradients.
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
  // The element type of a value that a node produces. Throws kInvalidArgument if none does.
  DType node_output_type(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain
