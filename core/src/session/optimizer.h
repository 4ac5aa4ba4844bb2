// Optimizer: applies the optimizer that an optimizer model describes to the parameters, in one pass over the
// state's arenas.
//
// The optimizer model is read, not run: it describes one of the declared optimizers
// (backend/cpu/optimizer/rule.h), and one pass over the contiguous state has the same effect. A model with an
// optimizer node per group of parameters gives each group its settings; parameters of a group that are
// neighbours in memory are updated in one pass. Optimizers that need sums over a parameter take each
// separately.
//
// AdamW and plain SGD are AdamWOptimizer and SGDOptimizerV2 of com.microsoft, as onnxruntime-training has
// them. All others are one operator, Optimizer of the domain ortrain, with the name of the declaration as the
// attribute `type` and its settings as attributes; the inputs are learning rate, step, parameters, gradients
// and a sequence for each state. One operator, because no graph runs it: with an operator for each, a new
// optimizer would need a signature and shape rules that nothing uses, and readers of models would need to
// know its name. WeightAverage of the domain ortrain has the decay of an exponential moving average of the
// weights, which is one more state. Settings that a program changes are part of the state, and override those
// of the model when a session is created with that state.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/optimizer/rule.h"
#include "graph/graph.h"
#include "ops/optimizer/optimizer_update.h"
#include "session/gradient_bounds.h"
#include "session/gradient_clipping.h"
#include "session/gradient_rows.h"
#include "state/checkpoint_state.h"

namespace ortrain {

// Parameters that are updated with the same settings.
struct ParameterGroup {
  std::string name;
  std::vector<std::string> parameters;  // empty: those that no other group names
  float learning_rate_factor = 1;       // what the learning rate is multiplied by
  OptimizerValues values;
  std::vector<double*> kept;  // where the state has the scalars
};

// The exponential moving average of the weights.
struct WeightAverage {
  float decay;
  bool warmup;  // whether the decay of the first steps is less, (1 + n) / (10 + n) after n
};

// Reads the model (nodes of one optimizer, one for each group of parameters, and nodes that clip gradients or
// average weights) and applies it.
class Optimizer {
 public:
  // Throws kNotImplemented naming every node that is not one of those, kInvalidGraph when there is no
  // optimizer or the groups contradict each other.
  explicit Optimizer(const Model& model);

  // The names of the states that each parameter has: two with AdamW, none with plain SGD.
  const std::vector<std::string>& state_names() const { return state_names_; }

  const OptimizerRule& rule() const { return *rule_; }

  // The name for profiles: the operator of com.microsoft, or the declaration's title.
  const std::string& type() const { return rule_->node.empty() ? rule_->title : rule_->node; }

  // The step of a group as a formula; empty if the step takes tensors.
  Formula formula(const ParameterGroup& group) const;
  // The limit of the norm of all gradients; none if there is none. Throws kNotImplemented if the model has
  // nodes that a formula does not state.
  std::optional<float> norm_limit() const;

  // The type and shape of a state of a trainable parameter, by its index in the state.
  Tensor state_form(size_t parameter, const Parameter& p, size_t k) const;
  // Makes the states of the parameters; take() was called before.
  void make_states(CheckpointState& state) const;
  // Whether the step takes parameters as a whole, which then are row-major.
  bool takes_tensors() const { return rule_->of_tensor != nullptr; }

  // Assigns the trainable parameters to groups, and takes the settings and scalars of groups that the state
  // has. Throws kInvalidArgument if they do not fit.
  void take(CheckpointState& state);

  const std::vector<ParameterGroup>& groups() const { return groups_; }
  // Throws kInvalidArgument naming the groups there are.
  const ParameterGroup& group(const std::string& name) const;
  // The group of the parameter with this index in the state; null for a frozen one.
  const ParameterGroup* group_of(size_t parameter) const;
  // The indices in the state of the parameters of a group.
  std::vector<size_t> parameters_of(const std::string& group) const;
  // learning_rate_factor, or a setting of the declaration. Throws kInvalidArgument for unknown names, values
  // out of range, and settings that need a state which the optimizer model does not have.
  float attribute(const std::string& group, const std::string& attribute) const;
  void set_attribute(const std::string& group, const std::string& attribute, float value);

  // Whether every step computes the norm of the gradients.
  bool clips() const { return clipping_.norm && !clipping_.changes_gradients(); }

  // The index of the moment that has the average of the weights; none if there is no average, or none yet.
  std::optional<size_t> average_of(const CheckpointState& state) const;
  bool averages() const { return average_.has_value() || evaluated_.has_value(); }

  // Updates all trainable parameters with their gradients. `step` counts from 1. With `bounds`, changes
  // nothing and returns false if a gradient is a NaN or infinite; gradients whose bounds prove that they are
  // finite are not read for this check. Rows of tables whose gradient is zero are skipped if the step would
  // not change them; with `lazy` they are always skipped. No row is skipped if the optimizer needs sums over
  // whole parameters or averages weights itself.
  bool apply(CheckpointState& state, float learning_rate, int64_t step, const GradientBounds* bounds,
             const GradientRows& rows, bool lazy);

 private:
  void add_group(const Node& node, const OptimizerRule& rule, std::string& problems);
  void read_average(const Node& node, std::string& problems);
  void choose_passes();
  // `scale`: what the gradients are multiplied by, which clips their norm.
  void update_group(size_t group, const CheckpointState& state, float learning_rate, int64_t step,
                    double scale, const GradientRows& rows, bool lazy);
  void update_average(CheckpointState& state) const;

  const OptimizerRule* rule_ = nullptr;
  const OptimizerPasses* passes_ = nullptr;
  std::vector<std::string> state_names_;
  std::vector<ParameterGroup> groups_;
  std::vector<size_t> group_of_;  // by the index of the parameter in the state; SIZE_MAX: none, it is frozen
  GradientClipping clipping_;
  std::optional<WeightAverage> average_;
  Tensor work_;                      // of steps that take parameters as a whole
  std::vector<size_t> tables_;       // of the parameters of a step, those that are updated by rows
  std::optional<size_t> evaluated_;  // the state of the declaration that evaluation uses
};

// The trainable parameters with gradients that are NaN or infinite, for an error message, and how many of
// each.
std::string nonfinite_gradients(const CheckpointState& state);

// The Euclidean norm of the gradients of all trainable parameters together.
double gradient_norm(const CheckpointState& state, const GradientRows& rows);

}  // namespace ortrain
