// An activation with an expensive derivative computes the derivative together with its value. The derivative
// is stored in place of the activation's input, which only the gradient would have read:
//
//   Gelu(X) → Y, GeluGrad(dY, X)  →  GeluAndDerivative(X) → Y, S and Mul(dY, S)        the same for FastGelu,
//   QuickGelu
#include <unordered_map>

#include "op/operator.h"
#include "op/session_domain.h"
#include "passes/passes.h"

namespace ortrain {
namespace {

// The name of the activation, as its gradient operator has it; empty if the node is not such a gradient.
std::string_view activation_of(const Node& gradient) {
  if (gradient.domain != kMicrosoft) return {};
  for (const std::string_view name : {"Gelu", "FastGelu", "QuickGelu"})
    if (gradient.op_type == std::string(name) + "Grad") return name;
  return {};
}

std::string_view activation_of_forward(const Node& node) {
  if (node.has_input(1)) return {};  // FastGelu with a bias
  if (node.op_type == "Gelu") return node.string_or("approximate", "none") == "tanh" ? "FastGelu" : "Gelu";
  if (node.domain == kMicrosoft && node.op_type == "FastGelu") return "FastGelu";
  if ((node.domain == kMicrosoft && node.op_type == "QuickGelu") ||
      (node.domain.empty() && node.op_type == "Swish"))
    return "QuickGelu";
  return {};
}

float alpha_of(const Node& node) { return node.float_or("alpha", node.op_type == "Swish" ? 1.0f : 1.702f); }

}  // namespace

bool save_activation_derivatives(Model& model) {
  Graph& graph = model.graph;
  const auto uses = count_uses(graph);
  std::unordered_map<std::string, Node*> activations;  // keyed by the value that they read
  for (Node& node : graph.nodes)
    if (!activation_of_forward(node).empty()) activations[node.inputs[0]] = &node;
  bool changed = false;
  for (Node& node : graph.nodes) {
    const std::string_view name = activation_of(node);
    if (name.empty()) continue;
    const std::string x = node.inputs[1];
    const auto at = activations.find(x);
    // With other readers, X would have to be kept in addition to the derivative.
    if (at == activations.end() || uses.at(x) != 2 || activation_of_forward(*at->second) != name) continue;
    Node& forward = *at->second;
    const float alpha = alpha_of(forward);
    if (name == "QuickGelu" && alpha_of(node) != alpha) continue;
    const std::string derivative = graph.unique_name(x + "_derivative");
    forward.attributes.clear();
    if (name == "QuickGelu") forward.attributes["alpha"] = alpha;
    forward.domain = kSessionDomain;
    forward.op_type = std::string(name) + "AndDerivative";
    forward.outputs = {forward.outputs[0], derivative};
    node.domain = "";
    node.op_type = "Mul";
    node.inputs = {node.inputs[0], derivative};
    node.attributes.clear();
    changed = true;
  }
  return changed;
}

}  // namespace ortrain
