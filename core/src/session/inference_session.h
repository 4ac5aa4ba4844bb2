// InferenceSession: runs a model forward.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "runtime/value.h"
#include "session/options.h"

namespace ortrain {

class InferenceSession {
 public:
  // Throws kNotImplemented naming every operator that has no kernel.
  InferenceSession(SessionOptions options, Model model);
  ~InferenceSession();

  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;

  // Runs with the named inputs and returns the named outputs (all of them when `output_names` is empty).
  // Inputs that these outputs do not need may be omitted.
  std::vector<Value> run(const std::vector<std::string>& input_names, const std::vector<Value>& inputs,
                         const std::vector<std::string>& output_names, const RunOptions* options = nullptr);
  // The same into `outputs`, one for each name: an undefined tensor is replaced with the result; a defined
  // one is checked before anything is computed, and then written into.
  void run(const std::vector<std::string>& input_names, const std::vector<Value>& inputs,
           const std::vector<std::string>& output_names, std::vector<Value>& outputs,
           const RunOptions* options = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain
