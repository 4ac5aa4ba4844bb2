// Which positions of its inputs a node needs to compute one position of its output along an axis. If only a
// few positions are finally read, passes/hoist_selection.cpp makes the preceding nodes compute only these
// positions.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// One position along an axis of output 0 of a node. The ranks of all inputs are known.
struct PositionQuery {
  using Dims = std::vector<Dim>;
  const Node& node;
  int64_t opset;
  std::vector<const Dims*> inputs;  // null where left out
  const Dims& output;
  int64_t axis;   // of the output, counted from the front
  int64_t index;  // negative: counted from the end

  int64_t rank() const { return static_cast<int64_t>(output.size()); }
  int64_t rank(size_t i) const { return static_cast<int64_t>(inputs[i]->size()); }
  bool has_input(size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
};

struct InputPositions {
  std::vector<int64_t> axes;  // for each input, the axis along which only that position is needed;
                              // -1: the whole input is needed
  // Inputs to be replaced by these integers if the node computes only this position.
  std::vector<std::pair<size_t, std::vector<int64_t>>> integers = {};
};

// Returns the positions that the inputs need, or nothing if the node mixes positions.
using PositionRule = std::optional<InputPositions> (*)(const PositionQuery&);

// Common rules: each element of the output depends on the same element of the first input,
std::optional<InputPositions> elementwise_positions(const PositionQuery& q);
// on the same element of all inputs, which are broadcast,
std::optional<InputPositions> broadcast_positions(const PositionQuery& q);
// or on all elements of the first input with the same indices before attribute `axis` (`otherwise` if the
// node does not have the attribute).
std::optional<InputPositions> row_positions(const PositionQuery& q, int64_t otherwise);

// Records in `found` the needed position of input i, which is broadcast to the output. Returns false if that
// position is not known.
bool add_broadcast(const PositionQuery& q, size_t i, InputPositions& found);

}  // namespace ortrain
