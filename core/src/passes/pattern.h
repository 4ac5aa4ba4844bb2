// Queries of fusions on a graph: which node produces a value, which others read it, which constant it is.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

class Pattern {
 public:
  explicit Pattern(const Graph& graph) : graph_(graph), uses_(count_uses(graph)) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const std::string& output : graph.nodes[n].outputs)
        if (!output.empty()) producer_[output] = n;
  }

  // The node that produces `value` if it is an `op_type` of the ONNX domain, else null.
  const Node* made_by(const std::string& value, std::string_view op_type) const {
    const auto it = producer_.find(value);
    if (it == producer_.end()) return nullptr;
    const Node& node = graph_.nodes[it->second];
    return node.domain.empty() && node.op_type == op_type ? &node : nullptr;
  }

  // How often `value` is read; a graph output counts as one more.
  int uses(const std::string& value) const {
    const auto it = uses_.find(value);
    return it == uses_.end() ? 0 : it->second;
  }

  // The tensor of a value that is a constant: an initializer or the output of a Constant node.
  std::optional<Tensor> constant(const std::string& value) const {
    if (const auto it = graph_.initializers.find(value); it != graph_.initializers.end()) return it->second;
    const Node* node = made_by(value, "Constant");
    if (!node) return std::nullopt;
    if (const auto it = node->attributes.find("value"); it != node->attributes.end()) {
      if (const Tensor* tensor = std::get_if<Tensor>(&it->second)) return *tensor;
    }
    if (node->has("value_float")) return Tensor::scalar(node->float_or("value_float", 0.0f));
    if (node->has("value_ints")) return Tensor::of(node->ints_or("value_ints", {}));
    return std::nullopt;
  }

  // The value of a single-element floating-point constant.
  std::optional<double> scalar(const std::string& value) const {
    const std::optional<Tensor> tensor = constant(value);
    if (!tensor || tensor->size() != 1) return std::nullopt;
    if (tensor->dtype() != DType::kFloat && tensor->dtype() != DType::kDouble) return std::nullopt;
    return tensor->to_double()[0];
  }
  bool is_scalar(const std::string& value, double expected) const {
    const std::optional<double> found = scalar(value);
    return found && std::abs(*found - expected) <= 1e-5 * std::abs(expected);
  }

  // For a commutative node: the other input if one of them is a constant close to `expected`.
  std::optional<std::string> other_than(const Node& node, double expected) const {
    if (node.inputs.size() != 2) return std::nullopt;
    if (is_scalar(node.inputs[1], expected)) return node.inputs[0];
    if (is_scalar(node.inputs[0], expected)) return node.inputs[1];
    return std::nullopt;
  }

 private:
  const Graph& graph_;
  std::unordered_map<std::string, int> uses_;
  std::unordered_map<std::string, size_t> producer_;
};

}  // namespace ortrain
