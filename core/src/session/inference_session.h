// InferenceSession: runs a model forward. The model may have state, which its runs update.
//
// A session has one stage per set of requested outputs, with the nodes that these need. Its runs take turns,
// because the stages share one block of memory. If the model has state, a run without restriction has all
// nodes that update the state; a run that is restricted to the path to its fetches has only the nodes on that
// path.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "runtime/value.h"
#include "session/options.h"

namespace ortrain {

class SessionState;  // session/session_state.h

class InferenceSession {
 public:
  // Throws kNotImplemented naming every operator that has no kernel.
  InferenceSession(SessionOptions options, Model model, ModelNotes notes = {});
  // A model with state. A run executes all nodes that update state, whatever is fetched, unless its options
  // restrict it.
  InferenceSession(SessionOptions options, Model model, ModelNotes notes,
                   std::shared_ptr<SessionState> state);
  virtual ~InferenceSession();

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  // Initializers that a run may replace: those that are inputs of the model as well.
  const std::vector<ValueInfo>& overridable_initializers() const;
  // The model, and the metadata of its file.
  const Model& model() const;
  const ModelNotes& notes() const;

  // Runs with the named inputs and returns the named outputs (all of them when `output_names` is empty).
  // Inputs that these outputs do not need may be omitted.
  std::vector<Value> run(const std::vector<std::string>& input_names, const std::vector<Value>& inputs,
                         const std::vector<std::string>& output_names, const RunOptions* options = nullptr);
  // Runs and stores the results in `outputs`, one for each name. An undefined tensor is replaced with the
  // result. A defined tensor is checked before anything is computed, and the result is written into its
  // memory; if it does not fit and its flag in `replaceable` is set, it is replaced.
  void run(const std::vector<std::string>& input_names, const std::vector<Value>& inputs,
           const std::vector<std::string>& output_names, std::vector<Value>& outputs,
           const RunOptions* options = nullptr, const std::vector<bool>& replaceable = {});

  // Options with a profile prefix start a recording when the session is created. Its start in nanoseconds
  // since 1970, 0 if nothing was recorded.
  uint64_t profiling_start() const;
  // Writes the recording to a file and returns its path; "" if nothing is being recorded.
  std::string end_profiling();

  // The element type of a value that a node produces. Throws kInvalidArgument if none does.
  DType node_output_type(const std::string& name) const;

 protected:
  // No run begins while this lock is held.
  std::unique_lock<std::mutex> lock() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain
