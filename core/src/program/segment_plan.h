// Planning a segment: which nodes of a graph can be compiled into one Program with what is known now, and
// what has to wait until that Program has run.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"
#include "runtime/tensor.h"

namespace ortrain {

using Tensors = std::unordered_map<std::string, Tensor>;

struct SegmentRequest {
  const Graph* graph = nullptr;  // what it states of its values, and its initializers
  const std::map<std::string, int64_t>* opsets = nullptr;
  const std::vector<Node>* nodes = nullptr;       // those that have not run, in order
  Tensors values;                                 // known now, but others in the next run
  std::unordered_set<std::string> others;         // known now, but no tensors
  const Tensors* states = nullptr;                // model state: fixed memory whose contents change
  Tensors constants;                              // the same in every run that comes here
  std::vector<std::string> outputs;               // of the graph, those not made yet
  std::unordered_map<std::string, Shape> shapes;  // of values that are known no more
  // Values that some kernel wants to know when it is made, though no shape depends on them.
  std::unordered_set<std::string> wanted;
  // First outputs of nodes that are to be left for the next segment.
  std::unordered_set<std::string> later;
};

struct SegmentPlan {
  std::vector<Node> nodes;                  // of the Program
  std::vector<std::string> inputs;          // of the Program, among the values
  std::vector<std::string> outputs;         // of the Program: what later nodes read, then the graph's own
  std::vector<std::string> made;            // of the request's outputs, those that the Program gives
  std::vector<std::string> shape_deciders;  // values that became constants: their contents belong to the key
  Tensors constants;          // of the request, of shape_deciders, and all that follows from them
  std::vector<Node> dynamic;  // to be run behind the Program, one after another
  std::vector<Node> rest;     // what comes after these
  std::unordered_map<std::string, Shape> shapes;  // of all values known by the end of the Program
};

// The nodes of a segment's Program that need not be compiled again when another run comes to the same point:
// all that they read and make has the shape, and where it is constant the value, that it had in the plan of
// another run, and no other node of the Program depends on them. By their first outputs.
std::unordered_set<std::string> unchanged_nodes(const SegmentPlan& plan, const SegmentPlan& other,
                                                const Tensors& states);

// Throws what shape rules throw. An `If` whose condition is a constant is replaced by its branch.
SegmentPlan plan_segment(const SegmentRequest& request);

}  // namespace ortrain
