#include "op/subgraph_context.h"

#include <algorithm>

#include "runtime/error.h"

namespace ortrain {

std::vector<std::string> add_node(const std::function<std::string(const std::string& base)>& unique,
                                  Graph& graph, const std::string& op_type,
                                  const std::vector<std::string>& inputs, size_t output_count,
                                  NewAttributes attributes) {
  Node node;
  node.op_type = op_type;
  node.name = unique(concat(graph.name, "/", op_type));
  node.inputs = inputs;
  for (size_t o = 0; o < output_count; ++o) node.outputs.push_back(unique(node.name + "_output"));
  node.attributes = attributes.made();
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().outputs;
}

std::string add_node(SubgraphContext& s, Graph& graph, const std::string& op_type,
                     const std::vector<std::string>& inputs, NewAttributes attributes) {
  return add_node([&](const std::string& base) { return s.unique(base); }, graph, op_type, inputs, 1,
                  attributes)[0];
}

std::string add_zeros_like(SubgraphContext& s, Graph& graph, const std::string& like, DType dtype) {
  const std::string shape = add_node(s, graph, "Shape", {like});
  return add_node(s, graph, "ConstantOfShape", {shape}, {{"value", Tensor::scalar(dtype, 0).reshaped({1})}});
}

std::vector<std::string> values_read(const Graph& graph) {
  Node reader;
  reader.attributes["graph"] = std::make_shared<Graph>(graph);
  std::vector<std::string> read = values_read(reader);
  std::sort(read.begin(), read.end());
  read.erase(std::unique(read.begin(), read.end()), read.end());
  return read;
}

}  // namespace ortrain
