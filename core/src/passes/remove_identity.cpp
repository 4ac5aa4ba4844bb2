// Identity nodes only rename: their readers read the original. So does a Cast to the type that a value has.

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "autodiff/value_types.h"

#include "passes/pass.h"

namespace ortrain {

namespace {

bool remove_identity(Model& model) {
  Graph& graph = model.graph;
  std::unordered_map<std::string, std::string> original;
  bool changed = false;
  const auto is_cast = [](const Node& node) { return node.op_type == "Cast" && node.domain.empty(); };
  std::optional<ValueTypes> types;
  if (std::any_of(graph.nodes.begin(), graph.nodes.end(), is_cast)) types.emplace(model);
  const auto renames = [&](const Node& node) {
    if (node.op_type == "Identity" && node.domain.empty()) return true;
    const auto to = static_cast<DType>(node.int_or("to", 0));
    return is_cast(node) && to != DType::kUndefined && types->info(node.inputs.at(0)).dtype == to;
  };
  for (Node& node : graph.nodes) {
    for (std::string& input : node.inputs)
      if (const auto at = original.find(input); at != original.end()) {
        input = at->second;
        changed = true;
      }
    if (node.inputs.size() == 1 && !graph.is_output(node.outputs[0]) && renames(node))
      original[node.outputs[0]] = node.inputs[0];
  }
  return changed;
}

ORTRAIN_PASS({.name = "remove_identity", .moment = PassMoment::kSession, .order = 0, .run = remove_identity});

}  // namespace

}  // namespace ortrain
