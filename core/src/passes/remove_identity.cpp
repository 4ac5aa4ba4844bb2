// Identity nodes only rename: their readers read the original.

#include <unordered_map>

#include "passes/pass.h"

namespace ortrain {

namespace {

bool remove_identity(Model& model) {
  Graph& graph = model.graph;
  std::unordered_map<std::string, std::string> original;
  bool changed = false;
  for (Node& node : graph.nodes) {
    for (std::string& input : node.inputs)
      if (const auto at = original.find(input); at != original.end()) {
        input = at->second;
        changed = true;
      }
    if (node.op_type == "Identity" && node.domain.empty() && node.inputs.size() == 1 &&
        !graph.is_output(node.outputs[0]))
      original[node.outputs[0]] = node.inputs[0];
  }
  return changed;
}

ORTRAIN_PASS({.name = "remove_identity", .moment = PassMoment::kSession, .order = 0, .run = remove_identity});

}  // namespace

}  // namespace ortrain
