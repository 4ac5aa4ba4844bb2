// The memory of the values that a training graph updates.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "legacy/training_graph.h"
#include "session/options.h"
#include "state/checkpoint_state.h"

namespace ortrain {

// Takes the states out of the model of a training graph, where they become inputs. States of one role are
// stored one after another, so all gradients are one block; weights that only convolutions read, and what
// goes with them, are in the order that these prefer (session/parameter_layouts.h).
class GraphStates {
 public:
  GraphStates() = default;
  // `training_mode`: an input that says whether dropouts drop; empty: none. It is bound, but no visible
  // state.
  GraphStates(const std::vector<GraphState>& states, const std::string& training_mode, Model& model,
              const SessionOptions& options);

  const std::vector<GraphState>& visible() const { return visible_; }
  Tensor get(const std::string& name) const;
  void set(const std::string& name, const Tensor& value);

  // What a Stage binds.
  const std::unordered_map<std::string, Tensor>& tensors() const { return tensors_; }
  std::unordered_map<std::string, LayoutPtr> layouts() const;
  // What a run updates all or not at all: weights and the optimizer's state.
  std::set<std::string> updated_together() const;
  // Statistics of normalizations, which every run updates, and accumulated gradients. keep() stores
  // the former; take_back() restores them and clears the latter, after a run that was interrupted.
  void keep();
  void take_back();

  // All weights, or all gradients, in one buffer, each row-major, sorted by the names of the weights. The
  // buffer has their type and as many elements as all have together.
  void copy_to_buffer(StateRole role, const Tensor& buffer) const;
  void copy_from_buffer(StateRole role, const Tensor& buffer);
  // The elements of that buffer that belong to a state, by name: the first, and how many.
  using Places = std::unordered_map<std::string, std::pair<size_t, size_t>>;
  Places places(StateRole role, const Tensor& buffer) const;
  // A state, at its place of the buffer.
  void copy_one(const std::string& name, const Tensor& buffer, size_t first) const;

 private:
  const Parameter& find(const std::string& name) const;
  // The states of a role that are not parts of others, in the order of buffers.
  const std::vector<std::string>& in_order(StateRole role) const;
  void check_buffer(StateRole role, const Tensor& buffer, const char* doing) const;
  void renew_copy(const std::string& weight);

  std::vector<GraphState> visible_;
  std::map<StateRole, std::vector<std::string>> order_;
  std::map<std::string, std::string> weight_of_;  // by weight or part of one
  std::map<std::string, std::string> copy_of_;    // the 16-bit copy, by weight
  std::map<std::string, Parameter> stored_;
  std::unordered_map<std::string, Tensor> tensors_;
  Tensor gradient_block_;
  Tensor statistics_block_, kept_statistics_;
};

}  // namespace ortrain
