// Which positions of its inputs a node needs to compute one position of its output along an axis. Where few
// positions are read in the end, passes/hoist_selection.cpp has the nodes before compute these alone.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// One position along an axis of output 0 of a node all of whose inputs have a known rank.
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
  std::vector<int64_t> axes;  // of each input the axis along which it needs that position; -1: all of it
  // Inputs that become these integers when the node computes the position alone.
  std::vector<std::pair<size_t, std::vector<int64_t>>> integers = {};
};

// Nothing where the node mixes positions.
using PositionRule = std::optional<InputPositions> (*)(const PositionQuery&);

// The rules that operators share: each element of the output depends on the same one of the first input,
std::optional<InputPositions> elementwise_positions(const PositionQuery& q);
// on the same one of all inputs, which are broadcast,
std::optional<InputPositions> broadcast_positions(const PositionQuery& q);
// or on those of the first input from attribute `axis` on, `otherwise` where the node does not have it.
std::optional<InputPositions> row_positions(const PositionQuery& q, int64_t otherwise);

// Adds to `found` that the position is needed of input i, which is broadcast to the output. False where that
// cannot be told.
bool add_broadcast(const PositionQuery& q, size_t i, InputPositions& found);

}  // namespace ortrain
