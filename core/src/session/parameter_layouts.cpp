#include "session/parameter_layouts.h"

#include <unordered_set>
#include <vector>

#include "op/operator.h"
#include "ops/common/convolution_weights.h"

namespace ortrain {

namespace {

bool is_accumulated(const Node& node, size_t input) {
  return node.domain == kMicrosoft && node.op_type == "InPlaceAccumulatorV2" && input == 0;
}

}  // namespace

std::unordered_map<std::string, LayoutPtr> parameter_layouts(const CheckpointState& state, const Model& train,
                                                             const Model* eval) {
  std::unordered_set<std::string> row_major;             // what others read, which do not look at layouts
  std::unordered_map<std::string, const Node*> readers;  // a convolution for each of its weights
  for (const Model* model : {&train, eval}) {
    if (!model) continue;
    for (const ValueInfo& output : model->graph.outputs) row_major.insert(output.name);
    for (const Node& node : model->graph.nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (reads_convolution_weights(node, i))
          readers.emplace(node.inputs[i], &node);
        else if (!is_accumulated(node, i))
          row_major.insert(node.inputs[i]);
      }
      Node inner;  // with what its subgraphs read alone
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
    if (LayoutPtr layout = convolution_weights_order(*reader->second, p.data.shape()))
      layouts.emplace(p.name, std::move(layout));
  }
  return layouts;
}

}  // namespace ortrain
