// Helpers of If, Loop and Scan.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "op/dynamic.h"
#include "op/subgraph_context.h"

namespace ortrain {

// The fault of the graph 'body' of a node, which must have `inputs` inputs and at least `outputs` outputs;
// empty if there is none.
std::string body_fault(const Node& node, size_t inputs, size_t outputs);

// The subgraph in an attribute of the node; throws if there is none.
const Graph& subgraph_of(const Node& node, const std::string& attribute);

// The type and shape that two values have in common.
ValueInfo either(const ValueInfo& a, const ValueInfo& b);

// The types and shapes, as far as they are known, of the values that a loop carries (`carried`) and of the
// outputs of its body (`results`). `inputs` are the inputs of the body, with the initial carried values from
// `first` on; the body returns the carried values from output `first_result` on.
struct CarriedTypes {
  std::vector<ValueInfo> carried, results;
};
CarriedTypes carried_types(TypeContext& c, const std::string& attribute, std::vector<ValueInfo> inputs,
                           size_t first, size_t count, size_t first_result);

// The shape of slices that are stacked along an axis.
Shape stacked(const Shape& slice, int64_t count, size_t axis = 0);

// Output o of a loop that stacks results of its body, if the body never ran: no elements, in the shape that
// is known in advance (0 for sizes that are not known).
void stack_nothing(DynamicContext& c, size_t o, const ValueInfo& slice, size_t axis);

// The layout of a loop node: the index of the first carried value among the inputs of the node and of the
// body, and among the outputs of the body; the number of carried values; and the sliced inputs that follow
// them.
struct LoopForm {
  size_t first_input = 0, first_result = 0, carried = 0, scanned = 0;
};

// The gradient of a loop (ops/control/loop_gradient.cpp).
void loop_gradient(GradientContext& g, const LoopForm& form);

// Adds zeros like a value, which may be a sequence; `info` is the known type and shape of the value.
std::string add_zeros(SubgraphContext& s, Graph& graph, const std::string& like, const ValueInfo& info);

// Adds an output to a subgraph that a rule builds: `value` under a name that the graph itself defines.
void add_subgraph_output(SubgraphContext& s, Graph& graph, const std::string& value, const ValueInfo& like);

}  // namespace ortrain
