// Builds a training graph: the order of its parts. Each part is a function that adds to a GraphDraft
// (graph_draft.h), in a separate file:
//
//     process_part.h           the part of the model that this process trains
//     trained_weights.h        which weights are trained
//     mixed_precision_graph.h  16-bit copies of weights, and the loss scale
//     graph_gradients.h        gradients, and recomputation
//     accumulation.h           buffers of gradients, and their norm
//     graph_updates.h          the states that this process updates
//     graph_optimizers.h       the nodes that update them
#include "legacy/training_graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "artifacts/forward_model.h"
#include "artifacts/gradient_nodes.h"
#include "legacy/accumulation.h"
#include "legacy/graph_draft.h"
#include "legacy/graph_gradients.h"
#include "legacy/graph_optimizers.h"
#include "legacy/half_precision.h"
#include "legacy/mixed_precision_graph.h"
#include "legacy/process_part.h"
#include "legacy/trained_weights.h"
#include "legacy/transformer_role.h"
#include "op/operator.h"

namespace ortrain {

const char* to_string(StateRole role) {
  switch (role) {
    case StateRole::kWeight:
      return "weight";
    case StateRole::kStatistics:
      return "statistics";
    case StateRole::kMixedPrecision:
      return "mixed_precision";
    case StateRole::kMoment1:
      return "Moment_1";
    case StateRole::kMoment2:
      return "Moment_2";
    case StateRole::kUpdateCount:
      return "Update_Count";
    case StateRole::kStep:
      return "Step";
    case StateRole::kGradient:
      return "gradient";
    case StateRole::kRandom:
      return "random";
  }
  return "";
}

namespace {

// Adds an input that states whether dropouts drop.
void use_training_mode(GraphDraft& d) {
  for (Node& node : d.graph.nodes) {
    if (transformer_role(node) != TransformerRole::kDropout || !node.has_input(2)) continue;
    if (d.out.training_mode.empty()) {
      d.out.training_mode = d.graph.unique_name("training_mode");
      d.graph.inputs.push_back({d.out.training_mode, DType::kBool, std::vector<Dim>{}});
    }
    node.inputs[2] = d.out.training_mode;
  }
}

// Makes the forward model: its outputs, the loss among them, with the weights as inputs.
void make_forward(GraphDraft& d) {
  d.out.model = d.forward;
  d.out.model.opsets.emplace(kMicrosoft, 1);
  expand_gradient_nodes(d.out.model);
  d.own_outputs = d.graph.outputs;
  if (!d.graph.is_output(d.p.loss_output_name))
    d.graph.outputs.push_back(
        d.graph.info(d.p.loss_output_name)
            .value_or(ValueInfo{d.p.loss_output_name, DType::kUndefined, std::nullopt}));
  std::vector<std::string> problems;
  propagate_casts(d.out.model, d.p.propagate_cast_ops_level, d.p.propagate_cast_ops_allow);
  prepare_forward(d.out.model, {d.weights.begin(), d.weights.end()}, d.request.config, problems);
  if (!problems.empty()) reject_training(problems);
  use_training_mode(d);
  d.dump(d.p.model_after_graph_transforms_path);
  use_halves(d);
}

// Initializers that nodes other than the optimizer's update.
void find_statistics(GraphDraft& d) {
  std::set<std::string> known;
  for (const GraphState& state : d.out.states) known.insert(state.name);
  for (const Node& node : d.graph.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    for (size_t i = 0; op && i < node.inputs.size() && i < 32; ++i)
      if ((op->traits.updates >> i & 1) && d.graph.is_initializer(node.inputs[i]) &&
          known.insert(node.inputs[i]).second)
        d.out.states.push_back({node.inputs[i], StateRole::kStatistics, ""});
  }
}

// Makes the weights states, although no node updates them: callers can read and replace them.
void show_weights(GraphDraft& d) {
  for (const std::string& weight : d.weights) {
    d.out.states.push_back({weight, StateRole::kWeight, weight});
    add_half_state(d, weight);
  }
}

void add_optimizer(GraphDraft& d, const OptimizerKind* optimizer) {
  if (d.has_buffers()) accumulate(d);
  if (!optimizer) return;
  const bool needs_norm = d.p.enable_grad_norm_clip || d.p.use_mixed_precision;
  add_updates(d, *optimizer, needs_norm ? add_norm(d) : GradientNorm{});
}

}  // namespace

TrainingGraph build_training_graph(const Model& forward, const TrainingGraphRequest& request) {
  const ProcessPart part = process_part(forward, request);
  GraphDraft d(part);
  choose_weights(d);
  const OptimizerKind* optimizer = choose_optimizer(d);
  make_forward(d);
  add_gradients(d);
  d.dump(d.p.model_with_gradient_graph_path);
  add_optimizer(d, optimizer);
  d.restore_weights(d.graph);
  find_statistics(d);
  if (!optimizer) show_weights(d);
  if (!d.out.training_mode.empty()) {
    d.remove_input(d.out.training_mode);
    d.graph.add_initializer(d.out.training_mode, Tensor::scalar(true));
  }
  d.graph.sort();
  d.dump(d.p.model_with_training_graph_path);
  d.out.warnings.insert(d.out.warnings.end(), part.warnings.begin(), part.warnings.end());
  for (GraphState& state : d.out.states)
    if (const auto whole = part.divided.find(state.weight); whole != part.divided.end())
      state.part = std::make_shared<DividedWeight>(whole->second);
  return std::move(d.out);
}

}  // namespace ortrain
