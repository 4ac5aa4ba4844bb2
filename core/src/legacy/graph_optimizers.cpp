// Adds one optimizer node for each weight to a training graph, with its moments and counts as states. The
// three optimizers differ in their inputs, outputs and attributes, so a table lists those of each. The nodes
// only describe the step: ops/optimizer_steps.cpp computes it.
#include "legacy/graph_optimizers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "legacy/graph_updates.h"
#include "op/operator.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace ortrain {
namespace {

constexpr float kSmallestHalf = 0x1p-24f;  // of float16, above zero
constexpr const char* kShared = "shared_optimizer_state";

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

template <typename T>
const std::map<std::string, T>& attributes(const AttributeMap<T>& map, const char* member,
                                           const std::string& weight) {
  const auto at = map.find(weight);
  require(at != map.end(), ErrorCode::kInvalidArgument, member, ": expected an entry for the weight \"",
          weight, "\", which may be empty, found none");
  return at->second;
}

// Those of the given attributes that the optimizer has.
template <typename T>
std::map<std::string, T> known_attributes(const std::map<std::string, T>& given,
                                          const std::vector<const char*>& names) {
  std::map<std::string, T> known;
  for (const auto& [name, value] : given)
    if (std::find(names.begin(), names.end(), name) != names.end()) known[name] = value;
  return known;
}

std::map<std::string, float> floats_of(const GraphDraft& d, const OptimizerKind& kind,
                                       const std::string& weight) {
  return known_attributes(attributes(d.p.optimizer_attributes_map, "optimizer_attributes_map", weight),
                          kind.floats);
}

std::map<std::string, int64_t> ints_of(const GraphDraft& d, const OptimizerKind& kind,
                                       const std::string& weight) {
  return known_attributes(
      attributes(d.p.optimizer_int_attributes_map, "optimizer_int_attributes_map", weight), kind.ints);
}

// The nodes of one optimizer.
class OptimizerNodes {
 public:
  OptimizerNodes(GraphDraft& d, const OptimizerKind& kind, const GradientNorm& norm)
      : d_(d), kind_(kind), norm_(d.p.enable_grad_norm_clip ? norm.value : ""), finite_(norm.finite) {}

  void add() {
    d_.add_input(d_.p.lr_params_feed_name, "lr_params_feed_name");
    add_scale();
    updates_ = add_updated_states(d_);
    add_states();
    if (kind_.shares_step)
      add_lamb();
    else
      for (const Update& update : updates_) push(kind_.moments ? adam(update) : sgd(update), update, 0);
    if (d_.has_buffers()) clear_gradients();
    if (d_.is_shared()) end_second_part();
  }

 private:
  // Gradients are sums over the accumulated runs, and have the loss scale in them.
  void add_scale() {
    scale_ = d_.out.loss_scale_input;
    if (d_.accumulated() == 1) return;
    const std::string count =
        d_.constant("gradient_count", Tensor::scalar(static_cast<float>(d_.accumulated())).reshaped({1}));
    scale_ = scale_.empty() ? count : d_.add("Mul", {scale_, count}, d_.graph.unique_name("gradient_scale"));
  }

  // The value with which a state starts.
  Tensor initial(const std::string& weight, const std::string& name, Tensor otherwise) const {
    const auto states = d_.request.initial_state.find(weight);
    if (states == d_.request.initial_state.end()) return otherwise;
    const auto at = states->second.find(name);
    if (at == states->second.end()) return otherwise;
    require(at->second.dtype() == otherwise.dtype() && at->second.shape() == otherwise.shape(),
            ErrorCode::kInvalidArgument, "the initial ", name, " of \"", weight, "\": expected ",
            to_string(otherwise.dtype()), to_string(otherwise.shape()), ", found ",
            to_string(at->second.dtype()), to_string(at->second.shape()));
    return at->second.clone();
  }

