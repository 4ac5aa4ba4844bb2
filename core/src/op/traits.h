// Traits: facts about an operator that passes, plans and sessions need besides its rules and kernels. Each is
// declared with the operator; the default is right for an operator that declares nothing.
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

// How an operator's kernel sees values of types that few kernels support: the 16-bit floats, and packed
// elements. A kernel sees the values themselves or their wide form (wide_of); for the wide form, the Program
// converts before and after the operator. Shape rules see the original types.
enum class NarrowTypes {
  kWidened,      // float instead of the 16-bit floats
  kPassthrough,  // copies elements without interpreting them: 16-bit floats unconverted, or as float if an
                 // input is stored as float already; packed elements as bytes
  kNative,       // the original types
};

// The name of output o of a node's first run; the output is added if the node does not have it yet.
using FirstOutput = std::function<std::string(size_t o)>;
// A name with this prefix that no value of the model uses.
using UniqueName = std::function<std::string(const std::string& base)>;

// Arithmetic operations of a run: those of matrix products and convolutions, which can multiply in bfloat16,
// and others.
struct Operations {
  double products = 0, others = 0;
};

struct Traits {
  // The derivative is zero or meaningless, and gradients stop here as expected (Shape, Equal).
  bool stops_gradient = false;
  // Its integers (output 0, or input 0) represent real numbers: between two such operators they carry
  // gradients (QuantizeLinear, DequantizeLinear).
  bool quantized = false;
  // The oldest version of the ONNX domain whose definition of the operator is implemented; models of older
  // versions are rejected with an error that names the operator. Ignored for other domains.
  int64_t since = 1;
  // Differs from run to run, or has a side effect: never folded, never merged with an equal node.
  bool impure = false;
  // Decomposed before a run, where that is possible, although a kernel can run it; not in training models.
  bool decomposed_to_run = false;
  // Bit i is set if a kernel may write to its input i, which is model state.
  uint32_t updates = 0;
  // Takes sequences or optional values; other operators are rejected if an input is a sequence or an optional
  // value.
  bool takes_sequences = false;
  // The kernel reads and writes values that are stored in bfloat16 (Layout::bf16) without conversion.
  bool takes_bf16 = false;
  NarrowTypes narrow_types = NarrowTypes::kWidened;
  // Any output that nothing reads may be left out.
  bool optional_outputs = false;
  // The result of one output does not depend on which other outputs are read.
  bool independent_outputs = false;
  // Bit i is set if the storage order of input i's elements makes no difference to the node, as long as all
  // such inputs have the same order.
  uint32_t any_order = 0;
  // The index of the input with the weights of a convolution, which the kernel takes in any order; -1: none.
  int weights = -1;

  // The index of an input that its producer should write directly into the memory of input `target` (an
  // accumulation buffer that is overwritten). Returns false if that does not apply to this node.
  bool (*writes_through)(const NodeContext&, size_t& input, size_t& target) = nullptr;
  // The positions of the inputs that one position of output 0 needs (op/positions.h). Without this rule, all
  // positions are computed together.
  PositionRule positions = nullptr;
  // The operations of a run, from the shapes of inputs (null where left out) and of output 0. Without this, a
  // few per element of output 0 are assumed.
  Operations (*operations)(const Node& node, std::span<const Shape* const> inputs,
                           const Shape& output) = nullptr;
  // A node that recomputes output 0 of the given node, if running the same node again would give another
  // result (random numbers, updated state). Nothing if there is none.
  std::optional<Node> (*repeat)(const Node& node, const FirstOutput& first) = nullptr;
  // Turns the node into the form used in training models.
  void (*train)(Node& node, const UniqueName& unique) = nullptr;
};

}  // namespace ortrain
