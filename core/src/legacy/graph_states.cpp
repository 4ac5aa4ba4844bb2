// Stores the values that a training graph updates: one block of memory for each role, such as weights,
// gradients or first moments, in which each value is a view. Programs read and write the values by name or as
// one buffer. The session (training_graph_session.cpp) runs the graph, and this file alone knows where a
// value is.
#include "legacy/graph_states.h"

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
std::unordered_map<std::string, LayoutPtr> orders(const std::vector<GraphState>& states, const Model& model,
                                                  const SessionOptions& options) {
  if (!is_on(kKeepConvolutionWeights, options)) return {};
  CheckpointState weights;
  for (const GraphState& state : states)
    if (state.role == StateRole::kWeight)
      weights.add_parameter(state.name, true, model.graph.initializers.at(state.name));
  const ThreadScope threads(options.intra_op_threads);
  return parameter_layouts(weights, model, nullptr);
}

}  // namespace

GraphStates::GraphStates(const std::vector<GraphState>& all, const std::string& training_mode, Model& model,
                         const SessionOptions& options) {
  std::unordered_map<std::string, LayoutPtr> orders = ortrain::orders(all, model, options);
  Graph& g = model.graph;
  std::map<StateRole, std::vector<const GraphState*>> by_role;
  std::vector<const GraphState*> parts;
  for (const GraphState& state : all) {
    (state.view_of.empty() ? by_role[state.role] : parts).push_back(&state);
    if (!state.view_of.empty()) orders.erase(state.weight);  // a part is a range in row-major order
    if (state.role == StateRole::kWeight) weight_of_[state.name] = state.weight;
    if (state.role == StateRole::kMixedPrecision && state.view_of.empty())
      copy_of_[state.weight] = state.name;
  }
  for (auto& [role, states] : by_role) {
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
      if (role != StateRole::kGradient && !state->hidden) visible_.push_back(*state);
    }
    std::sort(states.begin(), states.end(),
              [](const GraphState* a, const GraphState* b) { return a->weight < b->weight; });
    for (const GraphState* state : states) order_[role].push_back(state->name);
  }
  for (const GraphState* part : parts) {
    const Tensor value = g.initializers.at(part->name);
    const Tensor whole = stored_.at(part->view_of).data;
    Parameter& stored = stored_[part->name];
    stored.name = part->name;
    stored.data = Tensor(value.dtype(), value.shape(), whole.raw() + bytes_of(value.dtype(), part->first),
                         std::make_shared<Tensor>(whole));
    tensors_[part->name] = stored.data;
    const ValueInfo info = *g.info(part->name);
    g.remove_initializer(part->name);
    g.inputs.push_back(info);
    if (part->role != StateRole::kGradient) visible_.push_back(*part);
  }
  std::sort(visible_.begin(), visible_.end(),
            [](const GraphState& a, const GraphState& b) { return a.name < b.name; });
  if (training_mode.empty()) return;
  tensors_[training_mode] = Tensor::scalar(true);
  const ValueInfo info = *g.info(training_mode);
  g.remove_initializer(training_mode);
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
          counted(stored.data.size(), "element"), ", shape ", to_string(stored.data.shape()), "; found ",
          value.size(), ", shape ", to_string(value.shape()));
  require(value.dtype() == stored.data.dtype(), ErrorCode::kInvalidArgument, "the state \"", name,
          "\" is of type ", to_string(stored.data.dtype()), ", found ", to_string(value.dtype()));
  stored.assign(stored.data, value.reshaped(stored.data.shape()));
  if (const auto weight = weight_of_.find(name); weight != weight_of_.end()) renew_copy(weight->second);
}

// Updates the 16-bit copy of a weight.
void GraphStates::renew_copy(const std::string& weight) {
  const auto copy = copy_of_.find(weight);
  if (copy == copy_of_.end()) return;
  const Parameter& stored = stored_.at(weight);
  const Tensor value = stored.row_major(stored.data);
  from_wide(DType::kFloat16, value.raw(), stored_.at(copy->second).data.raw(), value.size());
}

const std::vector<std::string>& GraphStates::in_order(StateRole role) const {
  static const std::vector<std::string> kNone;
  const auto at = order_.find(role);
  return at == order_.end() ? kNone : at->second;
}

void GraphStates::check_buffer(StateRole role, const Tensor& buffer, const char* doing) const {
  int64_t count = 0;
  require(!in_order(role).empty(), ErrorCode::kInvalidArgument, doing,
          ": the session has no state that is a ", to_string(role));
  const DType dtype = stored_.at(in_order(role).front()).data.dtype();
  for (const std::string& name : in_order(role)) {
    const Tensor& data = stored_.at(name).data;
    require(data.dtype() == dtype, ErrorCode::kInvalidArgument, doing, ": expected one type, found ",
            to_string(dtype), " and, for \"", name, "\", ", to_string(data.dtype()));
    count += data.size();
  }
  require(buffer.dtype() == dtype && buffer.size() == count, ErrorCode::kInvalidArgument, doing,
          ": expected a buffer of ", counted(count, "element"), " of type ", to_string(dtype), ", found ",
          buffer.size(), " of type ", to_string(buffer.dtype()));
}

void GraphStates::copy_to_buffer(StateRole role, const Tensor& buffer) const {
  check_buffer(role, buffer, "copying the state to a buffer");
  std::byte* at = buffer.raw();
  for (const std::string& name : in_order(role)) {
    const Parameter& stored = stored_.at(name);
    if (stored.data.bytes() > 0) std::memcpy(at, stored.row_major(stored.data).raw(), stored.data.bytes());
    at += stored.data.bytes();
  }
}

void GraphStates::copy_from_buffer(StateRole role, const Tensor& buffer) {
  check_buffer(role, buffer, "copying a buffer to the state");
  std::byte* at = buffer.raw();
  for (const std::string& name : in_order(role)) {
    const Parameter& stored = stored_.at(name);
    stored.assign(stored.data, Tensor(stored.data.dtype(), stored.data.shape(), at));
    at += stored.data.bytes();
    if (role == StateRole::kWeight) renew_copy(name);
  }
}

GraphStates::Places GraphStates::places(StateRole role, const Tensor& buffer) const {
  check_buffer(role, buffer, "run with a buffer for gradients");
  Places places;
  size_t first = 0;
  for (const std::string& name : in_order(role)) {
    const auto count = static_cast<size_t>(stored_.at(name).data.size());
    places[name] = {first, count};
    first += count;
  }
  return places;
}

void GraphStates::copy_one(const std::string& name, const Tensor& buffer, size_t first) const {
  const Parameter& stored = stored_.at(name);
  if (stored.data.bytes() == 0) return;
  std::memcpy(buffer.raw() + bytes_of(buffer.dtype(), static_cast<int64_t>(first)),
              stored.row_major(stored.data).raw(), stored.data.bytes());
}

}  // namespace ortrain
