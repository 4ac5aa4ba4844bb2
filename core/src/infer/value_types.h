// Element types and shapes of the values of a model, as far as they can be known before any input is given.
//
// What the model states is completed by the operators' own shape rules. These need numbers, so the rules are
// run twice, with different numbers for named and unknown dimensions. A dimension of a result is a number if
// both runs agree, a name if they give that name's two numbers, and a new name otherwise. Values computed
// from dimensions (the shape given to a Reshape) are traced by running the kernels on the numbers. Element
// types follow from those of the inputs (Operator::element_type), whether shapes are known or not.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// Clears the dimension names invented by ValueTypes, which mean nothing in a model.
void forget_made_up_names(ValueInfo& info);

class NumberedShapes;
struct Operator;

class ValueTypes {
 public:
  // Processes all nodes of the model, which must outlive this.
  explicit ValueTypes(const Model& model);
  // The same for a subgraph of a node in the graph of `outer`, when its inputs are these.
  ValueTypes(const Graph& subgraph, const std::vector<ValueInfo>& inputs, const ValueTypes& outer);

  // What is known about a value; an undefined type and no dims if nothing is. Dimension names that begin with
  // "?" are invented here: equal names mean equal dimensions, and they mean nothing outside.
  const ValueInfo& info(const std::string& value) const;
  // The value of a constant: an initializer or the output of a Constant node. Null if it is neither.
  const Tensor* constant(const std::string& value) const;
  // The same for a value that depends only on constants and on dimensions that are numbers; null if it is not
  // known.
  const Tensor* known(const std::string& value) const;

  // What a node of the model passes to a subgraph in an attribute, as far as its operator states it.
  std::vector<ValueInfo> subgraph_inputs(const Node& node, const std::string& attribute) const;

  // Nodes that cannot be run for any input, each with the reason; including those of subgraphs.
  const std::vector<std::string>& problems() const { return problems_; }

  // Processes a node that is not in the model yet, or whose type or outputs changed.
  void infer(const Node& node);
  // States that `value` has the type and shape of `other`.
  void set_like(const std::string& value, const std::string& other);
  // Adds a new constant.
  void set_constant(const std::string& value, const Tensor& tensor);

 private:
  friend class NumberedShapes;
  friend class NumberedRun;
  friend class NodeView;
  friend class NodeTypes;
  using Numbers = std::pair<int64_t, int64_t>;  // of a dimension, in the two runs
  struct NumberedDims {
    std::unordered_map<std::string, Numbers> numbers;
    std::map<Numbers, std::string> names;
  };

  void take_up(const Graph& graph);
  void state(const ValueInfo& stated);
  // Gives the dimensions of a tensor their numbers. The elements of a sequence have different dimensions, so
  // these get no names.
  void number_dims(ValueInfo& info);
  void number(Dim& dim);
  std::string name_of(const Numbers& numbers, const Dim* stated);
  std::optional<Shape> shape(const std::string& value, int run) const;
  // Whether the shape of a value is only what the model states, which has not been checked here.
  bool is_claim(const std::string& value) const;
  // Whether an error from the node's shape rule is certain to be right: all shapes that it reads are numbers
  // and not mere claims, none of its inputs is computed from invented numbers, and it is certain to run,
  // which nodes of subgraphs are not.
  bool is_exact(const Node& node) const;
  void problem(const std::string& text);
  void apply_type_rule(const Operator& op, const Node& node, bool tensors);
  void apply_shape_rule(const Operator& op, const Node& node, NumberedShapes& first, NumberedShapes& second);
  void run_on_known(const Operator& op, NumberedShapes& first, NumberedShapes& second);
  void record(const std::string& name, size_t o, const NumberedShapes& first, const NumberedShapes& second);
  // The graph around this, if a value of that name there is the one that nodes of this graph see.
  const ValueTypes* outside(const std::string& value) const {
    return own_.contains(value) ? nullptr : outer_;
  }
  const std::pair<Tensor, Tensor>* run_values(const std::string& value) const;
  // The value of an input in one of the runs, null if it is not known.
  const Tensor* run_value(const std::string& value, int run) const;

  const Model& model_;
  const ValueTypes* outer_ = nullptr;  // of the graph around this
  // The names of a subgraph's inputs and of its nodes' outputs, which hide values outside.
  std::unordered_set<std::string> own_;
  std::unordered_map<std::string, ValueInfo> info_;
  std::unordered_map<std::string, Tensor> constants_;
  std::unordered_map<std::string, std::pair<Tensor, Tensor>>
      run_values_;                          // depend on shapes, so there is one per run
  std::unordered_set<std::string> claims_;  // see is_claim
  std::vector<std::string> problems_;
  std::shared_ptr<NumberedDims> dims_ = std::make_shared<NumberedDims>();  // those of all graphs of a model
};

// All that is known about the outputs of a model's graph, which need not state it. With `name_all`, a
// dimension that has neither number nor name gets a name; equal dimensions get the same name.
std::vector<ValueInfo> inferred_outputs(const Model& model, bool name_all = false);

}  // namespace ortrain
