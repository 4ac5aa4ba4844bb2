#include "session/parameter_layouts.h"

#include <unordered_set>
#include <vector>

#include "backend/cpu/channels_last.h"
#include "op/operator.h"

namespace ortrain {

std::unordered_map<std::string, LayoutPtr> parameter_layouts(const CheckpointState& state, const Model& train,
                                                             const Model* eval) {
  std::unordered_set<std::string> row_major;  // read by other nodes, which ignore layouts
  std::unordered_set<std::string> weights;    // of convolutions
  for (const Model* model : {&train, eval}) {
    if (!model) continue;
    for (const ValueInfo& output : model->graph.outputs) row_major.insert(output.name);
    for (const Node& node : model->graph.nodes) {
      const Operator* op = find_operator(node.domain, node.op_type);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (op && op->traits.weights == static_cast<int>(i))
          weights.insert(node.inputs[i]);
        else if (!op || (op->traits.any_order >> i & 1) == 0)
          row_major.insert(node.inputs[i]);
      }
      Node inner;  // including the values that only its subgraphs read
      inner.attributes = node.attributes;
      for (std::string& name : values_read(inner)) row_major.insert(std::move(name));
    }
  }
  std::unordered_map<std::string, LayoutPtr> layouts;
  for (const Parameter& p : state.parameters()) {
    if (!p.trainable || p.data.dtype() != DType::kFloat || !weights.contains(p.name) ||
        row_major.contains(p.name) || row_major.contains(p.name + std::string(kBufferSuffix)))
      continue;
    if (LayoutPtr layout = channels_last(p.data.shape())) layouts.emplace(p.name, std::move(layout));
  }
  return layouts;
}

}  // namespace ortrain
