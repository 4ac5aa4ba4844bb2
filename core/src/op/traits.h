// Traits: what passes, plans and sessions have to know of an operator beside its rules and kernels. Each is
// declared where the operator is, and has a default that is right for an operator that says nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "op/positions.h"
#include "runtime/shape.h"

namespace ortrain {

class NodeContext;  // op/operator.h

// What the kernel of an operator sees of types that few kernels know: the 16-bit floats, and packed elements.
// Where it is not the value itself it is its wide form (wide_of), which the Program converts to and from at
// the borders of such operators; shape rules see the types as they are.
enum class NarrowTypes {
  kWidened,  // float in place of the 16-bit floats
  kMoved,    // moves elements about whatever they mean: 16-bit floats as they are, or as float where an input
             // is stored so already; packed elements as bytes
  kTaken,    // the types as they are
};

// The name of output o of the run before, which is asked for where the node does not have it yet.
using FirstOutput = std::function<std::string(size_t o)>;
// A name that begins so and that no value of the model has.
using UniqueName = std::function<std::string(const std::string& base)>;

struct Traits {
  // The derivative is zero or meaningless, and gradients stop here as everyone expects (Shape, Equal).
  bool stops_gradient = false;
  // Its integers (output 0, or input 0) stand for real numbers: between two operators that say so they carry
  // gradients (QuantizeLinear, DequantizeLinear).
  bool quantized = false;
  // The oldest version of the ONNX domain whose definition of the operator is implemented; models of older
  // ones are rejected with the operator's name. Ignored for other domains.
  int64_t since = 1;
  // Differs from run to run, or has an effect: never folded, never merged with an equal node.
  bool impure = false;
  // Bit i is set where a kernel may write over its input i, which is state of the model.
  uint32_t updates = 0;
  // Takes sequences or optional values: other operators are rejected where they get one.
  bool takes_sequences = false;
  // The kernel reads and writes values that are stored in bfloat16 (Layout::bf16) as they are.
  bool takes_bf16 = false;
  NarrowTypes narrow_types = NarrowTypes::kWidened;
  // An output that nothing reads may be left out, whichever it is.
  bool optional_outputs = false;
  // What the kernel computes for one output does not depend on which of the others are read.
  bool independent_outputs = false;
  // Bit i is set where the order in which the elements of input i are stored makes no difference to the node,
  // as long as all such inputs have the same.
  uint32_t any_order = 0;
  // The input that is the weights of a convolution, which the kernel takes in any order; -1: none.
  int weights = -1;

  // The index of an input which its producer should write straight into the memory of input `target` (an
  // accumulation buffer that is overwritten). Returns false where that does not hold for this node.
  bool (*writes_through)(const NodeContext&, size_t& input, size_t& target) = nullptr;
  // What one position of output 0 needs of the inputs (op/positions.h). Without it all positions are computed
  // together.
  PositionRule positions = nullptr;
  // Arithmetic operations of a run, from the shapes of inputs (null where left out) and of output 0. Without
  // it a few per element of output 0.
  double (*operations)(const Node& node, std::span<const Shape* const> inputs, const Shape& output) = nullptr;
  // A node that computes output 0 of this one once more, where running the same again would give something
  // else (random numbers, updated state). Nothing where there is none.
  std::optional<Node> (*repeat)(const Node& node, const FirstOutput& first) = nullptr;
  // Turns the node into the one that training models have in its place.
  void (*train)(Node& node, const UniqueName& unique) = nullptr;
};

}  // namespace ortrain
