// What fusions of quantized operators need to know of a DequantizeLinear or QuantizeLinear with constant
// scales: codes of 8 bits, to and from float.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "passes/pattern.h"

namespace ortrain {

inline bool is_byte(DType t) { return t == DType::kUInt8 || t == DType::kInt8; }

// (codes - zero points) * scales. One scale and zero point, or one for each index of an axis.
struct Dequantized {
  std::string codes;
  DType dtype = DType::kUndefined;
  std::vector<float> scales;
  std::vector<int64_t> zeros;  // as many
  int64_t axis = 0;            // if there are several; negative ones count from the end

  double scale(size_t i) const { return static_cast<double>(scales[scales.size() > 1 ? i : 0]); }
  int64_t zero(size_t i) const { return zeros[zeros.size() > 1 ? i : 0]; }
  bool along(int64_t wanted, int64_t rank) const {
    return scales.size() == 1 || axis == wanted || axis + rank == wanted;
  }
};

// The scales and zero points that are inputs 1 and 2 of a node. nullopt if they are not constants, or
// scales are not positive floats, or the node works by blocks.
inline std::optional<Dequantized> read_scales(const Pattern& p, const Node& node, DType dtype) {
  if (node.int_or("block_size", 0) != 0) return std::nullopt;
  const std::optional<Tensor> scales = p.constant(node.inputs.at(1));
  if (!scales || scales->dtype() != DType::kFloat || scales->size() == 0 || scales->shape().size() > 1)
    return std::nullopt;
  Dequantized found{node.inputs[0], dtype, {}, {}, node.int_or("axis", 1)};
  for (const float scale : scales->elements<float>()) {
    if (!(scale > 0) || !std::isfinite(scale)) return std::nullopt;
    found.scales.push_back(scale);
  }
  found.zeros.assign(found.scales.size(), 0);
  if (!node.has_input(2)) return found;
  const std::optional<Tensor> zeros = p.constant(node.inputs[2]);
  if (!zeros || zeros->dtype() != dtype || zeros->size() != scales->size()) return std::nullopt;
  const std::vector<double> values = zeros->to_double();
  for (size_t i = 0; i < values.size(); ++i) found.zeros[i] = static_cast<int64_t>(values[i]);
  return found;
}

// The type of a DequantizeLinear's codes: that of its zero point, of the QuantizeLinear or constant that
// produces the codes, or of the value as the model declares it. kUndefined if none of these is known.
inline DType code_type(const Pattern& p, const Graph& graph, const Node& node) {
  if (node.has_input(2)) {
    const std::optional<Tensor> zeros = p.constant(node.inputs[2]);
    return zeros ? zeros->dtype() : DType::kUndefined;
  }
  const std::string& codes = node.inputs.at(0);
  if (const Node* made = p.made_by(codes, "QuantizeLinear")) {
    if (made->has_input(2)) {
      const std::optional<Tensor> zeros = p.constant(made->inputs[2]);
      return zeros ? zeros->dtype() : DType::kUndefined;
    }
    const auto stated = static_cast<DType>(made->int_or("output_dtype", 0));
    return stated == DType::kUndefined ? DType::kUInt8 : stated;
  }
  if (const std::optional<Tensor> constant = p.constant(codes)) return constant->dtype();
  const std::optional<ValueInfo> info = graph.info(codes);
  return info ? info->dtype : DType::kUndefined;
}

// The value if a DequantizeLinear produces it as float from codes of known type.
inline std::optional<Dequantized> dequantized(const Pattern& p, const Graph& graph,
                                              const std::string& value) {
  const Node* node = p.made_by(value, "DequantizeLinear");
  if (!node) return std::nullopt;
  const auto stated = static_cast<DType>(node->int_or("output_dtype", 0));
  if (stated != DType::kUndefined && stated != DType::kFloat) return std::nullopt;
  const DType dtype = code_type(p, graph, *node);
  return dtype == DType::kUndefined ? std::nullopt : read_scales(p, *node, dtype);
}

// The same for bytes with one scale.
inline std::optional<Dequantized> dequantized_bytes(const Pattern& p, const Graph& graph,
                                                    const std::string& value) {
  std::optional<Dequantized> found = dequantized(p, graph, value);
  return found && is_byte(found->dtype) && found->scales.size() == 1 ? found : std::nullopt;
}

// The numbers of a constant of type float, or of one that is dequantized from int32 without zero points along
// its only axis.
inline std::optional<std::vector<double>> constant_numbers(const Pattern& p, const Graph& graph,
                                                           const std::string& value) {
  if (const std::optional<Tensor> constant = p.constant(value))
    return constant->dtype() == DType::kFloat ? std::optional(constant->to_double()) : std::nullopt;
  const std::optional<Dequantized> found = dequantized(p, graph, value);
  if (!found || found->dtype != DType::kInt32) return std::nullopt;
  const std::optional<Tensor> codes = p.constant(found->codes);
  if (!codes || codes->dtype() != DType::kInt32 || codes->shape().size() != 1) return std::nullopt;
  std::vector<double> numbers = codes->to_double();
  if (found->scales.size() != 1 && (found->scales.size() != numbers.size() || !found->along(0, 1)))
    return std::nullopt;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (found->zero(i) != 0) return std::nullopt;
    numbers[i] *= found->scale(i);
  }
  return numbers;
}

// Replaces the nodes of a graph that match: match(pattern, graph, node number) returns an optional, and
// replace(graph, *match) changes the graph once all matches are known. Returns whether a node matched.
template <typename Match, typename Replace>
bool replace_matches(Graph& graph, const Match& match, const Replace& replace) {
  using Found = typename std::invoke_result_t<Match, const Pattern&, const Graph&, size_t>::value_type;
  std::vector<Found> found;
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto here = match(pattern, graph, n)) found.push_back(std::move(*here));
  }
  for (Found& f : found) replace(graph, f);
  return !found.empty();
}

// A tensor of bytes with these values.
inline Tensor byte_tensor(DType dtype, Shape shape, const std::vector<int64_t>& values) {
  Tensor made(dtype, std::move(shape));
  for (size_t i = 0; i < values.size(); ++i)
    *(reinterpret_cast<uint8_t*>(made.raw()) + i) = static_cast<uint8_t>(values[i]);
  return made;
}

// Adds the scales and zero points of a value to a graph, and returns their names.
inline std::pair<std::string, std::string> add_scales(Graph& graph, const Dequantized& d,
                                                      const std::string& base) {
  const Shape shape = d.scales.size() == 1 ? Shape{} : Shape{static_cast<int64_t>(d.scales.size())};
  const std::string scale = graph.unique_name(base + "/scale");
  Tensor scales(DType::kFloat, shape);
  std::copy(d.scales.begin(), d.scales.end(), scales.data<float>());
  graph.add_initializer(scale, std::move(scales));
  const std::string zero = graph.unique_name(base + "/zero");
  graph.add_initializer(zero, byte_tensor(d.dtype, shape, d.zeros));
  return {scale, zero};
}

}  // namespace ortrain
