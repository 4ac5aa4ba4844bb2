// An If whose condition is a constant of the model is replaced with the nodes of the branch that it takes,
// before the gradient is built. Conditions that follow from shapes are resolved when the graph is compiled
// (program/segment_plan.h).

#include <algorithm>
#include <optional>
#include <vector>

#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {

namespace {

// The branch that a node always takes, or null.
const Graph* branch_of(const Node& node, const Pattern& pattern) {
  if (node.op_type != "If" || !node.domain.empty() || node.inputs.size() != 1) return nullptr;
  const std::optional<Tensor> condition = pattern.constant(node.inputs[0]);
  if (!condition || condition->dtype() != DType::kBool || condition->size() != 1) return nullptr;
  const auto found = node.attributes.find(*condition->data<bool>() ? "then_branch" : "else_branch");
  const auto* branch =
      found == node.attributes.end() ? nullptr : std::get_if<std::shared_ptr<Graph>>(&found->second);
  if (!branch || !*branch || (*branch)->outputs.size() < node.outputs.size()) return nullptr;
  return branch->get();
}

// Replaces the Ifs of the graph itself, once; the branches that take their place may contain further Ifs.
bool inline_once(Graph& graph) {
  const Pattern pattern(graph);
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(),
                   [&](const Node& node) { return branch_of(node, pattern) != nullptr; }))
    return false;
  graph.make_inner_names_unique();
  std::vector<Node> nodes;
  for (const Node& node : std::vector<Node>(graph.nodes)) {
    const Graph* branch = branch_of(node, pattern);
    if (!branch) {
      nodes.push_back(node);
      continue;
    }
    for (const std::string& name : branch->initializer_order)
      graph.add_initializer(name, branch->initializers.at(name));
    graph.value_info.insert(branch->value_info.begin(), branch->value_info.end());
    nodes.insert(nodes.end(), branch->nodes.begin(), branch->nodes.end());
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      if (!node.has_output(o)) continue;
      Node identity;
      identity.op_type = "Identity";
      identity.name = node.outputs[o] + "_of_branch";
      identity.inputs = {branch->outputs[o].name};
      identity.outputs = {node.outputs[o]};
      nodes.push_back(std::move(identity));
    }
  }
  graph.nodes = std::move(nodes);
  return true;
}

}  // namespace

bool inline_if(Model& model) {
  bool changed = false;
  while (inline_once(model.graph)) changed = true;
  return changed;
}

}  // namespace ortrain
