// The interface of rules that write nodes (gradient rules and decompositions). A rule is applied to one node
// of a model, can ask for known types, shapes and constants of values, and adds nodes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

class NodeWriter {
 public:
  virtual ~NodeWriter() = default;

  virtual const Node& node() const = 0;
  virtual int64_t opset(const std::string& domain = "") const = 0;

  bool has_x(size_t i) const { return node().has_input(i); }
  bool has_y(size_t o) const { return node().has_output(o); }
  const std::string& x(size_t i) const { return node().inputs.at(i); }   // input i
  const std::string& y(size_t o) const { return node().outputs.at(o); }  // output o

  // Adds a node and returns the name of its output, or of its outputs.
  virtual std::vector<std::string> emit(const std::string& op_type, const std::vector<std::string>& inputs,
                                        size_t output_count, const Attributes& attributes = {},
                                        const std::string& domain = "") = 0;
  std::string operator()(const std::string& op_type, const std::vector<std::string>& inputs,
                         const Attributes& attributes = {}, const std::string& domain = "");

  // Constants: initializers of the new graph, shared where equal.
  virtual std::string constant(const Tensor& value) = 0;
  std::string int64s(const std::vector<int64_t>& values);
  // A scalar of the element type of value `like`.
  std::string scalar_like(const std::string& like, double value);

  // The type and the dimensions of a value, as far as they are known.
  virtual DType dtype(const std::string& value) const = 0;
  virtual std::optional<std::vector<Dim>> dims(const std::string& value) const = 0;
  // The value of a constant, or of anything that depends only on constants, if it is known; else null.
  virtual const Tensor* constant_value(const std::string& value) const = 0;
  std::optional<int64_t> rank(const std::string& value) const;

  // ReduceSum over constant axes, given as an attribute or an input as the opset requires.
  std::string reduce_sum(const std::string& value, const std::vector<int64_t>& axes, bool keepdims);
  // Squeeze / Unsqueeze over constant axes, in the opset's form.
  std::string unsqueeze(const std::string& value, const std::vector<int64_t>& axes);
  std::string squeeze(const std::string& value, const std::vector<int64_t>& axes);

  // Throws: '<node label>: <why>'.
  [[noreturn]] void reject(const std::string& why) const;
};

}  // namespace ortrain
