// Shared by If, Loop and Scan.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "op/dynamic.h"
#include "op/subgraph_context.h"

namespace ortrain {

// The subgraph that is the attribute of the node; throws where there is none.
const Graph& subgraph_of(const Node& node, const std::string& attribute);

// What is known of a value that is one thing or the other.
ValueInfo either(const ValueInfo& a, const ValueInfo& b);

// What is known of the values that a loop carries, and of the other outputs of its body, when the carried
// ones begin as `carried`. `inputs` are those of the body, its carried ones from `first` on; `results` are
// the body's outputs, the carried ones from `first_result` on.
struct CarriedTypes {
  std::vector<ValueInfo> carried, results;
};
CarriedTypes carried_types(TypeContext& c, const std::string& attribute, std::vector<ValueInfo> inputs,
                           size_t first, size_t count, size_t first_result);

// The shape of slices that are stacked along an axis.
Shape stacked(const Shape& slice, int64_t count, size_t axis = 0);

// Output o of a loop that stacks what its body gives, when the body never ran: nothing, in the shape that can
// be told beforehand (0 where a size cannot).
void stack_nothing(DynamicContext& c, size_t o, const ValueInfo& slice, size_t axis);

// How a loop lies in its node: where the values that it carries begin among the inputs of the node and of the
// body, and among the outputs of the body; how many there are; and the inputs that it slices after them.
struct LoopForm {
  size_t first_input = 0, first_result = 0, carried = 0, scanned = 0;
};

// The gradient of a loop (defined with Scan, which it is).
void loop_gradient(GradientContext& g, const LoopForm& form);

// Adds zeros like a value of which `info` is known, which may be a sequence.
std::string add_zeros(SubgraphContext& s, Graph& graph, const std::string& like, const ValueInfo& info);

// Adds an output to a subgraph that a rule builds: `value` under a name that the graph itself makes.
void add_subgraph_output(SubgraphContext& s, Graph& graph, const std::string& value, const ValueInfo& like);

}  // namespace ortrain
