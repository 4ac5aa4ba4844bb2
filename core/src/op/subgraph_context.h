// The interface between the gradient builder and the gradient rules of operators with subgraphs (If, Loop,
// Scan).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// The gradient of a subgraph: a graph that computes the subgraph's values again and from them, and from the
// gradients of its outputs, those of what it reads.
struct SubgraphGradient {
  std::shared_ptr<Graph> forward;      // the subgraph, with what its gradient has made of its nodes
  std::shared_ptr<Graph> backward;     // without inputs and outputs: the rule states them
  std::vector<std::string> gradients;  // of each value asked for; empty where none reaches it
  // Values of the forward graph that do not come out the same when they are recomputed, and which the
  // backward graph reads: random numbers, and what updates the model's state.
  std::vector<ValueInfo> saved;
};

class SubgraphContext {
 public:
  virtual ~SubgraphContext() = default;

  // The values of the graphs around it that a subgraph of the node reads and whose gradient is needed.
  virtual std::vector<std::string> captured() const = 0;
  // States the gradient of such a value.
  virtual void set_captured(const std::string& value, const std::string& gradient) = 0;
  // What is known of a value of the graph that the node stands in.
  virtual ValueInfo info(const std::string& value) const = 0;
  // What is known of the outputs of a subgraph of the node.
  virtual std::vector<ValueInfo> output_types(const std::string& attribute,
                                              const std::vector<ValueInfo>& inputs) const = 0;

  // Differentiates a subgraph whose inputs are these with respect to `wanted`, which are inputs of it or
  // captured values. `seeds` are outputs by number, each with the name of its gradient.
  virtual SubgraphGradient differentiate(const std::string& attribute, const std::vector<ValueInfo>& inputs,
                                         const std::vector<std::string>& wanted,
                                         const std::vector<std::pair<size_t, std::string>>& seeds) = 0;

  // A sequence without elements, made before all nodes of the graph that the node stands in.
  virtual std::string empty_sequence(DType dtype) = 0;
  // A name that no value of the model has.
  virtual std::string unique(const std::string& base) = 0;
  // Puts another node in place of the node itself; what it gave before it gives as well.
  virtual void change(Node node) = 0;
};

// Adds a node to a subgraph that a rule builds, and returns the name of its output.
std::string add_node(SubgraphContext& s, Graph& graph, const std::string& op_type,
                     const std::vector<std::string>& inputs, const Attributes& attributes = {});
// Adds zeros with type and shape of a value that the subgraph makes or reads.
std::string add_zeros_like(SubgraphContext& s, Graph& graph, const std::string& like, DType dtype);
// The values that a graph reads and does not make.
std::vector<std::string> values_read(const Graph& graph);

}  // namespace ortrain
