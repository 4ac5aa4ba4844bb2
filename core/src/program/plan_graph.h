// A graph as plans see it: values are identified by numbers, and what each node reads is determined once.
// Thousands of nodes are examined for each segment, so examining one must not look up names.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "op/operator.h"
#include "runtime/tensor.h"

namespace ortrain {

using Tensors = std::unordered_map<std::string, Tensor>;

struct PlanNode {
  const Node* node = nullptr;
  const Operator* op = nullptr;  // null if it is not known
  bool has_subgraph = false;
  std::vector<int> inputs, outputs;          // -1 where one is left out
  std::vector<int> read;                     // the inputs, then what subgraphs read from the enclosing graphs
  std::vector<std::pair<int, bool>> states;  // model state that it reads or, if true, updates
};

// Grows during planning: the nodes of a branch are added when the condition of its If is known.
class PlanGraph {
 public:
  // `graph` must outlive this. The names of `states` are those of model state in every run.
  PlanGraph(const Graph& graph, const std::map<std::string, int64_t>& opsets, const Tensors& states);

  const Graph& graph() const { return graph_; }
  const std::map<std::string, int64_t>& opsets() const { return opsets_; }
  int64_t opset(const std::string& domain) const;
  const std::vector<const PlanNode*>& nodes() const { return nodes_; }

  // The number of a value; a new one if it has none yet.
  int number(const std::string& value);
  // The number of a value; -1 if it has none.
  int find(const std::string& value) const;
  const std::string& name(int value) const { return *names_[static_cast<size_t>(value)]; }
  size_t value_count() const { return names_.size(); }
  bool is_state(int value) const { return value < state_count_; }

  // A node of the graph or of one of its subgraphs.
  const PlanNode& node(const Node& node);
  // A node that copies value `from` to value `to`; `like` is the node it is derived from.
  const PlanNode& identity(const std::string& from, const std::string& to, const Node& like);

 private:
  const Graph& graph_;
  const std::map<std::string, int64_t>& opsets_;
  std::unordered_map<std::string, int> numbers_;
  std::vector<const std::string*> names_;  // keys of numbers_
  int state_count_ = 0;
  std::unordered_map<const Node*, PlanNode> planned_;
  std::vector<const PlanNode*> nodes_;
  std::deque<Node> own_;
  std::map<std::pair<int, int>, const PlanNode*> identities_;
};

}  // namespace ortrain
