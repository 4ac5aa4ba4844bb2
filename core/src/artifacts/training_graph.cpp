#include "artifacts/training_graph.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "artifacts/forward_model.h"
#include "artifacts/gradient_nodes.h"
#include "artifacts/half_precision.h"
#include "artifacts/horizontal_split.h"
#include "artifacts/pipeline_stage.h"
#include "artifacts/ranks.h"
#include "artifacts/recomputed_nodes.h"
#include "artifacts/training_model.h"
#include "autodiff/gradient_builder.h"
#include "graph/onnx_io.h"
#include "infer/value_types.h"
#include "op/operator.h"
#include "op/transformer_role.h"
#include "ops/nn/layer_normalization.h"
#include "passes/decompose.h"
#include "passes/pass.h"
#include "runtime/convert.h"
#include "runtime/text.h"

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

constexpr float kSmallestHalf = 0x1p-24f;  // of float16, above zero
constexpr const char* kShared = "shared_optimizer_state";

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

// What an optimizer node updates: a weight, or with ZeRO a part of one.
struct Update {
  std::string weight;  // whose settings it has
  std::string name;    // of the state
  std::string half;    // of the 16-bit copy; empty: none
  std::string gradient;
  int64_t first = 0, count = 0;
  bool whole = true;
};

// The parts of an optimizer.
struct OptimizerKind {
  const char* type;
  bool moments, counts_per_weight, shares_step;
  std::vector<const char*> floats, ints;
};
const OptimizerKind kOptimizers[] = {
    {"AdamOptimizer",
     true,
     true,
     false,
     {"alpha", "beta", "lambda", "epsilon", "max_norm_clip"},
     {"do_bias_correction", "weight_decay_mode"}},
    {"LambOptimizer",
     true,
     false,
     true,
     {"alpha", "beta", "lambda", "epsilon", "max_norm_clip"},
     {"do_bias_correction"}},
    {"SGDOptimizer", false, false, false, {"max_norm_clip"}, {}},
};

class Builder {
 public:
  // Gradients of the inputs `received` become outputs, <input>_input_grad. Of the weights `divided`, other
  // processes have further parts.
  Builder(const Model& forward, const TrainingGraphRequest& request, std::vector<std::string> received = {},
          std::map<std::string, DividedWeight> divided = {})
      : forward_(forward),
        request_(request),
        p_(request.parameters),
        received_(std::move(received)),
        divided_(std::move(divided)) {}

  TrainingGraph build();

 private:
  bool is_shared() const { return p_.world_size > 1; }
  bool is_divided() const { return p_.data_parallel_size > 1 && p_.deepspeed_zero_stage != 0; }
  // Otherwise it ends in values that a later stage of the pipeline reads, whose gradients are scaled already.
  bool ends_in_loss() const { return place_of(p_).stage == p_.pipeline_parallel_size - 1; }
  bool has_buffers() const { return p_.gradient_accumulation_steps > 1 || is_shared(); }
  int64_t accumulated() const { return std::max<int64_t>(1, p_.gradient_accumulation_steps); }

  void check_loss() const;
  void choose_weights();
  std::set<std::string> found_weights() const;
  void choose_optimizer();
  std::map<std::string, float> floats_of(const std::string& weight) const;
  std::map<std::string, int64_t> ints_of(const std::string& weight) const;
  template <typename T>
  const std::map<std::string, T>& attributes(const AttributeMap<T>& map, const char* member,
                                             const std::string& weight) const;

  void make_forward();
  void use_training_mode();
  void add_gradients();
  void use_outputs_of_normalizations();
  std::unordered_set<std::string> values_after_passes() const;
  void add_recomputation(const std::unordered_set<std::string>& forward_values);
  void add_optimizer();
  void accumulate();
  void add_norm();
  std::vector<Update> updates();
  void add_updates();
  void finish_updates(const std::vector<Update>& updates);
  void add_lamb(const std::vector<Update>& updates, const std::string& scale, const std::string& norm,
                const std::string& signal);
  void find_statistics();
  void dump(const std::string& path) const;
  void restore_weights(Graph& graph) const;

  std::string add(const std::string& type, const std::vector<std::string>& inputs, const std::string& output,
                  const Attributes& attributes = {}, const std::string& domain = "");
  std::string constant(const std::string& base, Tensor value);
  void add_input(const std::string& name, const char* what);
  void add_output(const std::string& name, DType dtype, std::optional<std::vector<Dim>> dims);
  void add_state(const std::string& name, StateRole role, const std::string& weight, Tensor value);
  Tensor initial(const std::string& weight, const std::string& name, Tensor otherwise) const;
  const Tensor& weight_value(const std::string& weight) const {
    return forward_.graph.initializers.at(weight);
  }

