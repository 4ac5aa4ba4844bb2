// Operators whose outputs have a shape that only their run tells: those that choose elements by value, and
// control flow. They have no kernel in a Program; the executor (program/executor.h) runs them between two.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/operator.h"
#include "runtime/tensor_buffer.h"

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
  // A name for an extent of which nothing is known.
  virtual Dim unknown() = 0;
  // States what output o is. A Dim that is neither a number nor a name is an extent of its own.
  virtual void output(size_t o, DType dtype, std::optional<std::vector<Dim>> dims) = 0;
};

// Where the outputs of a run go.
class OutputPlaces {
 public:
  virtual ~OutputPlaces() = default;
  // Memory for output o, whose type and shape are known by now. Valid until the run is over.
  virtual const Tensor& place(size_t o, DType dtype, const Shape& shape) = 0;
};

// The run of such a node. Values of inputs are known, so `constant` and `need_constant` give all of them.
class DynamicContext : public NodeContext {
 public:
  using NodeContext::NodeContext;
  virtual const Tensor& in(size_t i) const = 0;  // input i, which the node must have
  DType dtype(size_t i) const override { return in(i).dtype(); }
  const Shape& shape(size_t i) const override { return in(i).shape(); }
  const Tensor* constant(size_t i) const override { return &in(i); }

  // Memory for output o.
  virtual const Tensor& out(size_t o, DType dtype, const Shape& shape) = 0;
  // Output o is this tensor, whose memory stays as it is until the node runs again.
  virtual void set(size_t o, const Tensor& value) = 0;
  // Memory that is kept between runs of the node, the k-th piece of it.
  virtual TensorBuffer& buffer(size_t k) = 0;

  // Runs a subgraph of the node; it reads values of the graphs around it by itself. `iteration` counts from 0
  // for subgraphs that run more than once, so that random numbers differ by it; it is -1 for others.
  virtual void run_body(const std::string& attribute, std::span<const Tensor* const> inputs,
                        OutputPlaces& outputs, int64_t iteration) = 0;
  // What a subgraph's outputs are for certain inputs, as far as it can be told without running it.
  virtual std::vector<ValueInfo> body_types(const std::string& attribute,
                                            const std::vector<ValueInfo>& inputs) = 0;
};

}  // namespace ortrain
