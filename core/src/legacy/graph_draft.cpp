// Functions that add nodes, constants, inputs, outputs and states to a training graph under free names. All
// parts of the construction use them, and each part is in a separate file. This file also writes a draft to
// the file that an option names, and computes halves and slices of weights.
#include "legacy/graph_draft.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "graph/onnx_io.h"
#include "infer/value_types.h"
#include "runtime/convert.h"
#include "runtime/error.h"
#include "runtime/path.h"

namespace ortrain {

GraphDraft::GraphDraft(const ProcessPart& part) : part(part) {}

int64_t GraphDraft::accumulated() const { return std::max<int64_t>(1, p.gradient_accumulation_steps); }

std::string GraphDraft::add(const std::string& type, const std::vector<std::string>& inputs,
                            const std::string& output, const Attributes& attributes,
                            const std::string& domain) {
  Node node;
  node.domain = domain;
  node.op_type = type;
  node.name = graph.unique_name(output + "/" + type);
  node.inputs = inputs;
  node.outputs = {output};
  node.attributes = attributes;
  graph.nodes.push_back(std::move(node));
  return output;
}

std::string GraphDraft::constant(const std::string& base, Tensor value) {
  const std::string name = graph.unique_name(base);
  graph.add_initializer(name, std::move(value));
  return name;
}

void GraphDraft::add_input(const std::string& name, const char* what) {
  require(graph.unique_name(name) == name, ErrorCode::kInvalidArgument, what, ": the model has a value \"",
          name, "\" already");
  graph.inputs.push_back({name, DType::kFloat, std::vector<Dim>{Dim{1, ""}}});
}

void GraphDraft::remove_input(const std::string& name) {
  std::erase_if(graph.inputs, [&](const ValueInfo& info) { return info.name == name; });
}

void GraphDraft::add_output(const std::string& name, DType dtype, std::optional<std::vector<Dim>> dims) {
  graph.outputs.push_back({name, dtype, std::move(dims)});
}

void GraphDraft::add_state(const std::string& name, StateRole role, const std::string& weight, Tensor value) {
  require(graph.unique_name(name) == name, ErrorCode::kInvalidArgument, "the model has a value \"", name,
          "\" already, which is the name of a state of the optimizer");
  graph.add_initializer(name, std::move(value));
  out.states.push_back({name, role, weight});
}

void GraphDraft::restore_weights(Graph& graph) const {
  for (const std::string& weight : weights) {
    std::erase_if(graph.inputs, [&](const ValueInfo& info) { return info.name == weight; });
    if (!graph.is_initializer(weight)) graph.add_initializer(weight, weight_value(weight).clone());
  }
}

void GraphDraft::dump(const std::string& path) const {
  if (path.empty() || p.world_rank != 0) return;
  Model model = out.model;
  restore_weights(model.graph);
  for (const auto& [weight, half] : halves) {
    if (!model.graph.is_input(half)) continue;
    std::erase_if(model.graph.inputs, [&, &name = half](const ValueInfo& info) { return info.name == name; });
    model.graph.add_initializer(half, half_of(weight_value(weight)));
  }
  for (const ValueInfo& info : own_outputs)
    if (!model.graph.is_output(info.name)) model.graph.outputs.push_back(info);
  if (model.graph.name.empty()) model.graph.name = "graph";
  std::unordered_set<std::string> made;
  for (const Node& node : model.graph.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::erase_if(model.graph.value_info, [&](const auto& info) { return !made.count(info.first); });
  model.graph.outputs = inferred_outputs(model, true);
  write_model(model, from_utf8(path));
}

Tensor zeros(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  std::memset(tensor.raw(), 0, tensor.bytes());
  return tensor;
}

Tensor half_of(const Tensor& value) {
  Tensor half(DType::kFloat16, value.shape());
  from_wide(DType::kFloat16, value.raw(), half.raw(), value.size());
  return half;
}

Tensor elements_of(const Tensor& whole, int64_t first, int64_t count) {
  const Tensor part(whole.dtype(), Shape{count});
  std::memcpy(part.raw(), whole.raw() + bytes_of(whole.dtype(), first), part.bytes());
  return part;
}

}  // namespace ortrain
