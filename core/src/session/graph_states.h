// The memory of what a training graph updates.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "artifacts/training_graph.h"
#include "session/options.h"
#include "state/checkpoint_state.h"

namespace ortrain {

// Takes the states out of a training graph, where they become inputs. States of one role are stored one after
// another, so what belongs to all gradients is one block; weights that only convolutions read, and what goes
// with them, are in the order that these prefer (session/parameter_layouts.h).
class GraphStates {
 public:
  GraphStates() = default;
  GraphStates(TrainingGraph& graph, const SessionOptions& options);

  const std::vector<GraphState>& visible() const { return visible_; }
  Tensor get(const std::string& name) const;
  void set(const std::string& name, const Tensor& value);

  // What a Stage binds.
  const std::unordered_map<std::string, Tensor>& tensors() const { return tensors_; }
  std::unordered_map<std::string, LayoutPtr> layouts() const;
  // What a run updates all or not at all: weights and the optimizer's state.
  std::set<std::string> updated_together() const;
  // Statistics of normalizations, which a run updates as it goes on, and accumulated gradients. keep() stores
  // the former; take_back() restores them and clears the latter, after a run that was interrupted.
  void keep();
  void take_back();
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }
  // The accumulated gradients as one block of bytes; undefined if the graph does not accumulate.
  const Tensor& gradient_block() const { return gradient_block_; }

 private:
  const Parameter& find(const std::string& name) const;

  std::vector<GraphState> visible_;
  std::map<std::string, Parameter> stored_;
  std::unordered_map<std::string, Tensor> tensors_;
  Tensor gradient_block_;
  Tensor statistics_block_, kept_statistics_;
};

}  // namespace ortrain
