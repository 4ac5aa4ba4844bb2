// The interface between the gradient builder and the gradient rules of operators with subgraphs (If, Loop,
// Scan).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "op/node_writer.h"

namespace ortrain {

// The gradient of a subgraph: a graph that recomputes the subgraph's values and, from these and the gradients
// of the subgraph's outputs, computes the gradients of the values that the subgraph reads.
struct SubgraphGradient {
  std::shared_ptr<Graph> forward;      // the subgraph, with its nodes as changed by its gradient
  std::shared_ptr<Graph> backward;     // without inputs and outputs: the rule adds them
  std::vector<std::string> gradients;  // for each requested value; empty if none reaches it
  // Values of the forward graph that the backward graph reads but that would differ if recomputed: random
  // numbers, and results of nodes that update the model's state.
  std::vector<ValueInfo> saved;
};

class SubgraphContext {
 public:
  virtual ~SubgraphContext() = default;

  // The values of the enclosing graphs that a subgraph of the node reads and whose gradient is needed.
  virtual std::vector<std::string> captured() const = 0;
  // Sets the gradient of such a value.
  virtual void set_captured(const std::string& value, const std::string& gradient) = 0;
  // The type and shape, as far as they are known, of a value of the graph that contains the node.
  virtual ValueInfo info(const std::string& value) const = 0;
  // The types and shapes, as far as they are known, of the outputs of a subgraph of the node.
  virtual std::vector<ValueInfo> output_types(const std::string& attribute,
                                              const std::vector<ValueInfo>& inputs) const = 0;

  // Differentiates a subgraph with these inputs with respect to `wanted`, which are inputs of the subgraph or
  // captured values. `seeds` are output indices, each with the name of that output's gradient.
  virtual SubgraphGradient differentiate(const std::string& attribute, const std::vector<ValueInfo>& inputs,
                                         const std::vector<std::string>& wanted,
                                         const std::vector<std::pair<size_t, std::string>>& seeds) = 0;

  // An empty sequence, produced before all nodes of the graph that contains the node.
  virtual std::string empty_sequence(DType dtype) = 0;
  // A name that no value of the model uses.
  virtual std::string unique(const std::string& base) = 0;
  // Replaces the node itself with another node, which produces at least the outputs of the old node.
  virtual void change(Node node) = 0;
};

// Adds a node to a graph that a rule builds, under a new name, and returns the names of its outputs. `unique`
// returns a name that no value of the model uses.
std::vector<std::string> add_node(const std::function<std::string(const std::string& base)>& unique,
                                  Graph& graph, const std::string& op_type,
                                  const std::vector<std::string>& inputs, size_t output_count,
                                  NewAttributes attributes);
// Adds a node with one output to a subgraph, and returns the name of its output.
std::string add_node(SubgraphContext& s, Graph& graph, const std::string& op_type,
                     const std::vector<std::string>& inputs, NewAttributes attributes = {});
// Adds zeros with the type and shape of a value that the subgraph produces or reads.
std::string add_zeros_like(SubgraphContext& s, Graph& graph, const std::string& like, DType dtype);
// The values that a graph reads but does not produce.
std::vector<std::string> values_read(const Graph& graph);

}  // namespace ortrain
