// An activation after a convolution is applied while the result is still in registers:
//
//   Relu(Conv(X, W, B))  →  FusedConv(X, W, B, activation=Relu)        the same for Clip with constant bounds
//
// Gradients do not need the convolution's own result: the gradient of Relu is expressed in terms of its
// output.
#include <limits>

#include "op/operator.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

struct Found {
  size_t last;       // number of the activation's node
  std::string conv;  // the convolution's output
  std::string activation;
  std::vector<float> parameters;
};

std::optional<Found> match(const Pattern& p, const Node& node, size_t n) {
  if (!node.domain.empty()) return std::nullopt;
  Found found{n, "", node.op_type, {}};
  if (node.op_type == "Clip") {
    found.parameters = {node.float_or("min", std::numeric_limits<float>::lowest()),
                        node.float_or("max", std::numeric_limits<float>::max())};
    for (size_t i = 1; i < 3; ++i) {
      if (!node.has_input(i)) continue;
      const std::optional<double> bound = p.scalar(node.inputs[i]);
      if (!bound) return std::nullopt;
      found.parameters[i - 1] = static_cast<float>(*bound);
      if (found.parameters[i - 1] != *bound) return std::nullopt;  // the attribute would round it
    }
  } else if (node.op_type == "LeakyRelu") {
    found.parameters = {node.float_or("alpha", 0.01f)};
  } else if (node.op_type != "Relu") {
    return std::nullopt;
  }
  const std::string& input = node.inputs.at(0);
  if (!p.made_by(input, "Conv") || p.uses(input) != 1) return std::nullopt;
  found.conv = input;
  return found;
}

}  // namespace

bool fuse_conv_activation(Model& model) {
  Graph& graph = model.graph;
  std::vector<Found> found;
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto match_here = match(pattern, graph.nodes[n], n)) found.push_back(std::move(*match_here));
  }
  std::unordered_map<std::string, size_t> producer;
  for (size_t n = 0; n < graph.nodes.size(); ++n)
    for (const std::string& output : graph.nodes[n].outputs) producer[output] = n;
  for (Found& f : found) {
    Node& last = graph.nodes[f.last];
    Node fused = graph.nodes[producer.at(f.conv)];
    fused.op_type = "FusedConv";
    fused.domain = kMicrosoft;
    fused.outputs = last.outputs;
    fused.attributes["activation"] = f.activation;
    if (!f.parameters.empty()) fused.attributes["activation_params"] = std::move(f.parameters);
    last = std::move(fused);
  }
  if (!found.empty()) model.opsets.emplace(kMicrosoft, 1);
  return !found.empty();
}

}  // namespace ortrain
