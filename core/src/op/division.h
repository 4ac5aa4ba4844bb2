// How a node is divided among processes, each of which computes a part of it (artifacts/horizontal_split.h).
// An operator's file declares its rule beside the operator. One that has none, but whose positions are
// independent along an axis (op/positions.h), is divided along that axis.
//
//     ORTRAIN_OPERATOR_FACT(DivisionRules, "", "Reshape", {.output = reshape_division});
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "op/operator_facts.h"

namespace ortrain {

struct Operator;

// What a process has of a value: an equal share of each section of an axis. The sections follow each other,
// as often as `repeats` says; -1: a number that depends on the input.
struct Division {
  int64_t axis = 0;
  std::vector<int64_t> sections;
  int64_t repeats = 1;

  int64_t length() const;  // of the sections together
  bool operator==(const Division&) const = default;
};
// The same division with as few sections as possible.
Division simplified(Division division);

// An output of a node that is wanted so. Dimensions are those of the whole; an input that is left out has
// none.
struct DivisionQuery {
  using Dims = std::vector<Dim>;
  const Node& node;
  int64_t opset;
  std::vector<const Dims*> inputs;
  std::vector<const Tensor*> constants;  // the values of inputs, null where they are not known
  std::vector<const Dims*> outputs;
  size_t output;
  Division wanted;
  int64_t processes;

  const Dims& dims() const { return *outputs[output]; }
  int64_t rank() const { return static_cast<int64_t>(dims().size()); }
};

// In a list of integers that replaces an input: the integer of the input at that place.
inline constexpr int64_t kAsGiven = INT64_MIN;

struct NodeDivision {
  std::vector<std::optional<Division>> inputs;   // nothing: the node needs all of the input
  std::vector<std::optional<Division>> outputs;  // nothing: left out
  std::vector<std::pair<size_t, std::vector<int64_t>>> integers = {};  // inputs to be replaced by these
  Attributes attributes = {};                                          // to be replaced
};

// Nothing if an equal share of the output cannot be computed from shares and wholes of the inputs.
using DivisionRule = std::optional<NodeDivision> (*)(const DivisionQuery&);

// A node that is a sum over an axis of its inputs: with a share of that axis it computes a part of the sum.
struct SummedAxes {
  int64_t left = 0, right = 0;       // of inputs 0 and 1
  std::optional<size_t> added = {};  // an input that is added to the sum
};
using SumRule = std::optional<SummedAxes> (*)(const Node& node, int64_t left_rank, int64_t right_rank);

// Where the output of a node that reads nothing but dimensions has that of an axis of its input, which has so
// many; nothing if it is not there. `length` is that of the output.
struct ExtentPlace {
  std::optional<size_t> place;
  size_t length = 0;
};
using ExtentRule = ExtentPlace (*)(const Node& node, int64_t axis, int64_t rank);

struct DivisionRules {
  DivisionRule output = nullptr;
  SumRule sum = nullptr;
  ExtentRule extents = nullptr;
  bool adds_up_ranks = false;  // it is the same in all processes, and waits for them
};

// That of the operator's rule, or what follows from its positions.
std::optional<NodeDivision> divide(const DivisionQuery& query);
std::optional<SummedAxes> summed_axes(const Node& node, int64_t left_rank, int64_t right_rank);
// Nothing if the node reads elements.
std::optional<ExtentPlace> place_of_extent(const Node& node, int64_t axis, int64_t rank);
bool adds_up_ranks(const Node& node);

// For rules: input 0 is divided along that axis, others are needed whole, and outputs are divided as output
// 0.
NodeDivision divide_first(const DivisionQuery& query, int64_t axis);
// What follows from the operator's positions alone.
std::optional<NodeDivision> divide_positions(const DivisionQuery& query);

}  // namespace ortrain
