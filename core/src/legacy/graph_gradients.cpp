// Adds the gradients to a training graph: runs the gradient builder, adds nodes that compute values a second
// time if an option says so, and makes gradients outputs. The choice of the values that are computed again is
// here, because it depends on the parameters; finding them in a graph and copying their nodes is in
// recomputed_nodes.cpp.
#include "legacy/graph_gradients.h"

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "artifacts/forward_model.h"
#include "autodiff/gradient_builder.h"
#include "legacy/mixed_precision_graph.h"
#include "legacy/recomputed_nodes.h"
#include "op/operator.h"
#include "ops/nn/layer_normalization.h"
#include "passes/decompose.h"
#include "passes/pass.h"
#include "runtime/error.h"

namespace ortrain {
namespace {

// Has gradients of layer normalizations read the output instead of the input, so that the input need not be
// kept.
void use_outputs_of_normalizations(Graph& graph) {
  std::unordered_map<std::string, Node> producers;
  for (const Node& node : graph.nodes)
    for (const std::string& output : node.outputs) producers[output] = node;
  for (Node& node : graph.nodes) {
    if (node.inputs.empty()) continue;
    const auto forward = producers.find(node.inputs.back());  // the statistics come last
    if (forward == producers.end()) continue;
    if (auto changed = layer_normalization_gradient_from_output(node, forward->second)) node = *changed;
  }
}

// The values that a graph still has after a session has fused its nodes.
std::unordered_set<std::string> values_after_passes(const GraphDraft& d) {
  Model model = d.out.model;
  for (const std::string& weight : d.weights)
    model.graph.outputs.push_back({d.gradients.at(weight), DType::kUndefined, std::nullopt});
  decompose_operators(model, DecomposeFor::kRun);
  run_passes(model, PassPhase::kSession, d.request.config, d.request.optimization_level, "training graph");
  std::unordered_set<std::string> values;
  for (const Node& node : model.graph.nodes) values.insert(node.outputs.begin(), node.outputs.end());
  return values;
}

// Has the values that the recompute options name computed again for the gradients.
void add_recomputation(GraphDraft& d, const std::unordered_set<std::string>& forward_values) {
  std::set<std::string> values;
  Graph forward = d.graph;
  std::erase_if(forward.nodes, [&](const Node& node) {
    return std::none_of(node.outputs.begin(), node.outputs.end(),
                        [&](const std::string& v) { return forward_values.count(v) > 0; });
  });
  if (d.p.gelu_recompute) values.merge(gelu_outputs(forward));
  if (d.p.attn_dropout_recompute) {
    // The node of a fused attention recomputes its inner values anyway, and second copies of them would
    // prevent the fusion.
    const std::unordered_set<std::string> kept = values_after_passes(d);
    for (const std::string& value : attention_dropout_outputs(forward))
      if (kept.count(value)) values.insert(value);
  }
  if (d.p.transformer_layer_recompute) {
    std::unordered_set<std::string> weights(d.weights.begin(), d.weights.end());
    for (const auto& [weight, half] : d.halves) weights.insert(half);
    auto layers = transformer_layers(forward, weights, d.p.loss_output_name);
    const auto found = static_cast<int64_t>(layers.size());
    int64_t count = d.p.number_recompute_layers;
    require(count >= 0, ErrorCode::kInvalidArgument, "number_recompute_layers: expected 0 or more, found ",
            count);
    if (count > found) {
      d.out.warnings.push_back(concat("number_recompute_layers is ", count, ", but the model has ",
                                      counted(found, "transformer layer"), ": all of them are recomputed"));
      count = found;
    } else if (count == 0) {
      count = std::max<int64_t>(0, found - 1);
    }
    for (int64_t k = 0; k < count; ++k) values.merge(layers[static_cast<size_t>(k)]);
  }
  if (values.empty()) return;
  recompute(d.graph, forward_values, values);
  d.out.recomputes = true;
}

// Has the gradients of weights become outputs, <weight>_grad.
void show_gradients(GraphDraft& d) {
  for (const std::string& weight : d.weights) {
    std::string& gradient = d.gradients[weight];
    const std::string name = weight + "_grad";
    if (d.halves.count(weight))
      gradient =
          d.add("Cast", {gradient}, d.graph.unique_name(name), {{"to", static_cast<int64_t>(DType::kFloat)}});
    require(gradient == name, ErrorCode::kInvalidArgument,
            "set_gradients_as_graph_outputs: the model has a value \"", name,
            "\" already, so the gradient of \"", weight, "\" cannot have that name");
    ValueInfo info = *d.forward.graph.info(weight);
    info.name = name;
    d.graph.outputs.push_back(std::move(info));
  }
}

}  // namespace

void add_gradients(GraphDraft& d) {
  GradientRequest request{{}, d.p.loss_output_name, {}};
  for (const std::string& weight : d.weights)
    request.trainable.push_back(d.halves.count(weight) ? d.halves.at(weight) : weight);
  for (const std::string& input : d.part.received)
    if (is_floating(d.forward.graph.info(input)->dtype)) request.trainable.push_back(input);
  request.loss = add_loss_scale(d);
  std::unordered_set<std::string> forward_values;
  for (const Node& node : d.graph.nodes) forward_values.insert(node.outputs.begin(), node.outputs.end());
  forward_values.erase("");
  GradientBuilder builder(d.out.model, request, false);
  builder.run();
  if (const std::vector<std::string> problems = builder.problems(); !problems.empty())
    reject_training(problems);
  for (size_t i = 0; i < d.weights.size(); ++i)
    d.gradients[d.weights[i]] = builder.gradient_of(request.trainable[i]);
  if (d.p.use_memory_efficient_gradient) use_outputs_of_normalizations(d.graph);
  d.graph.outputs = d.own_outputs;
  for (ValueInfo& info : d.graph.outputs)
    if (const ValueInfo& known = builder.info(info.name); known.dtype != DType::kUndefined)
      info.dtype = known.dtype;
  for (size_t i = d.weights.size(); i < request.trainable.size(); ++i) {
    ValueInfo info = *d.forward.graph.info(request.trainable[i]);
    info.name = d.add("Identity", {builder.gradient_of(request.trainable[i])},
                      d.graph.unique_name(info.name + "_input_grad"));
    d.graph.outputs.push_back(std::move(info));
  }
  add_recomputation(d, forward_values);
  if (d.p.set_gradients_as_graph_outputs) show_gradients(d);
}

}  // namespace ortrain
