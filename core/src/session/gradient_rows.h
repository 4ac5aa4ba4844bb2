// GradientRows: the rows of gradients that may be other than zero, for tables of which a batch reads few
// rows.
//
// The gradient of an embedding is kept dense, so that everything that reads gradients may ignore this. Train
// steps that compute such a gradient row by row (passes/accumulate_rows.cpp) keep the set of its rows, and
// clear those rows alone when gradients are reset. Optimizer steps skip what the rule leaves unchanged. A
// gradient that is computed in another way, or that a program writes, has a set of all rows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "runtime/row_set.h"
#include "state/checkpoint_state.h"

namespace ortrain {

class GradientRows {
 public:
  explicit GradientRows(const CheckpointState& state);

  // Adds the sets to the inputs of a training model, and to its states.
  void add_inputs(Graph& graph) const;
  void add_states(std::unordered_map<std::string, Tensor>& states) const;

  // To be called before gradients are accumulated or read: gradients that were written from outside since
  // the last call may have any rows.
  void update(const CheckpointState& state);

  // The rows of the gradient of the parameter with this index in the state; nothing if every row may differ
  // from zero.
  std::optional<RowSet> of(size_t parameter) const;

 private:
  struct Table {
    std::string name;  // of the input; empty: this parameter has no set
    int64_t rows = 0;
    Tensor set = {};
  };

  std::vector<Table> tables_;  // by the index of the parameter in the state
  uint64_t gradients_version_;
};

}  // namespace ortrain
