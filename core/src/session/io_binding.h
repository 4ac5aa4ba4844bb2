// IoBinding: values that are bound to the inputs and outputs of a forward session before it runs.
#pragma once

#include <string>
#include <vector>

#include "session/inference_session.h"

namespace ortrain {

// Bound values share the memory of those given, so a run reads what that memory holds when it starts, and
// writes its outputs where they were bound.
class IoBinding {
 public:
  // Throws kInvalidArgument if the model of the session has no such input or output.
  void bind_input(const InferenceSession& session, const std::string& name, const Value& value);
  void bind_output(const InferenceSession& session, const std::string& name, const Tensor& tensor);
  // An output that the run allocates. Later runs write into the same memory if the output fits.
  void bind_output(const InferenceSession& session, const std::string& name);
  void clear_inputs();
  void clear_outputs();

  const std::vector<std::string>& output_names() const { return output_names_; }
  // Undefined tensors before the first run.
  const std::vector<Value>& outputs() const { return outputs_; }

  void run(InferenceSession& session, const RunOptions* options);

 private:
  void set_output(const InferenceSession& session, const std::string& name, Value value, bool replaceable);

  std::vector<std::string> input_names_, output_names_;
  std::vector<Value> inputs_, outputs_;
  std::vector<bool> replaceable_;  // the outputs that runs allocate
};

}  // namespace ortrain
