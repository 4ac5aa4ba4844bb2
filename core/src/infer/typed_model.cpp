#include "infer/typed_model.h"

#include <memory>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "graph/ort_writer.h"
#include "infer/value_types.h"
#include "op/signature.h"
#include "runtime/file.h"

namespace ortrain {

namespace {

using Problems = std::set<std::string>;  // of all graphs; those of a body are also problems of its node

bool is_constant(const Node& node) { return node.domain.empty() && node.op_type == "Constant"; }

void state_types(Graph& graph, const ValueTypes& types) {
  std::unordered_map<std::string, ValueInfo> values;
  for (const ValueInfo& input : graph.inputs) values.emplace(input.name, types.info(input.name));
  for (const ValueInfo& output : graph.outputs) values.emplace(output.name, types.info(output.name));
  for (const std::string& name : graph.initializer_order) values.emplace(name, *graph.info(name));
  for (const Node& node : graph.nodes) {
    for (const std::string& name : values_read(node)) values.emplace(name, types.info(name));
    for (const std::vector<std::string>* names : {&node.inputs, &node.outputs})
      for (const std::string& name : *names) values.emplace(name, types.info(name));
  }
  for (const std::vector<ValueInfo>* side : {&graph.inputs, &graph.outputs})
    for (const ValueInfo& stated : *side) {
      ValueInfo& value = values.at(stated.name);
      if (value.dtype == DType::kUndefined || (stated.dtype == value.dtype && stated.dims)) value = stated;
    }
  for (auto& [name, value] : values) forget_made_up_names(value);
  graph.value_info = std::move(values);
}

void move_constants(Graph& graph, const ValueTypes& types) {
  std::erase_if(graph.nodes, [&](const Node& node) {
    const Tensor* value = is_constant(node) && node.has_output(0) ? types.constant(node.outputs[0]) : nullptr;
    if (value != nullptr) graph.add_initializer(node.outputs[0], *value);
    return value != nullptr;
  });
}

Graph typed_graph(const Graph& graph, const ValueTypes& types, Problems& problems) {
  problems.insert(types.problems().begin(), types.problems().end());
  Graph out = graph;
  for (Node& node : out.nodes)
    for (auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute)) {
        const ValueTypes inside(**inner, types.subgraph_inputs(node, name), types);
        attribute = std::make_shared<Graph>(typed_graph(**inner, inside, problems));
      }
  state_types(out, types);
  move_constants(out, types);
  return out;
}

OrtOperator operator_of(const Node& node, int64_t opset) {
  OrtOperator out;
  if (const auto stated = onnx_version(node.domain, node.op_type, opset)) {
    out.since = stated->since;
    out.types = type_parameters(stated->types);
  }
  out.inputs = inputs_by_parameter(node, opset);
  return out;
}

}  // namespace

Model typed_model(const Model& model, std::set<std::string>& problems) {
  Model out = model;
  out.graph = typed_graph(model.graph, ValueTypes(model), problems);
  return out;
}

std::string write_ort_model(const Model& model) {
  return write_ort_model(model, OrtFacts{typed_model, operator_of});
}

void write_ort_model(const Model& model, const std::filesystem::path& path) {
  const std::string content = write_ort_model(model);
  write_file(path, "model", content.data(), content.size());
}

}  // namespace ortrain