  const Model& forward_;
  const TrainingGraphRequest& request_;
  const TrainingParameters& p_;
  const std::vector<std::string> received_;
  const std::map<std::string, DividedWeight> divided_;  // by the name of the part
  TrainingGraph out_;
  Graph& graph_ = out_.model.graph;
  std::vector<std::string> weights_;  // that are trained, in the order of the model
  std::map<std::string, std::string> halves_;
  std::map<std::string, std::string> gradients_;  // by weight
  std::map<std::string, std::string> updated_;    // what an optimizer node produces, by weight
  const OptimizerKind* optimizer_ = nullptr;
  std::vector<ValueInfo> own_outputs_;
  std::string raw_norm_, finite_;
};

// ---------------------------------------------------------------------------------------------------------------------
// What is trained.

void Builder::check_loss() const {
  std::vector<std::string> outputs;
  for (const ValueInfo& info : forward_.graph.outputs) outputs.push_back(info.name);
  const bool made = std::any_of(forward_.graph.nodes.begin(), forward_.graph.nodes.end(), [&](const Node& n) {
    return std::find(n.outputs.begin(), n.outputs.end(), p_.loss_output_name) != n.outputs.end();
  });
  require(made && !p_.loss_output_name.empty(), ErrorCode::kInvalidArgument,
          "loss_output_name: the model has no "
          "value \"",
          p_.loss_output_name, "\"; its outputs are ", quoted_list(outputs));
}

// Floating-point initializers that a gradient of the loss reaches.
std::set<std::string> Builder::found_weights() const {
  std::set<std::string> constants;
  for (const Node& node : forward_.graph.nodes) {
    const auto listed = p_.immutable_weights.find(node.op_type);
    if (listed == p_.immutable_weights.end()) continue;
    for (const auto& [i, value] : listed->second) {
      if (i < 0 || !node.has_input(static_cast<size_t>(i))) continue;
      const auto at = forward_.graph.initializers.find(node.inputs[static_cast<size_t>(i)]);
      if (at == forward_.graph.initializers.end() || at->second.dtype() != DType::kFloat ||
          !at->second.shape().empty())
        continue;
      if (*at->second.data<float>() == value) constants.insert(at->first);
    }
  }
  const auto uses = count_uses(forward_.graph);
  GradientRequest request{{}, p_.loss_output_name, {}};
  for (const std::string& name : forward_.graph.initializer_order)
    if (is_floating(weight_value(name).dtype()) && uses.count(name) && !constants.count(name))
      request.trainable.push_back(name);
  std::set<std::string> found(request.trainable.begin(), request.trainable.end());
  for (const std::string& name : find_unreached(forward_, request)) found.erase(name);
  return found;
}

void Builder::choose_weights() {
  std::set<std::string> chosen;
  const auto uses = count_uses(forward_.graph);
  for (const std::string& name : p_.weights_to_train) {
    if (!uses.count(name)) {
      out_.warnings.push_back(concat("weights_to_train: no node reads \"", name, "\", so it is not trained"));
      continue;
    }
    require(forward_.graph.is_initializer(name), ErrorCode::kInvalidArgument, "weights_to_train: \"", name,
            "\" is not an initializer of the model, so it cannot be trained",
            suggestion(name, forward_.graph.initializer_order));
    chosen.insert(name);
  }
  if (chosen.empty()) chosen = found_weights();
  for (const std::string& name : forward_.graph.initializer_order)
    if (chosen.count(name) && !p_.weights_not_to_train.count(name) && is_floating(weight_value(name).dtype()))
      weights_.push_back(name);
  require(!weights_.empty(), ErrorCode::kInvalidArgument,
          "there is nothing to train: no initializer is left that the loss \"", p_.loss_output_name,
          "\" depends on");
}

// ---------------------------------------------------------------------------------------------------------------------
// The optimizer's settings.

void Builder::choose_optimizer() {
  if (p_.training_optimizer_name.empty()) return;
  std::vector<std::string> known;
  for (const OptimizerKind& kind : kOptimizers) {
    known.push_back(kind.type);
    if (p_.training_optimizer_name == kind.type) optimizer_ = &kind;
  }
  require(optimizer_ != nullptr, ErrorCode::kInvalidArgument, "training_optimizer_name: expected one of ",
          quoted_list(known), ", found \"", p_.training_optimizer_name, "\"");
  require(!p_.lr_params_feed_name.empty(), ErrorCode::kInvalidArgument,
          "lr_params_feed_name: expected a name for the input of the learning rate, found none");
  for (const std::string& weight : weights_) {
    floats_of(weight);
    const auto ints = ints_of(weight);
    if (const auto mode = ints.find("weight_decay_mode"); mode != ints.end())
      require(mode->second == 0 || mode->second == 1, ErrorCode::kInvalidArgument,
              "optimizer_int_attributes_map: expected weight_decay_mode 0 or 1 for the weight \"", weight,
              "\", found ", mode->second);
  }
}