  void add_states() {
    const DType moment = d_.p.use_fp16_moments ? DType::kFloat16 : DType::kFloat;
    const Tensor one = Tensor::scalar(int64_t{1}).reshaped({1});
    for (const Update& update : updates_) {
      const Tensor& value = d_.weight_value(update.weight);
      if (kind_.moments)
        for (const auto& [role, name] :
             {std::pair(StateRole::kMoment1, "Moment_1"), std::pair(StateRole::kMoment2, "Moment_2")}) {
          const bool is_double = value.dtype() == DType::kDouble && !d_.p.use_fp16_moments;
          const Tensor whole =
              initial(update.weight, name, zeros(is_double ? DType::kDouble : moment, value.shape()));
          d_.add_state(concat(name, "_", update.name), role, update.weight,
                       update.whole ? whole : elements_of(whole, update.first, update.count));
        }
      if (kind_.counts_per_weight)
        d_.add_state("Update_Count_" + update.name, StateRole::kUpdateCount, update.weight,
                     initial(update.weight, "Update_Count", one.clone()));
    }
    if (kind_.shares_step) d_.add_state("Step", StateRole::kStep, "", initial(kShared, "Step", one.clone()));
  }

  Node node_of(const std::string& weight) const {
    Node node;
    node.domain = kMicrosoft;
    node.op_type = kind_.type;
    node.name = d_.graph.unique_name(concat(kind_.type, "_", weight));
    if (kind_.moments && d_.p.use_fp16_moments) node.attributes["min_moment_2"] = kSmallestHalf;
    return node;
  }

  // Adds the node, whose output number `updated` is produced when the weight is updated.
  void push(Node node, const Update& update, size_t updated) {
    for (std::string& output : node.outputs)
      if (!output.empty()) output = d_.graph.unique_name(output);
    updated_[update.weight] = node.outputs[updated];
    while (node.inputs.back().empty()) node.inputs.pop_back();
    while (node.outputs.back().empty()) node.outputs.pop_back();
    d_.graph.nodes.push_back(std::move(node));
  }

  void set_attributes(Node& node, const Update& update) const {
    for (const auto& [name, value] : floats_of(d_, kind_, update.weight)) node.attributes[name] = value;
    for (const auto& [name, value] : ints_of(d_, kind_, update.weight)) node.attributes[name] = value;
  }

  Node adam(const Update& update) const {
    const std::string &weight = update.name, &half = update.half;
    Node node = node_of(weight);
    set_attributes(node, update);
    node.inputs = {d_.p.lr_params_feed_name,
                   "Update_Count_" + weight,
                   weight,
                   update.gradient,
                   "Moment_1_" + weight,
                   "Moment_2_" + weight,
                   half,
                   scale_,
                   norm_,
                   finite_};
    node.outputs = {update.gradient + "_Step_Out", concat("Moment_1_", weight, "_Out"),
                    concat("Moment_2_", weight, "_Out"), weight + "_Adam_out"};
    if (!half.empty()) node.outputs.insert(node.outputs.end(), {"", half + "_Adam_out"});
    return node;
  }

  Node sgd(const Update& update) const {
    const std::string &weight = update.name, &half = update.half;
    Node node = node_of(weight);
    set_attributes(node, update);
    node.inputs = {d_.p.lr_params_feed_name, weight, update.gradient, scale_, norm_, finite_, half};
    node.outputs = {weight + "_SGD_out"};
    if (!half.empty()) node.outputs.insert(node.outputs.end(), {"", half + "_SGD_out"});
    return node;
  }

