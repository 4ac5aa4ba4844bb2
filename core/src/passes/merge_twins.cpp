// Nodes that compute the same from the same inputs are merged (common subexpression elimination): the
// reshaped gradient that two products of a MatMul's gradient read, the shape that several nodes use.

#include <map>
#include <tuple>
#include <unordered_map>

#include "op/operator.h"
#include "passes/pass.h"

namespace ortrain {

namespace {

// A text that is equal for equal attributes; nothing for attributes that are not compared (tensors, graphs).
bool describe(const Attributes& attributes, std::string& out) {
  for (const auto& [name, value] : attributes) {
    out += name + "=";
    bool known = true;
    std::visit(
        [&](const auto& v) {
          using T = std::decay_t<decltype(v)>;
          if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, float>) {
            out += concat(v);
          } else if constexpr (std::is_same_v<T, std::string>) {
            out += v;
          } else if constexpr (std::is_same_v<T, std::vector<int64_t>> ||
                               std::is_same_v<T, std::vector<float>>) {
            for (const auto& x : v) out += concat(x, ",");
          } else {
            known = false;
          }
        },
        value);
    if (!known) return false;
    out += ";";
  }
  return true;
}

bool merge_twins(Model& model) {
  Graph& graph = model.graph;
  std::map<std::tuple<std::string, std::vector<std::string>, std::string>, const Node*> seen;
  std::unordered_map<std::string, std::string> original;
  bool changed = false;
  for (Node& node : graph.nodes) {
    for (std::string& input : node.inputs)
      if (const auto at = original.find(input); at != original.end()) input = at->second;
    const Operator* op = find_operator(node.domain, node.op_type);
    std::string attributes;
    if (!op || op->impure || !describe(node.attributes, attributes)) continue;
    const auto [at, fresh] = seen.try_emplace({node.qualified_type(), node.inputs, attributes}, &node);
    if (fresh) continue;
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

ORTRAIN_PASS({.name = "merge_twins", .moment = PassMoment::kSession, .order = 10, .run = merge_twins});

}  // namespace

}  // namespace ortrain