template <typename T>
const std::map<std::string, T>& Builder::attributes(const AttributeMap<T>& map, const char* member,
                                                    const std::string& weight) const {
  const auto at = map.find(weight);
  require(at != map.end(), ErrorCode::kInvalidArgument, member, ": expected an entry for the weight \"",
          weight, "\", which may be empty, found none");
  return at->second;
}

std::map<std::string, float> Builder::floats_of(const std::string& weight) const {
  std::map<std::string, float> known;
  for (const auto& [name, value] :
       attributes(p_.optimizer_attributes_map, "optimizer_attributes_map", weight))
    if (std::find(optimizer_->floats.begin(), optimizer_->floats.end(), name) != optimizer_->floats.end())
      known[name] = value;
  return known;
}

std::map<std::string, int64_t> Builder::ints_of(const std::string& weight) const {
  std::map<std::string, int64_t> known;
  for (const auto& [name, value] :
       attributes(p_.optimizer_int_attributes_map, "optimizer_int_attributes_map", weight))
    if (std::find(optimizer_->ints.begin(), optimizer_->ints.end(), name) != optimizer_->ints.end())
      known[name] = value;
  return known;
}

// ---------------------------------------------------------------------------------------------------------------------
// The graph.

std::string Builder::add(const std::string& type, const std::vector<std::string>& inputs,
                         const std::string& output, const Attributes& attributes, const std::string& domain) {
  Node node;
  node.domain = domain;
  node.op_type = type;
  node.name = graph_.unique_name(output + "/" + type);
  node.inputs = inputs;
  node.outputs = {output};
  node.attributes = attributes;
  graph_.nodes.push_back(std::move(node));
  return output;
}

std::string Builder::constant(const std::string& base, Tensor value) {
  const std::string name = graph_.unique_name(base);
  graph_.add_initializer(name, std::move(value));
  return name;
}

void Builder::add_input(const std::string& name, const char* what) {
  require(graph_.unique_name(name) == name, ErrorCode::kInvalidArgument, what, ": the model has a value \"",
          name, "\" already");
  graph_.inputs.push_back({name, DType::kFloat, std::vector<Dim>{Dim{1, ""}}});
}

void Builder::add_output(const std::string& name, DType dtype, std::optional<std::vector<Dim>> dims) {
  graph_.outputs.push_back({name, dtype, std::move(dims)});
}

void Builder::add_state(const std::string& name, StateRole role, const std::string& weight, Tensor value) {
  require(graph_.unique_name(name) == name, ErrorCode::kInvalidArgument, "the model has a value \"", name,
          "\" already, which is the name of a state of the optimizer");
  graph_.add_initializer(name, std::move(value));
  out_.states.push_back({name, role, weight});
}

Tensor Builder::initial(const std::string& weight, const std::string& name, Tensor otherwise) const {
  const auto states = request_.initial_state.find(weight);
  if (states == request_.initial_state.end()) return otherwise;
  const auto at = states->second.find(name);
  if (at == states->second.end()) return otherwise;
  require(at->second.dtype() == otherwise.dtype() && at->second.shape() == otherwise.shape(),
          ErrorCode::kInvalidArgument, "the initial ", name, " of \"", weight, "\": expected ",
          to_string(otherwise.dtype()), to_string(otherwise.shape()), ", found ",
          to_string(at->second.dtype()), to_string(at->second.shape()));
  return at->second.clone();
}

// Weights that are inputs become initializers again.
void Builder::restore_weights(Graph& graph) const {
  for (const std::string& weight : weights_) {
    std::erase_if(graph.inputs, [&](const ValueInfo& info) { return info.name == weight; });
    if (!graph.is_initializer(weight)) graph.add_initializer(weight, weight_value(weight).clone());
  }
}

