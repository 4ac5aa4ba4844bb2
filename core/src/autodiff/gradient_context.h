// What a gradient rule sees: names of values of the graph; and what it does: adds nodes that compute the
// gradients of the inputs from the gradients of the outputs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

class SubgraphContext;  // autodiff/subgraph_context.h

class GradientContext {
 public:
  virtual ~GradientContext() = default;

  virtual const Node& node() const = 0;
  virtual int64_t opset(const std::string& domain = "") const = 0;

  bool has_x(size_t i) const { return node().has_input(i); }
  const std::string& x(size_t i) const { return node().inputs.at(i); }   // input i
  const std::string& y(size_t o) const { return node().outputs.at(o); }  // output o
  // The gradient of output o; empty when none reaches it.
  virtual std::string dy(size_t o) const = 0;
  // Whether anything needs the gradient of input i. Rules leave out what is not needed.
  virtual bool needs(size_t i) const = 0;
  // States the gradient of input i.
  virtual void set(size_t i, const std::string& gradient) = 0;

  // Adds a node and returns the name of its output, or of its outputs.
  virtual std::vector<std::string> emit(const std::string& op_type, const std::vector<std::string>& inputs,
                                        size_t output_count, const Attributes& attributes = {},
                                        const std::string& domain = "") = 0;
  std::string operator()(const std::string& op_type, const std::vector<std::string>& inputs,
                         const Attributes& attributes = {}, const std::string& domain = "") {
    return emit(op_type, inputs, 1, attributes, domain)[0];
  }

  // Gives a missing optional output of the node itself a name, so that the rule can use it (the mask of
  // Dropout, the indices of MaxPool, the saved statistics of normalizations).
  virtual std::string want_y(size_t o) = 0;
  // Replaces the node by another with the same inputs and outputs (BatchNormalization → BatchNormInternal).
  virtual void retype_node(const std::string& op_type, const std::string& domain) = 0;

  // For operators with subgraphs: what their rules ask besides.
  virtual SubgraphContext& subgraphs() = 0;

  // Constants: initializers of the new graph, shared where equal.
  virtual std::string constant(const Tensor& value) = 0;
  std::string int64s(const std::vector<int64_t>& values) { return constant(Tensor::of(values)); }
  // A scalar of the element type of value `like`.
  std::string scalar_like(const std::string& like, double value);

  // What is known of a value.
  virtual DType dtype(const std::string& value) const = 0;
  virtual std::optional<std::vector<Dim>> dims(const std::string& value) const = 0;
  // The value of a constant, where it is one.
  virtual const Tensor* constant_value(const std::string& value) const = 0;
  std::optional<int64_t> rank(const std::string& value) const;

  // Sums `gradient`, which has the shape of `from` (a value of the forward graph), over the axes along which
  // x(i) was broadcast, so that it gets the shape of x(i).
  std::string unbroadcast(const std::string& gradient, const std::string& from, size_t i);

  // ReduceSum over constant axes, by attribute or by input as the opset wants it.
  std::string reduce_sum(const std::string& value, const std::vector<int64_t>& axes, bool keepdims);
  // Squeeze / Unsqueeze over constant axes in the opset's form.
  std::string unsqueeze(const std::string& value, const std::vector<int64_t>& axes);
  std::string squeeze(const std::string& value, const std::vector<int64_t>& axes);

  // Throws: '<node label>: <why>'.
  [[noreturn]] void reject(const std::string& why) const;
};

}  // namespace ortrain
