// Element types and shapes of the values of a model, as far as they can be known before any input is.
//
// What the model states is completed by the operators' own shape rules. They want numbers, so named and
// unknown extents are given numbers twice, and what comes out tells what each extent of a result is: a number
// where both runs agree, a name where they give that name's two numbers, and a new name otherwise. What is
// computed from extents (the shape that a Reshape is given) is followed by running the kernels on the
// numbers. Element types follow from those of the inputs (Operator::element_type), whether shapes are known
// or not.
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

// Clears the names of dimensions that ValueTypes made up, which mean nothing in a model.
void forget_made_up_names(ValueInfo& info);

class ValueTypes {
 public:
  // Goes over all nodes of the model, which must outlive this.
  explicit ValueTypes(const Model& model);
  // The same for a subgraph of a node in the graph of `outer`, when its inputs are these.
  ValueTypes(const Graph& subgraph, const std::vector<ValueInfo>& inputs, const ValueTypes& outer);

  // What is known of a value; an undefined type and no dims where it is nothing. Names of extents that begin
  // with "?" are made up here: equal ones are equal extents, and they mean nothing outside.
  const ValueInfo& info(const std::string& value) const;
  // The value of a constant: of an initializer or the output of a Constant node. Null where it is none.
  const Tensor* constant(const std::string& value) const;
  // The same for a value that follows from constants and from extents that are numbers; null where it is not
  // known.
  const Tensor* known(const std::string& value) const;

  // Nodes that cannot be run whatever the inputs hold, each with the reason; those of subgraphs too.
  const std::vector<std::string>& problems() const { return problems_; }

  // Takes up a node that is not in the model yet, or whose type or outputs changed.
  void infer(const Node& node);
  // States that `value` has the type and shape of `other`.
  void set_like(const std::string& value, const std::string& other);
  // States a new constant.
  void set_constant(const std::string& value, const Tensor& tensor);

 private:
  friend class NumberedShapes;
  friend class NumberedRun;
  friend class NodeTypes;
  using Numbers = std::pair<int64_t, int64_t>;  // of an extent, in the two runs
  struct Extents {
    std::unordered_map<std::string, Numbers> numbers;
    std::map<Numbers, std::string> names;
  };

  void take_up(const Graph& graph);
  void state(const ValueInfo& stated);
  // Numbers the extents of a tensor; those of the elements of a sequence differ, so they have no names.
  void number_extents(ValueInfo& info);
  void number(Dim& dim);
  std::string name_of(const Numbers& numbers, const Dim* stated);
  std::optional<Shape> shape(const std::string& value, int run) const;
  // Whether the shape of a value is but what the model states of it, which nothing here has checked.
  bool is_claim(const std::string& value) const;
  // Whether all shapes that the node reads are numbers and no mere claims, none of its inputs is computed
  // from numbers that were made up, and it surely runs, which nodes of subgraphs need not: a shape rule that
  // refuses it is right.
  bool is_exact(const Node& node) const;
  void problem(const std::string& text);
  const std::pair<Tensor, Tensor>* run_values(const std::string& value) const;
  // The value of an input in one of the runs, null where it is not known.
  const Tensor* run_value(const std::string& value, int run) const;

  const Model& model_;
  const ValueTypes* outer_ = nullptr;  // of the graph around this
  std::unordered_map<std::string, ValueInfo> info_;
  std::unordered_map<std::string, Tensor> constants_;
  std::unordered_map<std::string, std::pair<Tensor, Tensor>>
      run_values_;                          // follow from shapes, so they have one a run
  std::unordered_set<std::string> claims_;  // see is_claim
  std::vector<std::string> problems_;
  std::shared_ptr<Extents> extents_ = std::make_shared<Extents>();  // those of all graphs of a model
};

// All that is known of the outputs of a model's graph, which need not state it. With `name_all` a dimension
// that has neither number nor name gets a name, the same one where two dimensions are equal.
std::vector<ValueInfo> inferred_outputs(const Model& model, bool name_all = false);

}  // namespace ortrain
