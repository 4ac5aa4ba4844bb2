#include "session/graph_states.h"

#include <algorithm>
#include <cstring>

#include "runtime/convert.h"
#include "runtime/memory.h"
#include "runtime/text.h"
#include "runtime/threads.h"
#include "session/parameter_layouts.h"

namespace ortrain {
namespace {

bool goes_with_weights(StateRole role) {
  return role == StateRole::kWeight || role == StateRole::kGradient || role == StateRole::kMoment1 ||
         role == StateRole::kMoment2;
}

// The orders of weights, by name.
std::unordered_map<std::string, LayoutPtr> orders(const TrainingGraph& graph, const SessionOptions& options) {
  if (!is_on(kKeepConvolutionWeights, options)) return {};
  CheckpointState weights;
  for (const GraphState& state : graph.states)
    if (state.role == StateRole::kWeight)
      weights.add_parameter(state.name, true, graph.model.graph.initializers.at(state.name));
  const ThreadScope threads(options.intra_op_threads);
  return parameter_layouts(weights, graph.model, nullptr);
}

}  // namespace

GraphStates::GraphStates(TrainingGraph& graph, const SessionOptions& options) {
  const std::unordered_map<std::string, LayoutPtr> orders = ortrain::orders(graph, options);
  Graph& g = graph.model.graph;
  std::map<StateRole, std::vector<const GraphState*>> by_role;
  for (const GraphState& state : graph.states) by_role[state.role].push_back(&state);
  for (const auto& [role, states] : by_role) {
    size_t bytes = 0;
    for (const GraphState* state : states) bytes += align_up(g.initializers.at(state->name).bytes());
    const Tensor block(DType::kUInt8, Shape{static_cast<int64_t>(bytes)});
    std::memset(block.raw(), 0, bytes);
    if (role == StateRole::kGradient) gradient_block_ = block;
    if (role == StateRole::kStatistics) statistics_block_ = block, kept_statistics_ = block.clone();
    size_t at = 0;
    for (const GraphState* state : states) {
      const Tensor value = g.initializers.at(state->name);
      Parameter& stored = stored_[state->name];
      stored.name = state->name;
      stored.data = Tensor(value.dtype(), value.shape(), block.raw() + at, std::make_shared<Tensor>(block));
      at += align_up(value.bytes());
      if (const auto order = orders.find(state->weight);
          order != orders.end() && goes_with_weights(role) && value.dtype() == DType::kFloat)
        stored.layout = order->second;
      stored.assign(stored.data, value);
      tensors_[state->name] = stored.data;
      const ValueInfo info = *g.info(state->name);
      g.remove_initializer(state->name);
      g.inputs.push_back(info);
      if (role != StateRole::kGradient) visible_.push_back(*state);
    }
  }
  std::sort(visible_.begin(), visible_.end(),
            [](const GraphState& a, const GraphState& b) { return a.name < b.name; });
  if (graph.training_mode.empty()) return;
  tensors_[graph.training_mode] = Tensor::scalar(true);
  const ValueInfo info = *g.info(graph.training_mode);
  g.remove_initializer(graph.training_mode);
  g.inputs.push_back(info);
}

std::unordered_map<std::string, LayoutPtr> GraphStates::layouts() const {
  std::unordered_map<std::string, LayoutPtr> layouts;
  for (const auto& [name, stored] : stored_)
    if (stored.layout) layouts[name] = stored.layout;
  return layouts;
}

std::set<std::string> GraphStates::updated_together() const {
  std::set<std::string> names;
  for (const GraphState& state : visible_)
    if (state.role != StateRole::kStatistics) names.insert(state.name);
  return names;
}

void GraphStates::keep() {
  if (statistics_block_.bytes() > 0) kept_statistics_.copy_from(statistics_block_);
}

void GraphStates::take_back() {
  if (statistics_block_.bytes() > 0) statistics_block_.copy_from(kept_statistics_);
  if (gradient_block_.bytes() > 0) std::memset(gradient_block_.raw(), 0, gradient_block_.bytes());
}

const Parameter& GraphStates::find(const std::string& name) const {
  const auto at = stored_.find(name);
  std::vector<std::string> known;
  for (const GraphState& state : visible_) known.push_back(state.name);
  require(at != stored_.end(), ErrorCode::kInvalidArgument, "the session has no state \"", name, "\"",
          suggestion(name, known));
  return at->second;
}

Tensor GraphStates::get(const std::string& name) const {
  const Parameter& stored = find(name);
  const Tensor value = stored.row_major(stored.data);
  return value.raw() == stored.data.raw() ? value.clone() : value;
}

void GraphStates::set(const std::string& name, const Tensor& value) {
  const Parameter& stored = find(name);
  require(value.size() == stored.data.size(), ErrorCode::kInvalidArgument, "the state \"", name, "\" has ",
          stored.data.size(), " elements, shape ", to_string(stored.data.shape()), "; found ", value.size(),
          ", shape ", to_string(value.shape()));
  require(value.dtype() == stored.data.dtype(), ErrorCode::kInvalidArgument, "the state \"", name,
          "\" is of type ", to_string(stored.data.dtype()), ", found ", to_string(value.dtype()));
  stored.assign(stored.data, value.reshaped(stored.data.shape()));
  for (const GraphState& state : visible_)  // the copy of a weight follows it
    if (state.role == StateRole::kMixedPrecision && state.weight == name)
      from_wide(DType::kFloat16, value.raw(), stored_.at(state.name).data.raw(), value.size());
}

}  // namespace ortrain
