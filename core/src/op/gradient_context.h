// The context of a gradient rule: it names the values of the graph, and adds nodes that compute the gradients
// of the inputs from the gradients of the outputs.
#pragma once

#include <string>

#include "op/node_writer.h"

namespace ortrain {

class SubgraphContext;  // op/subgraph_context.h

class GradientContext : public NodeWriter {
 public:
  // The gradient of output o; empty when none reaches it.
  virtual Name dy(size_t o) const = 0;
  // Whether anything needs the gradient of input i. Rules omit gradients that are not needed.
  virtual bool needs(size_t i) const = 0;
  // Sets the gradient of input i.
  virtual void set(size_t i, const std::string& gradient) = 0;

  // Gives a missing optional output of the node itself a name, so that the rule can use it (the mask of
  // Dropout, the indices of MaxPool, the saved statistics of normalizations).
  virtual Name want_y(size_t o) = 0;
  // Replaces the node with another that has the same inputs and outputs (BatchNormalization →
  // BatchNormInternal).
  virtual void retype_node(std::string_view op_type, std::string_view domain) = 0;

  // The functions that only rules of operators with subgraphs need.
  virtual SubgraphContext& subgraphs() = 0;

  // Sums `gradient`, which has the shape of `from` (a value of the forward graph), over the axes along which
  // `value` was broadcast, so that it gets the shape of `value`.
  Name unbroadcast(Name gradient, Name from, Name value);
  Name unbroadcast(Name gradient, Name from, size_t i) { return unbroadcast(gradient, from, x(i)); }
};

}  // namespace ortrain
