// Operators with data-dependent output shapes: operators that select elements by value, control flow, and
// operators that take or return sequences and optional values. They have no kernel in a Program; the executor
// (program/executor.h) runs them between two Programs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "op/operator.h"
#include "runtime/tensor_buffer.h"
#include "runtime/value.h"

namespace ortrain {

// States what is known about the outputs of such a node before it runs.
class TypeContext {
 public:
  virtual ~TypeContext() = default;
  virtual const Node& node() const = 0;
  virtual int64_t opset() const = 0;
  // The known type and shape of input i: an undefined type if the type is not known, no dims if the rank is
  // not known.
  virtual const ValueInfo& input(size_t i) const = 0;
  // The value of input i if it is a constant, else null.
  virtual const Tensor* constant(size_t i) const = 0;
  // The types and shapes of the outputs of a subgraph of the node for these inputs, as far as they are known.
  virtual std::vector<ValueInfo> body(const std::string& attribute, std::vector<ValueInfo> inputs) = 0;
  // A new name for an unknown size.
  virtual Dim unknown() = 0;
  // States the type and shape of output o. A Dim that is neither a number nor a name is a distinct unknown
  // size.
  void output(size_t o, DType dtype, std::optional<std::vector<Dim>> dims) {
    output(o, ValueInfo{"", dtype, std::move(dims)});
  }
  virtual void output(size_t o, ValueInfo info) = 0;
  // States that the node cannot be run for any input, and why.
  virtual void reject(const std::string& why) = 0;
};

// The type and shape of a value that exists.
ValueInfo info_of(const ValueRef& value);

// Where a run of a subgraph stores its outputs.
class OutputPlaces {
 public:
  virtual ~OutputPlaces() = default;
  // Memory for output o, whose type and shape are known by now. Valid until the run ends.
  virtual const Tensor& place(size_t o, DType dtype, const Shape& shape) = 0;
  // Output o is this value, which is not a tensor: a sequence, or an empty optional value.
  virtual void take(size_t o, const ValueRef& value);
};

// One run of such a node. All input values are known, so `constant` and `need_constant` work for every input.
class DynamicContext : public NodeContext {
 public:
  using NodeContext::NodeContext;
  // Input i, which the node must have. `in` throws if the input is not a tensor, `sequence` if it is not a
  // sequence.
  virtual ValueRef value(size_t i) const = 0;
  const Tensor& in(size_t i) const;
  const Sequence& sequence(size_t i) const;
  // The single element of input i; `otherwise` if the node does not have the input.
  template <typename T>
  T single_value_or(size_t i, T otherwise) const {
    if (!has_input(i)) return otherwise;
    const Tensor& value = in(i);
    expect(value.size() == 1 && value.dtype() == dtype_of<T>(), "input ", i,
           " must be a single value of type ", to_string(dtype_of<T>()), ", found ", to_string(value.dtype()),
           to_string(value.shape()));
    return *value.data<T>();
  }
  DType dtype(size_t i) const override { return in(i).dtype(); }
  const Shape& shape(size_t i) const override { return in(i).shape(); }
  const Tensor* constant(size_t i) const override { return &in(i); }

  // Throws unless the limits of the session allow output o to have that type and shape.
  virtual void check_limits(size_t o, DType dtype, const Shape& shape) const = 0;
  // Memory for output o. Throws if the limits of the session do not allow that type and shape.
  virtual const Tensor& out(size_t o, DType dtype, const Shape& shape) = 0;
  // Output o is this value. The memory of a tensor is unchanged until the node runs again; the elements of a
  // sequence are unchanged as long as any sequence contains them.
  virtual void set(size_t o, const ValueRef& value) = 0;
  // The k-th piece of memory that is kept between runs of the node.
  virtual TensorBuffer& buffer(size_t k) = 0;

  // Runs a subgraph of the node. `inputs` are only the inputs of the subgraph: it can also read values of the
  // enclosing graphs. `iteration` counts from 0 for subgraphs that run more than once, so that random numbers
  // differ between iterations; it is -1 for subgraphs that run once.
  virtual void run_body(const std::string& attribute, std::span<const ValueRef> inputs, OutputPlaces& outputs,
                        int64_t iteration) = 0;
  // The types and shapes of a subgraph's outputs for these inputs, as far as they are known without running
  // the subgraph.
  virtual std::vector<ValueInfo> body_types(const std::string& attribute,
                                            const std::vector<ValueInfo>& inputs) = 0;
};

}  // namespace ortrain
