#include "session/custom_nodes.h"

#include <unordered_map>

#include "infer/value_types.h"

namespace ortrain {
namespace {

struct Bound {
  std::shared_ptr<CustomNode> custom;
  std::vector<std::string> inputs, outputs;
};

// Replaces the nodes of a graph; subgraphs that change are copied first, because models share them.
bool replace(Graph& graph, const Model& model, const CustomOperators& operators, std::vector<Bound>& bound) {
  bool changed = false;
  for (Node& node : graph.nodes) {
    for (auto& [name, attribute] : node.attributes) {
      auto* sub = std::get_if<std::shared_ptr<Graph>>(&attribute);
      if (!sub || !*sub) continue;
      auto copy = std::make_shared<Graph>(**sub);
      if (!replace(*copy, model, operators, bound)) continue;
      *sub = std::move(copy);
      changed = true;
    }
    auto custom = operators.find(node, model.opset(node.domain));
    if (!custom) continue;
    node.domain = kCustomDomain;
    node.attributes = {{kCustomNumber, number_of(custom)}};
    bound.push_back({std::move(custom), node.inputs, node.outputs});
    changed = true;
  }
  return changed;
}

}  // namespace

CustomNodes bind_custom_nodes(Model& model, const CustomOperators& operators) {
  std::vector<Bound> bound;
  replace(model.graph, model, operators, bound);
  CustomNodes nodes;
  if (bound.empty()) return nodes;
  const ValueTypes types(model);
  for (const Bound& one : bound) {
    CustomUse use;
    for (const std::string& name : one.inputs) {
      use.inputs.push_back(types.info(name));
      use.inputs.back().name = name;
      use.constants.push_back(name.empty() ? nullptr : types.constant(name));
    }
    for (const std::string& name : one.outputs) {
      use.outputs.push_back(types.info(name));
      // The type that the model states is compared with the type that the operator states.
      if (const auto stated = model.graph.info(name); stated && stated->dtype != DType::kUndefined)
        use.outputs.back().dtype = stated->dtype;
      use.outputs.back().name = name;
    }
    one.custom->prepare(use);
    nodes.push_back(one.custom);
  }
  return nodes;
}

}  // namespace ortrain
