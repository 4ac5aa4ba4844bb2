#include "artifacts/forward_model.h"

#include <algorithm>

#include "op/operator.h"
#include "passes/decompose.h"
#include "passes/pass.h"

namespace ortrain {

void prepare_forward(Model& model, const std::set<std::string>& parameters,
                     const std::map<std::string, std::string>& config, std::vector<std::string>& problems) {
  Graph& graph = model.graph;
  const auto is_users = [&](const ValueInfo& v) { return parameters.count(v.name) == 0; };
  std::stable_partition(graph.inputs.begin(), graph.inputs.end(), is_users);
  const std::vector<std::string> initializers = graph.initializer_order;
  for (const std::string& name : initializers) {
    if (!parameters.count(name)) continue;
    graph.inputs.push_back(*graph.info(name));
    graph.remove_initializer(name);
  }
  graph.remove_unused_nodes();
  std::vector<std::string> unexpanded = decompose_operators(model, DecomposeFor::kGradient);
  problems.insert(problems.end(), unexpanded.begin(), unexpanded.end());
  run_passes(model, PassPhase::kArtifact, config, static_cast<int>(PassLevel::kExtended), "forward");
}

void reject_training(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += "\n" + problem;
  fail(ErrorCode::kNotImplemented, "the model cannot be trained:", text);
}

// Clears the names of outputs that nothing reads and that the operator need not produce, so they are not
// computed.
void drop_unused_outputs(Graph& graph) {
  const auto uses = count_uses(graph);
  for (Node& node : graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    if (!op || !op->traits.optional_outputs) continue;
    for (std::string& output : node.outputs)
      if (!uses.count(output)) output.clear();
    while (!node.outputs.empty() && node.outputs.back().empty()) node.outputs.pop_back();
  }
}

}  // namespace ortrain
