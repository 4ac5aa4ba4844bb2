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

  // By name; the same memory in every run. The other two are those of ExecutorSettings.
  virtual const std::unordered_map<std::string, Tensor>& tensors() const = 0;
  virtual std::unordered_map<std::string, LayoutPtr> layouts() const = 0;
  virtual std::set<std::string> updated_together() const = 0;

  // A run calls these in this order, and holds the session's lock meanwhile. set() is called for each input:
  // it returns true for one that sets state, which does not reach the graph. prepare() returns what to call
  // when a state is complete, or nothing.
  virtual void begin(const RunOptions* options) = 0;
  virtual bool set(const std::string& input, const Value& value) = 0;
  virtual StateWatch prepare(Stage& stage, const RunOptions* options) = 0;
  // One of these follows. With `broke_off`, kernels have run, so states may be partly updated.
  virtual void completed() = 0;
  virtual void failed(bool broke_off) = 0;
};

}  // namespace ortrain
