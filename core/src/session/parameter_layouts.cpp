#include "session/parameter_layouts.h"

#include <unordered_set>
#include <vector>

#include "backend/cpu/kernel_library.h"
#include "op/operator.h"

namespace ortrain {

std::unordered_map<std::string, LayoutPtr> parameter_layouts(const CheckpointState& state, const Model& train,
                                                             const Model* eval) {
  std::unordered_set<std::string> row_major;             // read by others, which ignore layouts
  std::unordered_map<std::string, const Node*> readers;  // a convolution for each of its weights
  for (const Model* model : {&train, eval}) {
    if (!model) continue;
    for (const ValueInfo& output : model->graph.outputs) row_major.insert(output.name);
    for (const Node& node : model->graph.nodes) {
      const Operator* op = find_operator(node.domain, node.op_type);
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (op && op->traits.weights == static_cast<int>(i))
          readers.emplace(node.inputs[i], &node);
        else if (!op || (op->traits.any_order >> i & 1) == 0)
          row_major.insert(node.inputs[i]);
      }
      Node inner;  // including what only its subgraphs read
      inner.attributes = node.attributes;
      for (std::string& name : values_read(inner)) row_major.insert(std::move(name));
    }
  }
  std::unordered_map<std::string, LayoutPtr> layouts;
  for (const Parameter& p : state.parameters()) {
    const auto reader = readers.find(p.name);
    if (!p.trainable || p.data.dtype() != DType::kFloat || reader == readers.end() ||
        row_major.contains(p.name) || row_major.contains(p.name + std::string(kBufferSuffix)))
      continue;
    if (LayoutPtr layout = weights_order(*reader->second, p.data.shape()))
      layouts.emplace(p.name, std::move(layout));
  }
  return layouts;
}

}  // namespace ortrain