void Builder::dump(const std::string& path) const {
  if (path.empty() || p_.world_rank != 0) return;
  Model model = out_.model;
  restore_weights(model.graph);
  for (const auto& [weight, half] : halves_) {
    if (!model.graph.is_input(half)) continue;
    std::erase_if(model.graph.inputs, [&, &name = half](const ValueInfo& info) { return info.name == name; });
    model.graph.add_initializer(half, half_of(weight_value(weight)));
  }
  for (const ValueInfo& info : own_outputs_)
    if (!model.graph.is_output(info.name)) model.graph.outputs.push_back(info);
  if (model.graph.name.empty()) model.graph.name = "graph";
  std::unordered_set<std::string> made;
  for (const Node& node : model.graph.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::erase_if(model.graph.value_info, [&](const auto& info) { return !made.count(info.first); });
  model.graph.outputs = inferred_outputs(model, true);
  write_model(model, std::filesystem::path(path));
}

// The forward model: its outputs, the loss among them, with the weights as inputs.
void Builder::make_forward() {
  out_.model = forward_;
  out_.model.opsets.emplace(kMicrosoft, 1);
  expand_gradient_nodes(out_.model);
  own_outputs_ = graph_.outputs;
  if (!graph_.is_output(p_.loss_output_name))
    graph_.outputs.push_back(graph_.info(p_.loss_output_name)
                                 .value_or(ValueInfo{p_.loss_output_name, DType::kUndefined, std::nullopt}));
  std::vector<std::string> problems;
  propagate_casts(out_.model, p_.propagate_cast_ops_level, p_.propagate_cast_ops_allow);
  prepare_forward(out_.model, {weights_.begin(), weights_.end()}, request_.config, problems);
  if (!problems.empty()) reject_training(problems);
  use_training_mode();
  dump(p_.model_after_graph_transforms_path);
  if (p_.use_mixed_precision && !request_.bf16) {
    std::set<std::string> full;
    for (const std::string& weight : weights_)
      if (weight_value(weight).dtype() == DType::kFloat) full.insert(weight);
    halves_ = use_half_precision(out_.model, full, p_.loss_output_name);
  }
}

// Whether dropouts drop becomes an input.
void Builder::use_training_mode() {
  for (Node& node : graph_.nodes) {
    if (transformer_role(node) != TransformerRole::kDropout || !node.has_input(2)) continue;
    if (out_.training_mode.empty()) {
      out_.training_mode = graph_.unique_name("training_mode");
      graph_.inputs.push_back({out_.training_mode, DType::kBool, std::vector<Dim>{}});
    }
    node.inputs[2] = out_.training_mode;
  }
}

void Builder::add_gradients() {
  GradientRequest request{{}, p_.loss_output_name, {}};
  for (const std::string& weight : weights_)
    request.trainable.push_back(halves_.count(weight) ? halves_.at(weight) : weight);
  for (const std::string& input : received_)
    if (is_floating(forward_.graph.info(input)->dtype)) request.trainable.push_back(input);
  if (p_.use_mixed_precision) {
    out_.loss_scale_input = graph_.unique_name("loss_scale");
    graph_.inputs.push_back({out_.loss_scale_input, DType::kFloat, std::vector<Dim>{Dim{1, ""}}});
  }
  if (p_.use_mixed_precision && ends_in_loss()) {
    const std::string shape = constant("loss_scale_shape", Tensor(DType::kInt64, Shape{0}));
    const std::string factor =
        add("Reshape", {out_.loss_scale_input, shape}, graph_.unique_name("loss_factor"));
    request.loss = add("Mul", {p_.loss_output_name, factor}, graph_.unique_name("scaled_loss"));
    graph_.outputs.push_back({request.loss, DType::kFloat, std::vector<Dim>{}});
  }
  std::unordered_set<std::string> forward_values;
  for (const Node& node : graph_.nodes) forward_values.insert(node.outputs.begin(), node.outputs.end());
  forward_values.erase("");
  GradientBuilder builder(out_.model, request, false);
  builder.run();
  if (const std::vector<std::string> problems = builder.problems(); !problems.empty())
    reject_training(problems);
  for (size_t i = 0; i < weights_.size(); ++i)
    gradients_[weights_[i]] = builder.gradient_of(request.trainable[i]);
  if (p_.use_memory_efficient_gradient) use_outputs_of_normalizations();
  graph_.outputs = own_outputs_;
  for (ValueInfo& info : graph_.outputs)
    if (const ValueInfo& known = builder.info(info.name); known.dtype != DType::kUndefined)
      info.dtype = known.dtype;
  for (size_t i = weights_.size(); i < request.trainable.size(); ++i) {
    ValueInfo info = *forward_.graph.info(request.trainable[i]);
    info.name = add("Identity", {builder.gradient_of(request.trainable[i])},
                    graph_.unique_name(info.name + "_input_grad"));
    graph_.outputs.push_back(std::move(info));
  }
  add_recomputation(forward_values);
  if (p_.set_gradients_as_graph_outputs)
    for (const std::string& weight : weights_) {
      std::string& gradient = gradients_[weight];
      const std::string name = weight + "_grad";
      if (halves_.count(weight))
        gradient =
            add("Cast", {gradient}, graph_.unique_name(name), {{"to", static_cast<int64_t>(DType::kFloat)}});
      require(gradient == name, ErrorCode::kInvalidArgument,
              "set_gradients_as_graph_outputs: the model has a value \"", name,
              "\" already, so the gradient of \"", weight, "\" cannot have that name");
      ValueInfo info = *forward_.graph.info(weight);
      info.name = name;
      graph_.outputs.push_back(std::move(info));
    }
}

void Builder::use_outputs_of_normalizations() {
  std::unordered_map<std::string, Node> producers;
  for (const Node& node : graph_.nodes)
    for (const std::string& output : node.outputs) producers[output] = node;
  for (Node& node : graph_.nodes) {
    if (node.inputs.empty()) continue;
    const auto forward = producers.find(node.inputs.back());  // the statistics come last
    if (forward == producers.end()) continue;
    if (auto changed = layer_normalization_gradient_from_output(node, forward->second)) node = *changed;
  }
}

// What nodes produce once a session has fused them.
std::unordered_set<std::string> Builder::values_after_passes() const {
  Model model = out_.model;
  for (const std::string& weight : weights_)
    model.graph.outputs.push_back({gradients_.at(weight), DType::kUndefined, std::nullopt});
  decompose_operators(model, DecomposeFor::kRun);
  run_passes(model, PassPhase::kSession, request_.config, request_.optimization_level, "training graph");
  std::unordered_set<std::string> values;
  for (const Node& node : model.graph.nodes) values.insert(node.outputs.begin(), node.outputs.end());
  return values;
}

void Builder::add_recomputation(const std::unordered_set<std::string>& forward_values) {
  std::set<std::string> values;
  Graph forward = graph_;
  std::erase_if(forward.nodes, [&](const Node& node) {
    return std::none_of(node.outputs.begin(), node.outputs.end(),
                        [&](const std::string& v) { return forward_values.count(v) > 0; });
  });
  if (p_.gelu_recompute) values.merge(gelu_outputs(forward));
  if (p_.attn_dropout_recompute) {
    // Attention in one node recomputes them anyway, and a second copy would keep nodes from being fused.
    const std::unordered_set<std::string> kept = values_after_passes();
    for (const std::string& value : attention_dropout_outputs(forward))
      if (kept.count(value)) values.insert(value);
  }
  if (p_.transformer_layer_recompute) {
    std::unordered_set<std::string> weights(weights_.begin(), weights_.end());
    for (const auto& [weight, half] : halves_) weights.insert(half);
    auto layers = transformer_layers(forward, weights, p_.loss_output_name);
    const auto found = static_cast<int64_t>(layers.size());
    int64_t count = p_.number_recompute_layers;
    require(count >= 0, ErrorCode::kInvalidArgument, "number_recompute_layers: expected 0 or more, found ",
            count);
    if (count > found) {
      out_.warnings.push_back(concat("number_recompute_layers is ", count, ", but the model has ", found,
                                     " transformer layers: all of them are recomputed"));
      count = found;
    } else if (count == 0) {
      count = std::max<int64_t>(0, found - 1);
    }
    for (int64_t k = 0; k < count; ++k) values.merge(layers[static_cast<size_t>(k)]);
  }
  if (values.empty()) return;
  recompute(graph_, forward_values, values);
  out_.recomputes = true;
}

// ---------------------------------------------------------------------------------------------------------------------
// What follows the gradients.

void Builder::accumulate() {
  std::vector<std::string> done;
  for (const std::string& weight : weights_) {
    std::string& gradient = gradients_[weight];
    const DType dtype = weight_value(weight).dtype();
    if (halves_.count(weight) && gradient != weight + "_grad")
      gradient = add("Cast", {gradient}, graph_.unique_name(weight + "_grad"),
                     {{"to", static_cast<int64_t>(dtype)}});
    const std::string buffer = weight + "_grad_accumulate_buffer";
    add_state(buffer, StateRole::kGradient, weight, zeros(dtype, weight_value(weight).shape()));
    done.push_back(graph_.unique_name(weight + "_grad_accumulated"));
    const std::string sum = graph_.unique_name(weight + "_grad_sum");
    add("InPlaceAccumulatorV2", {buffer, gradient}, done.back(), {}, kMicrosoft);
    graph_.nodes.back().outputs.push_back(sum);
    gradient = is_shared() ? buffer : sum;
  }
  const std::string group =
      add("Group", done, graph_.unique_name("Group_Accumulated_Gradients"), {}, kMicrosoft);
  add_output(group, DType::kBool, std::vector<Dim>{Dim{1, ""}});
}

// The norm of all gradients together, as sums.
void Builder::add_norm() {
  if (is_shared()) {  // other processes have a part in it
    raw_norm_ = "global_gradient_norm";
    require(graph_.unique_name(raw_norm_) == raw_norm_, ErrorCode::kInvalidArgument,
            "the model has a value \"", raw_norm_, "\" already, which is an input of the update");
    graph_.inputs.push_back({raw_norm_, DType::kFloat, std::vector<Dim>{}});
    return;
  }
  std::vector<std::string> all;
  for (const std::string& weight : weights_) all.push_back(gradients_[weight]);
  const std::string name = graph_.unique_name("global_gradient_norm");
  raw_norm_ = add("ReduceAllL2", all, accumulated() > 1 ? graph_.unique_name("summed_gradient_norm") : name,
                  {}, kMicrosoft);
  if (accumulated() > 1)
    add("Mul",
        {raw_norm_, constant("gradient_average", Tensor::scalar(1.0f / static_cast<float>(accumulated())))},
        name);
  add_output(name, DType::kFloat, std::vector<Dim>{});
  if (!p_.use_mixed_precision) return;
  finite_ = add("IsAllFinite", {name}, graph_.unique_name("all_gradients_finite"), {}, kMicrosoft);
  add_output(finite_, DType::kBool, std::vector<Dim>{});
}

// What this process updates. Adds the states of weights, gradients and copies.
std::vector<Update> Builder::updates() {
  std::vector<std::string> by_name = weights_;
  std::sort(by_name.begin(), by_name.end());
  std::vector<int64_t> counts;
  for (const std::string& weight : by_name) counts.push_back(weight_value(weight).size());
  const std::vector<Range> ranges =
      is_divided() ? zero_ranges(counts, p_.data_parallel_size, place_of(p_).data) : std::vector<Range>{};
  std::vector<Update> updates;
  for (const std::string& weight : weights_) {
    const Tensor& value = weight_value(weight);
    const std::string half = halves_.count(weight) ? halves_.at(weight) : "";
    Update update{weight, weight, half, gradients_[weight], 0, value.size(), true};
    if (is_divided()) {
      const Range& range = ranges[static_cast<size_t>(
          std::lower_bound(by_name.begin(), by_name.end(), weight) - by_name.begin())];
      update.first = range.first;
      update.count = range.count;
      update.whole = range.count == value.size();
    }
    const bool is_cut = !update.whole && update.count > 0;
    out_.states.push_back({weight, StateRole::kWeight, weight, {}, 0, is_cut});
    if (!half.empty()) {
      std::erase_if(graph_.inputs, [&](const ValueInfo& info) { return info.name == half; });
      graph_.add_initializer(half, half_of(value));
      out_.states.push_back({half, StateRole::kMixedPrecision, weight, {}, 0, is_cut});
    }
    if (is_cut) {
      const auto part = [&](std::string& name, StateRole role, const Tensor& whole) {
        const std::string of = name;
        name = zero_view_name(of, {update.first, update.count});
        add_state(name, role, weight, elements_of(whole, update.first, update.count));
        out_.states.back().view_of = of;
        out_.states.back().first = update.first;
      };
      part(update.name, StateRole::kWeight, value);
      if (!half.empty()) part(update.half, StateRole::kMixedPrecision, half_of(value));
      part(update.gradient, StateRole::kGradient, zeros(value.dtype(), value.shape()));
    }
    if (update.count > 0) updates.push_back(std::move(update));
  }
  return updates;
}

void Builder::add_updates() {
  add_input(p_.lr_params_feed_name, "lr_params_feed_name");
  // Gradients are sums of `accumulated` ones, and have the loss scale in them.
  std::string scale = out_.loss_scale_input;
  if (accumulated() > 1) {
    const std::string count =
        constant("gradient_count", Tensor::scalar(static_cast<float>(accumulated())).reshaped({1}));
    scale = scale.empty() ? count : add("Mul", {scale, count}, graph_.unique_name("gradient_scale"));
  }
  const std::string norm = p_.enable_grad_norm_clip ? raw_norm_ : "";
  const DType moment = p_.use_fp16_moments ? DType::kFloat16 : DType::kFloat;
  const std::vector<Update> updates = this->updates();
  for (const Update& update : updates) {
    const Tensor& value = weight_value(update.weight);
    if (optimizer_->moments)
      for (const auto& [role, name] :
           {std::pair(StateRole::kMoment1, "Moment_1"), std::pair(StateRole::kMoment2, "Moment_2")}) {
        const DType dtype = value.dtype() == DType::kDouble && !p_.use_fp16_moments ? DType::kDouble : moment;
        const Tensor whole = initial(update.weight, name, zeros(dtype, value.shape()));
        add_state(concat(name, "_", update.name), role, update.weight,
                  update.whole ? whole : elements_of(whole, update.first, update.count));
      }
    if (optimizer_->counts_per_weight)
      add_state("Update_Count_" + update.name, StateRole::kUpdateCount, update.weight,
                initial(update.weight, "Update_Count", Tensor::scalar(int64_t{1}).reshaped({1})));
  }
  if (optimizer_->shares_step) {
    add_state("Step", StateRole::kStep, "",
              initial(kShared, "Step", Tensor::scalar(int64_t{1}).reshaped({1})));
    add_lamb(updates, scale, norm, finite_);
  } else {
    for (const Update& update : updates) {
      const std::string& weight = update.name;
      const std::string& half = update.half;
      Node node;
      node.domain = kMicrosoft;
      node.op_type = optimizer_->type;
      node.name = graph_.unique_name(concat(optimizer_->type, "_", weight));
      for (const auto& [name, v] : floats_of(update.weight)) node.attributes[name] = v;
      if (optimizer_->moments && p_.use_fp16_moments) node.attributes["min_moment_2"] = kSmallestHalf;
      for (const auto& [name, v] : ints_of(update.weight)) node.attributes[name] = v;
      if (optimizer_->moments) {
        node.inputs = {p_.lr_params_feed_name,
                       "Update_Count_" + weight,
                       weight,
                       update.gradient,
                       "Moment_1_" + weight,
                       "Moment_2_" + weight,
                       half,
                       scale,
                       norm,
                       finite_};
        node.outputs = {update.gradient + "_Step_Out", concat("Moment_1_", weight, "_Out"),
                        concat("Moment_2_", weight, "_Out"), weight + "_Adam_out"};
        if (!half.empty()) node.outputs.insert(node.outputs.end(), {"", half + "_Adam_out"});
      } else {
        node.inputs = {p_.lr_params_feed_name, weight, update.gradient, scale, norm, finite_, half};
        node.outputs = {weight + "_SGD_out"};
        if (!half.empty()) node.outputs.insert(node.outputs.end(), {"", half + "_SGD_out"});
      }
      for (std::string& output : node.outputs)
        if (!output.empty()) output = graph_.unique_name(output);
      while (!node.inputs.empty() && node.inputs.back().empty()) node.inputs.pop_back();
      updated_[update.weight] = node.outputs[0];
      graph_.nodes.push_back(std::move(node));
    }
  }
  finish_updates(updates);
}

// After its weight was updated a gradient starts over.
void Builder::finish_updates(const std::vector<Update>& updates) {
  if (!has_buffers()) return;
  std::vector<std::string> done;
  for (const std::string& weight : weights_) {
    // With ZeRO, other processes update some of the weights.
    const std::string after = updated_.count(weight) ? updated_.at(weight) : p_.lr_params_feed_name;
    done.push_back(add("ZeroGradient", {weight + "_grad_accumulate_buffer", after},
                       graph_.unique_name(weight + "_grad_zero"), {}, kMicrosoft));
  }
  if (!is_shared()) return;
  for (const Update& update : updates) done.push_back(updated_.at(update.weight));
  out_.updated = add("Group", done, graph_.unique_name("Group_Updated_Weights"), {}, kMicrosoft);
  add_output(out_.updated, DType::kBool, std::vector<Dim>{Dim{1, ""}});
}

// A node for each weight; the last one counts.
void Builder::add_lamb(const std::vector<Update>& updates, const std::string& scale, const std::string& norm,
                       const std::string& signal) {
  std::map<std::string, float> shared;
  for (const std::string& weight : weights_) {
    const auto& given = attributes(p_.optimizer_attributes_map, "optimizer_attributes_map", weight);
    for (const char* name : {"ratio_min", "ratio_max"}) {
      const auto at = given.find(name);
      const float otherwise =
          std::numeric_limits<float>::infinity() * (std::string(name) == "ratio_min" ? -1 : 1);
      const float value = at == given.end() ? otherwise : at->second;
      const auto [known, fresh] = shared.emplace(name, value);
      require(known->second == value, ErrorCode::kInvalidArgument, "optimizer_attributes_map: ", name,
              " of LambOptimizer must be equal for all weights, found ", known->second, " and, for \"",
              weight, "\", ", value);
    }
  }
  require(shared["ratio_min"] <= shared["ratio_max"], ErrorCode::kInvalidArgument,
          "optimizer_attributes_map: expected ratio_min to be no more than ratio_max, found ",
          shared["ratio_min"], " and ", shared["ratio_max"]);
  int64_t correct = -1;
  for (const std::string& weight : weights_) {
    const auto ints = ints_of(weight);
    const int64_t value = ints.count("do_bias_correction") ? ints.at("do_bias_correction") : 0;
    require(correct < 0 || correct == value, ErrorCode::kInvalidArgument,
            "optimizer_int_attributes_map: do_bias_correction of LambOptimizer must be equal for all "
            "weights, found ",
            correct, " and, for \"", weight, "\", ", value);
    correct = value;
  }
  for (const Update& update : updates) {
    const std::string &weight = update.weight, &half = update.half;
    const bool last = &update == &updates.back();
    Node node;
    node.domain = kMicrosoft;
    node.op_type = optimizer_->type;
    node.name = graph_.unique_name(concat(optimizer_->type, "_", weight));
    node.inputs = {signal,
                   scale,
                   norm,
                   p_.lr_params_feed_name,
                   "Step",
                   weight,
                   update.gradient,
                   "Moment_1_" + weight,
                   "Moment_2_" + weight,
                   half};
    node.outputs = {last ? "Step_Out" : "",
                    weight + "_Lamb_out",
                    "",
                    concat("Moment_1_", weight, "_Out"),
                    concat("Moment_2_", weight, "_Out"),
                    half.empty() ? "" : half + "_Lamb_out"};
    for (const auto& [name, value] : floats_of(weight)) node.attributes[name] = std::vector<float>{value};
    if (p_.use_fp16_moments) node.attributes["min_moment_2"] = kSmallestHalf;
    for (const auto& [name, value] : shared)
      if (std::isfinite(value)) node.attributes[name] = value;
    node.attributes["do_bias_correction"] = correct;
    if (const auto whole = divided_.find(weight); whole != divided_.end())
      node.attributes["divided"] = whole->second.name;
    for (std::string& output : node.outputs)
      if (!output.empty()) output = graph_.unique_name(output);
    updated_[weight] = node.outputs[1];
    while (node.inputs.back().empty()) node.inputs.pop_back();
    while (node.outputs.back().empty()) node.outputs.pop_back();
    graph_.nodes.push_back(std::move(node));
  }
}

void Builder::add_optimizer() {
  if (has_buffers()) accumulate();
  if (!optimizer_) return;
  if (p_.enable_grad_norm_clip || p_.use_mixed_precision) add_norm();
  add_updates();
}

// Initializers that nodes other than the optimizer's update.
void Builder::find_statistics() {
  std::set<std::string> known;
  for (const GraphState& state : out_.states) known.insert(state.name);
  for (const Node& node : graph_.nodes) {
    const Operator* op = find_operator(node.domain, node.op_type);
    for (size_t i = 0; op && i < node.inputs.size() && i < 32; ++i)
      if ((op->traits.updates >> i & 1) && graph_.is_initializer(node.inputs[i]) &&
          known.insert(node.inputs[i]).second)
        out_.states.push_back({node.inputs[i], StateRole::kStatistics, ""});
  }
}

TrainingGraph Builder::build() {
  check_loss();
  choose_weights();
  choose_optimizer();
  make_forward();
  add_gradients();
  dump(p_.model_with_gradient_graph_path);
  add_optimizer();
  restore_weights(graph_);
  find_statistics();
  if (!optimizer_)  // nothing updates the weights, but they are read and can be replaced
    for (const std::string& weight : weights_) {
      out_.states.push_back({weight, StateRole::kWeight, weight});
      if (const auto half = halves_.find(weight); half != halves_.end()) {
        std::erase_if(graph_.inputs, [&](const ValueInfo& info) { return info.name == half->second; });
        graph_.add_initializer(half->second, half_of(weight_value(weight)));
        out_.states.push_back({half->second, StateRole::kMixedPrecision, weight});
      }
    }
  if (!out_.training_mode.empty()) {
    std::erase_if(graph_.inputs, [&](const ValueInfo& info) { return info.name == out_.training_mode; });
    graph_.add_initializer(out_.training_mode, Tensor::scalar(true));
  }
  graph_.sort();
  dump(p_.model_with_training_graph_path);
  return std::move(out_);
}

}  // namespace