  // ratio_min and ratio_max, which all nodes share.
  std::map<std::string, float> lamb_ratios() const {
    std::map<std::string, float> shared;
    for (const std::string& weight : d_.weights) {
      const auto& given = attributes(d_.p.optimizer_attributes_map, "optimizer_attributes_map", weight);
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
    return shared;
  }

  int64_t lamb_bias_correction() const {
    int64_t correct = -1;
    for (const std::string& weight : d_.weights) {
      const auto ints = ints_of(d_, kind_, weight);
      const int64_t value = ints.count("do_bias_correction") ? ints.at("do_bias_correction") : 0;
      require(correct < 0 || correct == value, ErrorCode::kInvalidArgument,
              "optimizer_int_attributes_map: do_bias_correction of LambOptimizer must be equal for all "
              "weights, found ",
              correct, " and, for \"", weight, "\", ", value);
      correct = value;
    }
    return correct;
  }

  // Adds a node for each weight; the last node counts the steps.
  void add_lamb() {
    const std::map<std::string, float> ratios = lamb_ratios();
    const int64_t correct = lamb_bias_correction();
    for (const Update& update : updates_) {
      const std::string &weight = update.weight, &half = update.half;
      const bool last = &update == &updates_.back();
      Node node = node_of(weight);
      node.inputs = {finite_,
                     scale_,
                     norm_,
                     d_.p.lr_params_feed_name,
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
      for (const auto& [name, value] : floats_of(d_, kind_, weight))
        node.attributes[name] = std::vector<float>{value};
      for (const auto& [name, value] : ratios)
        if (std::isfinite(value)) node.attributes[name] = value;
      node.attributes["do_bias_correction"] = correct;
      if (const auto whole = d_.part.divided.find(weight); whole != d_.part.divided.end())
        node.attributes["divided"] = whole->second.name;
      push(std::move(node), update, 1);
    }
  }

  // Clears each gradient after its weight was updated.
  void clear_gradients() {
    for (const std::string& weight : d_.weights) {
      // With ZeRO, other processes update some of the weights.
      const std::string after = updated_.count(weight) ? updated_.at(weight) : d_.p.lr_params_feed_name;
      cleared_.push_back(d_.add("ZeroGradient", {weight + "_grad_accumulate_buffer", after},
                                d_.graph.unique_name(weight + "_grad_zero"), {}, kMicrosoft));
    }
  }

  void end_second_part() {
    std::vector<std::string> done = cleared_;
    for (const Update& update : updates_) done.push_back(updated_.at(update.weight));
    d_.out.updated = d_.add("Group", done, d_.graph.unique_name("Group_Updated_Weights"), {}, kMicrosoft);
    d_.add_output(d_.out.updated, DType::kBool, std::vector<Dim>{Dim{1, ""}});
  }

  GraphDraft& d_;
  const OptimizerKind& kind_;
  const std::string norm_, finite_;  // empty: none
  std::string scale_;                // the factor in the gradients; empty: 1
  std::vector<Update> updates_;
  std::map<std::string, std::string> updated_;  // outputs of optimizer nodes, by weight
  std::vector<std::string> cleared_;            // outputs of nodes that clear gradients
};

}  // namespace

const OptimizerKind* choose_optimizer(const GraphDraft& d) {
  if (d.p.training_optimizer_name.empty()) return nullptr;
  const OptimizerKind* chosen = nullptr;
  std::vector<std::string> known;
  for (const OptimizerKind& kind : kOptimizers) {
    known.push_back(kind.type);
    if (d.p.training_optimizer_name == kind.type) chosen = &kind;
  }
  require(chosen != nullptr, ErrorCode::kInvalidArgument, "training_optimizer_name: expected one of ",
          quoted_list(known), ", found \"", d.p.training_optimizer_name, "\"");
  require(!d.p.lr_params_feed_name.empty(), ErrorCode::kInvalidArgument,
          "lr_params_feed_name: expected a name for the input of the learning rate, found none");
  for (const std::string& weight : d.weights) {
    floats_of(d, *chosen, weight);
    const auto ints = ints_of(d, *chosen, weight);
    if (const auto mode = ints.find("weight_decay_mode"); mode != ints.end())
      require(mode->second == 0 || mode->second == 1, ErrorCode::kInvalidArgument,
              "optimizer_int_attributes_map: expected weight_decay_mode 0 or 1 for the weight \"", weight,
              "\", found ", mode->second);
  }
  return chosen;
}

void add_updates(GraphDraft& d, const OptimizerKind& kind, const GradientNorm& norm) {
  OptimizerNodes(d, kind, norm).add();
}

}  // namespace ortrain
