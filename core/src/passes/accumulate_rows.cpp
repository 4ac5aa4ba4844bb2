// The gradient of an embedding is zero except in the rows that a batch reads. Where the graph has an input
// for the set of those rows of an accumulation buffer, only those rows are computed and added to the buffer:
//
//   InPlaceAccumulatorV2(buffer, GatherGrad(shape, indices, dY), overwrite)
//     →  AccumulateRows(buffer, rows, overwrite, indices, dY)
//
// A sum of such gradients, of a table that several nodes read, is replaced in the same way. A table that
// another kind of node reads too, such as a product that shares the weights of an embedding, has a dense
// gradient and is left unchanged.
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "op/operator.h"
#include "op/session_domain.h"
#include "passes/passes.h"

namespace ortrain {

bool accumulate_rows(Model& model) {
  Graph& graph = model.graph;
  const auto uses = count_uses(graph);
  std::unordered_map<std::string, const Node*> producer;
  for (const Node& node : graph.nodes)
    if (node.has_output(0)) producer[node.outputs[0]] = &node;
  // The node that computes a value with a single reader; null for other values.
  const auto maker = [&](const std::string& value) -> const Node* {
    const auto at = producer.find(value);
    const auto count = uses.find(value);
    return at == producer.end() || count == uses.end() || count->second != 1 ? nullptr : at->second;
  };
  const auto is_gathered = [](const Node* node) {
    return node && node->op_type == "GatherGrad" && node->domain == kMicrosoft &&
           node->int_or("axis", 0) == 0;
  };
  bool changed = false;
  std::vector<std::pair<Node*, Node>> replaced;
  for (Node& node : graph.nodes) {
    if (node.op_type != "InPlaceAccumulatorV2" || node.domain != kMicrosoft) continue;
    const std::string rows = name_of_rows(node.inputs[0]);
    if (!graph.is_input(rows) || node.has_output(1)) continue;
    Node made;
    made.domain = kSessionDomain;
    made.op_type = "AccumulateRows";
    made.name = node.name;
    made.inputs = {node.inputs[0], rows, node.has_input(2) ? node.inputs[2] : ""};
    made.outputs = {node.outputs[0]};
    const Node* sum = maker(node.inputs[1]);
    const bool is_sum = sum && sum->op_type == "Sum" && sum->domain.empty();
    bool all = true;
    for (const std::string& addend : is_sum ? sum->inputs : std::vector<std::string>{node.inputs[1]}) {
      const Node* gathered = maker(addend);
      all = all && is_gathered(gathered);
      if (all) made.inputs.insert(made.inputs.end(), {gathered->inputs[1], gathered->inputs[2]});
    }
    if (all) replaced.emplace_back(&node, std::move(made));
  }
  for (auto& [node, made] : replaced) *node = std::move(made), changed = true;
  if (changed) graph.remove_unused_nodes();
  return changed;
}

}  // namespace ortrain