namespace {

// What is set for a weight is that of its part.
template <typename Map>
void rename_entry(Map& map, const std::string& from, const std::string& to) {
  if (auto entry = map.extract(from); !entry.empty()) {
    entry.key() = to;
    map.insert(std::move(entry));
  }
}

TrainingGraph build_divided_graph(const Model& forward, const TrainingGraphRequest& request) {
  const HorizontalSplit split = split_layers(forward, request.parameters);
  TrainingGraphRequest own = request;
  TrainingParameters& p = own.parameters;
  for (const auto& [name, whole] : split.weights) {
    if (p.weights_to_train.erase(whole.name)) p.weights_to_train.insert(name);
    rename_entry(p.optimizer_attributes_map, whole.name, name);
    rename_entry(p.optimizer_int_attributes_map, whole.name, name);
    rename_entry(own.initial_state, whole.name, name);
    if (const auto states = own.initial_state.find(name); states != own.initial_state.end())
      for (auto& [state, value] : states->second)
        if (value.shape() == whole.shape)
          value = part_of(value, whole.division, p.horizontal_parallel_size, place_of(p).horizontal);
  }
  TrainingGraph graph = Builder(split.model, own, {}, split.weights).build();
  graph.warnings.insert(graph.warnings.end(), split.warnings.begin(), split.warnings.end());
  for (GraphState& state : graph.states)
    if (const auto whole = split.weights.find(state.weight); whole != split.weights.end())
      state.part = std::make_shared<DividedWeight>(whole->second);
  return graph;
}

}  // namespace

TrainingGraph build_training_graph(const Model& forward, const TrainingGraphRequest& request) {
  check_ranks(request.parameters);
  if (request.parameters.horizontal_parallel_size > 1) return build_divided_graph(forward, request);
  if (request.parameters.pipeline_parallel_size == 1) return Builder(forward, request).build();
  const PipelineStage stage = pipeline_stage(forward, request.parameters);
  TrainingGraphRequest of_stage = request;
  TrainingParameters& p = of_stage.parameters;
  p.loss_output_name = stage.loss;
  std::erase_if(p.weights_to_train,
                [&](const std::string& name) { return !stage.model.graph.is_initializer(name); });
  require(request.parameters.weights_to_train.empty() || !p.weights_to_train.empty(),
          ErrorCode::kInvalidArgument, "stage ", place_of(p).stage + 1,
          " of the pipeline has none of weights_to_train");
  return Builder(stage.model, of_stage, stage.received).build();
}

}  // namespace ortrain
