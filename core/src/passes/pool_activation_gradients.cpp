// The gradient of Relu is applied to pooled values instead of the values before pooling, of which there are
// more. The values before pooling are then not kept for the backward pass.
//
//   P, saved = MaxPool(Y), Y = Relu(X)
//   ReluGrad(MaxPoolGrad(dP, saved), Y)  →  MaxPoolGrad(ReluGrad(dP, P), saved)
//
// Each element of dP goes to an element of Y that has the same value as P, so the condition is the same.
#include <utility>

#include "op/operator.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {

bool pool_activation_gradients(Model& model) {
  Graph& graph = model.graph;
  const Pattern pattern(graph);
  bool changed = false;
  for (Node& last : graph.nodes) {
    if (last.domain != kMicrosoft || last.op_type != "ReluGrad") continue;
    const Node* scatter = pattern.made_by(last.inputs[0], "MaxPoolGrad");
    if (!scatter || pattern.uses(last.inputs[0]) != 1) continue;
    const Node* pool = pattern.made_by(scatter->inputs[1], "MaxPool");
    if (!pool || pool->inputs[0] != last.inputs[1]) continue;
    // The two nodes change places and outputs.
    Node& first = graph.nodes[static_cast<size_t>(scatter - graph.nodes.data())];
    std::swap(first, last);
    std::swap(first.outputs, last.outputs);
    const std::string between = graph.unique_name(pool->outputs[0] + "_grad");
    first.outputs = {between};
    first.inputs = {std::exchange(last.inputs[0], between), pool->outputs[0]};
    changed = true;
  }
  return changed;
}

}  // namespace ortrain
