// Operators with data-dependent output shapes: those that select elements by value, control flow, and those
// that take or return sequences and optional values. They have no kernel in a Program; the executor
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

// What can be said of such a node before it runs.
class TypeContext {
 public:
  virtual ~TypeContext() = default;
  virtual const Node& node() const = 0;
  virtual int64_t opset() const = 0;
  // What is known of input i: an undefined type and no dims where it is nothing.
  virtual const ValueInfo& input(size_t i) const = 0;
  // The value of input i where it is a constant, else null.
  virtual const Tensor* constant(size_t i) const = 0;
  // What is known of the outputs of a subgraph of the node when its inputs are these.
  virtual std::vector<ValueInfo> body(const std::string& attribute, std::vector<ValueInfo> inputs) = 0;
  // A name for a size of which nothing is known.
  virtual Dim unknown() = 0;
  // States what output o is. A Dim that is neither a number nor a name is a size of its own.
  void output(size_t o, DType dtype, std::optional<std::vector<Dim>> dims) {
    output(o, ValueInfo{"", dtype, std::move(dims)});
  }
  virtual void output(size_t o, ValueInfo info) = 0;
  // States that the node cannot be run whatever its inputs hold, and why.
  virtual void reject(const std::string& why) = 0;
};

// What is known of a value that is there.
ValueInfo info_of(const ValueRef& value);

// Where the outputs of a run go.
class OutputPlaces {
 public:
  virtual ~OutputPlaces() = default;
  // Memory for output o, whose type and shape are known by now. Valid until the run is over.
  virtual const Tensor& place(size_t o, DType dtype, const Shape& shape) = 0;
  // Output o is this sequence, or nothing.
  virtual void take(size_t o, const ValueRef& value);
};

// The run of such a node. Values of inputs are known, so `constant` and `need_constant` give all of them.
class DynamicContext : public NodeContext {
 public:
  using NodeContext::NodeContext;
  // Input i, which the node must have. `in` and `sequence` throw where it is something else.
  virtual ValueRef value(size_t i) const = 0;
  const Tensor& in(size_t i) const;
  const Sequence& sequence(size_t i) const;
  DType dtype(size_t i) const override { return in(i).dtype(); }
  const Shape& shape(size_t i) const override { return in(i).shape(); }
  const Tensor* constant(size_t i) const override { return &in(i); }

  // Memory for output o.
  virtual const Tensor& out(size_t o, DType dtype, const Shape& shape) = 0;
  // Output o is this value. The memory of a tensor stays as it is until the node runs again; the elements of
  // a sequence stay as they are as long as there are sequences that have them.
  virtual void set(size_t o, const ValueRef& value) = 0;
  // Memory that is kept between runs of the node, the k-th piece of it.
  virtual TensorBuffer& buffer(size_t k) = 0;

  // Runs a subgraph of the node; it reads values of the graphs around it by itself. `iteration` counts from 0
  // for subgraphs that run more than once, so that random numbers differ by it; it is -1 for others.
  virtual void run_body(const std::string& attribute, std::span<const ValueRef> inputs, OutputPlaces& outputs,
                        int64_t iteration) = 0;
  // What a subgraph's outputs are for certain inputs, as far as it can be told without running it.
  virtual std::vector<ValueInfo> body_types(const std::string& attribute,
                                            const std::vector<ValueInfo>& inputs) = 0;
};

}  // namespace ortrain
