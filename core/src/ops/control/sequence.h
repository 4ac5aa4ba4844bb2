// Helpers of the operators on sequences: checks of types and positions, and graphs over the elements, which
// gradient rules write.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "op/dynamic.h"
#include "op/node_writer.h"

namespace ortrain {

class SubgraphContext;

// Whether input i can be a sequence, or a tensor, as far as is known; reports the problem if not.
bool expect_sequence(TypeContext& c, size_t i);
bool expect_tensor(TypeContext& c, size_t i);

// The type of a sequence of such elements, and the type of an element of such a sequence.
ValueInfo sequence_of(const ValueInfo& element);
ValueInfo element_of(const ValueInfo& sequence);

// The position in input i, counted from the front; `otherwise` if it is omitted. The position may be as large
// as `last`, and may count from the end: -1 is `size` - 1.
size_t position_in(const DynamicContext& c, size_t i, size_t size, size_t last, size_t otherwise);

// Where a rule adds nodes: a graph and a source of unused names.
struct GraphWriter {
  std::function<std::vector<std::string>(const std::string& op_type, const std::vector<std::string>& inputs,
                                         size_t output_count, NewAttributes attributes)>
      emit;
  std::function<std::string(const std::string&)> unique;

  std::string operator()(const std::string& op_type, const std::vector<std::string>& inputs,
                         NewAttributes attributes = {}) const {
    return emit(op_type, inputs, 1, attributes)[0];
  }
};
GraphWriter writer_of(GradientContext& g);
GraphWriter writer_of(SubgraphContext& s, Graph& graph);

// A Loop that applies `body` to the elements of sequences, one after another, and returns the sequences of
// its outputs. An input that is not a sequence is passed whole every time. The first input must be a
// sequence.
std::vector<std::string> map_sequences(const GraphWriter& w, const std::vector<std::string>& inputs,
                                       const std::vector<bool>& is_sequence, const Graph& body,
                                       const std::vector<DType>& results);
// Three operations on all elements: the sums of the elements of two sequences; zeros in the shapes of a
// sequence's elements; and the dimensions of the elements along an axis, as one vector.
std::string add_sequences(const GraphWriter& w, const std::string& a, const std::string& b, DType dtype);
std::string zeros_like_sequence(const GraphWriter& w, const std::string& sequence, DType dtype);
// zeros_like (ops/common/shape_helpers.h) and dy_or_zeros for values that may be sequences.
Name zeros_like_value(GradientContext& g, const std::string& like);
Name dy_or_zeros_like_value(GradientContext& g, size_t o);
std::string dims_of_elements(const GraphWriter& w, const std::string& sequence, int64_t axis);

}  // namespace ortrain
