// State of a session: values of its model that its nodes update, kept from run to run.
//
// A session of a model with state (session/inference_session.h) binds the state in every run as further
// inputs of the graph, and notifies its owner before and after the run.
#pragma once

#include <set>
#include <string>
#include <unordered_map>

#include "graph/graph.h"
#include "program/executor.h"
#include "runtime/value.h"
#include "session/options.h"
#include "session/stage.h"

namespace ortrain {

class SessionState {
 public:
  virtual ~SessionState() = default;

  // What errors call a model that has this state ("training graph").
  virtual std::string model_name() const = 0;
  // Takes the initializers that are state out of the model, which gets inputs of these names. Called once,
  // when the session is created.
  virtual void take_from(Model& model, const SessionOptions& options) = 0;

  // The states by name; their memory is the same in every run. layouts() and updated_together() are passed on
  // as the members of ExecutorSettings with these names.
  virtual const std::unordered_map<std::string, Tensor>& tensors() const = 0;
  virtual std::unordered_map<std::string, LayoutPtr> layouts() const = 0;
  virtual std::set<std::string> updated_together() const = 0;

  // A run holds the session's lock and calls these functions in this order. set() is called for each input.
  // It returns true if the input sets a state; such an input is not passed to the graph. prepare() returns a
  // function that the run calls when a state is complete, or nothing.
  virtual void begin(const RunOptions* options) = 0;
  virtual bool set(const std::string& input, const Value& value) = 0;
  virtual StateWatch prepare(Stage& stage, const RunOptions* options) = 0;
  // At its end a run calls one of these. With `broke_off`, kernels have run, so states may be partly updated.
  virtual void completed() = 0;
  virtual void failed(bool broke_off) = 0;
};

}  // namespace ortrain
