// Nodes that only rename a value are removed, and their readers read the original: Identity, and a Cast to
// the type that the model declares for its input.

#include <unordered_map>

#include "passes/passes.h"

namespace ortrain {

bool remove_identity(Model& model) {
  Graph& graph = model.graph;
  std::unordered_map<std::string, std::string> original;
  bool changed = false;
  const auto renames = [&](const Node& node) {
    if (!node.domain.empty() || node.inputs.size() != 1) return false;
    if (node.op_type == "Identity") return true;
    const auto known = node.op_type == "Cast" ? graph.info(node.inputs[0]) : std::nullopt;
    return known && known->dtype != DType::kUndefined &&
           known->dtype == static_cast<DType>(node.int_or("to", 0));
  };
  for (Node& node : graph.nodes) {
    for (std::string& input : node.inputs)
      if (const auto at = original.find(input); at != original.end()) {
        input = at->second;
        changed = true;
      }
    if (node.has_output(0) && !graph.is_output(node.outputs[0]) && renames(node))
      original[node.outputs[0]] = node.inputs[0];
  }
  return changed;
}

}  // namespace ortrain
