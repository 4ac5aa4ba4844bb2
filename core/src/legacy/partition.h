// How a node is divided among processes, each of which computes a part of it (legacy/horizontal_split.h).
// partition_rules.cpp has the rules of operators. An operator without a rule, but whose positions are
// independent along an axis (op/positions.h), is divided along that axis.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "op/operator_facts.h"

namespace ortrain {

struct Operator;

// The part of a value that a process has: an equal share of each section of an axis. The sections follow each
// other, as often as `repeats` says; -1: a number that depends on the input.
struct Partition {
  int64_t axis = 0;
  std::vector<int64_t> sections;
  int64_t repeats = 1;

  int64_t length() const;  // of the sections together
  bool operator==(const Partition&) const = default;
};
// The same partition with as few sections as possible.
Partition simplified(Partition partition);

// An output of a node, and the partition that is wanted of it. Dimensions are those of the whole value; an
// input that is left out has none.
struct PartitionQuery {
  using Dims = std::vector<Dim>;
  const Node& node;
  int64_t opset;
  std::vector<const Dims*> inputs;
  std::vector<const Tensor*> constants;  // the values of inputs, null where they are not known
  std::vector<const Dims*> outputs;
  size_t output;
  Partition wanted;
  int64_t processes;

  const Dims& dims() const { return *outputs[output]; }
  int64_t rank() const { return static_cast<int64_t>(dims().size()); }
};

// In a list of integers that replaces an input: the integer of the input at that place.
inline constexpr int64_t kAsGiven = INT64_MIN;

struct NodePartition {
  std::vector<std::optional<Partition>> inputs;   // nothing: the node needs all of the input
  std::vector<std::optional<Partition>> outputs;  // nothing: left out
  std::vector<std::pair<size_t, std::vector<int64_t>>> integers = {};  // inputs to be replaced by these
  Attributes attributes = {};                                          // to be replaced
};

// Nothing if an equal share of the output cannot be computed from shares and wholes of the inputs.
using PartitionRule = std::optional<NodePartition> (*)(const PartitionQuery&);

// A node that is a sum over an axis of its inputs: with a share of that axis it computes a part of the sum.
struct SummedAxes {
  int64_t left = 0, right = 0;       // of inputs 0 and 1
  std::optional<size_t> added = {};  // an input that is added to the sum
};
using SumRule = std::optional<SummedAxes> (*)(const Node& node, int64_t left_rank, int64_t right_rank);

// Where the output of a node that reads nothing but dimensions has that of an axis of its input, which has so
// many; nothing if it is not there. `length` is that of the output.
struct DimPlace {
  std::optional<size_t> place;
  size_t length = 0;
};
using DimRule = DimPlace (*)(const Node& node, int64_t axis, int64_t rank);

struct PartitionRules {
  PartitionRule output = nullptr;
  SumRule sum = nullptr;
  DimRule dims = nullptr;
  bool adds_up_ranks = false;  // it is the same in all processes, and waits for them
};

// That of the operator's rule, or what follows from its positions.
std::optional<NodePartition> partition_of(const PartitionQuery& query);
std::optional<SummedAxes> summed_axes(const Node& node, int64_t left_rank, int64_t right_rank);
// Nothing if the node reads elements.
std::optional<DimPlace> place_of_dim(const Node& node, int64_t axis, int64_t rank);
bool adds_up_ranks(const Node& node);

// For rules: input 0 is divided along that axis, others are needed whole, and outputs are divided as output
// 0.
NodePartition partition_first(const PartitionQuery& query, int64_t axis);
// What follows from the operator's positions alone.
std::optional<NodePartition> partition_positions(const PartitionQuery& query);

}  // namespace ortrain
