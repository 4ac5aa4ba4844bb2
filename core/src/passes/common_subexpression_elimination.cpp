// Nodes that compute the same value from the same inputs are merged (common subexpression elimination), such
// as the nodes for the reshaped gradient that two products of a MatMul's gradient read, or for a shape that
// several nodes use.

#include <algorithm>
#include <unordered_map>

#include "graph/same_bits.h"
#include "op/operator.h"
#include "passes/passes.h"

namespace ortrain {

namespace {

size_t hash_of(const Node& node) {
  size_t hash = hash_bits(node.attributes);
  const auto add = [&](const std::string& text) {
    hash = hash * 0x9E3779B97F4A7C15u + std::hash<std::string>()(text);
  };
  add(node.qualified_type());
  for (const std::string& input : node.inputs) add(input);
  return hash;
}

bool are_twins(const Node& a, const Node& b) {
  return a.domain == b.domain && a.op_type == b.op_type && a.inputs == b.inputs &&
         same_bits(a.attributes, b.attributes);
}

}  // namespace

bool common_subexpression_elimination(Model& model) {
  Graph& graph = model.graph;
  std::unordered_multimap<size_t, const Node*> seen;
  std::unordered_map<std::string, std::string> original;
  bool changed = false;
  for (Node& node : graph.nodes) {
    for (std::string& input : node.inputs)
      if (const auto at = original.find(input); at != original.end()) input = at->second;
    if (!find_operator(node.domain, node.op_type) || runs_once(node)) continue;
    const size_t hash = hash_of(node);
    const auto [begin, end] = seen.equal_range(hash);
    const auto at =
        std::find_if(begin, end, [&](const auto& entry) { return are_twins(*entry.second, node); });
    if (at == end) {
      seen.emplace(hash, &node);
      continue;
    }
    const Node& twin = *at->second;
    if (twin.outputs.size() != node.outputs.size()) continue;
    bool mergeable = true;
    for (size_t o = 0; o < node.outputs.size(); ++o)
      mergeable &= !graph.is_output(node.outputs[o]) && twin.outputs[o].empty() == node.outputs[o].empty();
    if (!mergeable) continue;
    for (size_t o = 0; o < node.outputs.size(); ++o)
      if (!node.outputs[o].empty()) original[node.outputs[o]] = twin.outputs[o];
    changed = true;
  }
  return changed;
}

}  // namespace ortrain
