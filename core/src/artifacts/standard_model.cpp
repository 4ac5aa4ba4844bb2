#include "artifacts/standard_model.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "artifacts/forward_model.h"
#include "op/signature.h"
#include "op/standard_form.h"
#include "passes/decompose.h"
#include "passes/passes.h"

namespace ortrain {
namespace {

constexpr int64_t kFirstStandardOpset = 17;

// Adds to `found` the nodes, also of subgraphs, whose operators ONNX does not define.
void find_others(const Graph& graph, std::vector<const Node*>& found) {
  for (const Node& node : graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (!op || !is_of_onnx(*op)) found.push_back(&node);
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
        find_others(**inner, found);
  }
}

// Throws if a node remains that other runtimes do not know. `problems`: why nodes could not be replaced.
void check_standard(const Graph& graph, std::vector<std::string> problems) {
  std::vector<const Node*> others;
  find_others(graph, others);
  for (const Node* node : others) {
    const std::string label = node->label();
    if (std::none_of(problems.begin(), problems.end(),
                     [&](const std::string& problem) { return problem.starts_with(label); }))
      problems.push_back(concat(label, ": ", node->qualified_type(), " has no standard form"));
  }
  if (problems.empty()) return;
  std::string text;
  for (const std::string& problem : problems) text += "\n" + problem;
  fail(ErrorCode::kNotImplemented, "the model cannot be written with only standard operators of ONNX:", text);
}

// Removes types and shapes of values that the graph no longer has.
void drop_stale_information(Graph& graph) {
  std::unordered_set<std::string> made;
  for (const Node& node : graph.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::erase_if(graph.value_info, [&](const auto& entry) { return !made.contains(entry.first); });
}

}  // namespace

Model standard_model(const Model& model) {
  require(model.opset("") >= kFirstStandardOpset, ErrorCode::kInvalidArgument,
          "writing a model with only standard operators of ONNX needs opset ", kFirstStandardOpset,
          " or later, but the model has opset ", model.opset(""),
          "; convert it with onnx.version_converter first");
  Model result = model;
  Graph& graph = result.graph;
  drop_unused_outputs(graph);
  const std::vector<std::string> problems = decompose_operators(result, DecomposeFor::kStandard);
  check_standard(graph, problems);
  remove_identity(result);
  common_subexpression_elimination(result);
  graph.remove_unused_nodes();
  graph.remove_unused_initializers();
  graph.sort();
  drop_stale_information(graph);
  std::erase_if(result.opsets,
                [](const auto& entry) { return !entry.first.empty() && entry.first != "ai.onnx.ml"; });
  check_signatures(result);
  return result;
}

}  // namespace ortrain
