#include "program/plan_graph.h"

#include <algorithm>

namespace ortrain {

namespace {

bool has_subgraph(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<std::shared_ptr<Graph>>(attribute.second);
  });
}

bool updates_state(const Node& node) {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (op && op->traits.updates != 0) return true;
  for (const auto& [name, attribute] : node.attributes)
    if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute))
      if (std::any_of((*graph)->nodes.begin(), (*graph)->nodes.end(), updates_state)) return true;
  return false;
}

}  // namespace

PlanGraph::PlanGraph(const Graph& graph, const std::map<std::string, int64_t>& opsets, const Tensors& states)
    : graph_(graph), opsets_(opsets) {
  for (const auto& [name, value] : states) number(name);
  state_count_ = static_cast<int>(names_.size());
  nodes_.reserve(graph.nodes.size());
  for (const Node& n : graph.nodes) nodes_.push_back(&node(n));
}

int64_t PlanGraph::opset(const std::string& domain) const {
  const auto found = opsets_.find(domain);
  return found == opsets_.end() ? 1 : found->second;
}

int PlanGraph::number(const std::string& value) {
  const auto [at, fresh] = numbers_.try_emplace(value, static_cast<int>(names_.size()));
  if (fresh) names_.push_back(&at->first);
  return at->second;
}

int PlanGraph::find(const std::string& value) const {
  const auto found = numbers_.find(value);
  return found == numbers_.end() ? -1 : found->second;
}

const PlanNode& PlanGraph::node(const Node& node) {
  const auto [at, fresh] = planned_.try_emplace(&node);
  PlanNode& plan = at->second;
  if (!fresh) return plan;
  plan.node = &node;
  plan.op = find_operator(node.domain, node.op_type);
  plan.has_subgraph = has_subgraph(node);
  for (const std::string& name : node.inputs) plan.inputs.push_back(name.empty() ? -1 : number(name));
  for (const std::string& name : node.outputs) plan.outputs.push_back(name.empty() ? -1 : number(name));
  for (const std::string& name : values_read(node)) plan.read.push_back(number(name));
  const bool inner = plan.has_subgraph && updates_state(node);
  for (const int value : plan.read)
    if (is_state(value)) plan.states.emplace_back(value, inner);
  for (size_t i = 0; plan.op && i < plan.inputs.size() && i < 32; ++i)
    if ((plan.op->traits.updates >> i & 1) && plan.inputs[i] >= 0 && is_state(plan.inputs[i]))
      plan.states.emplace_back(plan.inputs[i], true);
  return plan;
}

const PlanNode& PlanGraph::identity(const std::string& from, const std::string& to, const Node& like) {
  const PlanNode*& known = identities_[{number(from), number(to)}];
  if (known) return *known;
  Node& node = own_.emplace_back();
  node.op_type = "Identity";
  node.name = like.name;
  node.inputs = {from};
  node.outputs = {to};
  known = &this->node(node);
  return *known;
}

}  // namespace ortrain
