// TrainingSession: the calls of the training loop on one checkpoint state.
//
// A session has one stage for the training model, one for the eval model, and an optimizer. Every call
// holds the checkpoint state (CheckpointState::hold), so one thread may save while another one trains.
//
// A train step that fails halfway, because a label is out of range or the run is terminated, leaves
// incomplete gradients. They are never applied: the optimizer step fails, and the next train step starts
// over.
//
// Frozen parameters that no kernel updates are constants of the stages. So whatever depends on them alone
// is computed once: convolutions are fused with their normalizations, and weights are stored in the layout
// that kernels prefer. When a frozen parameter gets a new value, the stages are rebuilt.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "runtime/tensor.h"
#include "session/options.h"
#include "state/checkpoint_state.h"

namespace ortrain {

class TrainingSession {
 public:
  // With a mapped state, the session evaluates and exports, and does not train: it has neither gradients nor
  // moments. `eval` and `optimizer` may be omitted; calls that need them then fail and say so. Throws if a
  // model cannot be trained (listing all reasons) or does not belong to the checkpoint.
  TrainingSession(SessionOptions options, std::shared_ptr<CheckpointState> state, Model train,
                  std::optional<Model> eval, std::optional<Model> optimizer);
  ~TrainingSession();
  TrainingSession(const TrainingSession&) = delete;
  TrainingSession& operator=(const TrainingSession&) = delete;

  // Forward and backward. `outputs` has one entry for each user output: an undefined tensor is replaced with
  // a new one; a defined one must have the right type and shape, and is written into. Neither call allocates
  // memory once a shape has been seen and the outputs are given.
  void train_step(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
                  const RunOptions* options = nullptr);
  void eval_step(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
                 const RunOptions* options = nullptr);
  // Whether eval steps and exports use the average of the weights, if the optimizer keeps one: they do unless
  // this is switched off. Throws kInvalidArgument if it keeps none.
  void use_average_weights(bool use);
  void lazy_reset_grad();
  // The gradients of all trainable parameters as one buffer, as CheckpointState has them, and their norm.
  void copy_gradients_to_buffer(const Tensor& buffer) const;
  void copy_buffer_to_gradients(const Tensor& buffer);
  double gradient_norm() const;
  void optimizer_step(const RunOptions* options = nullptr);
  // How many optimizer steps were left out because a gradient was NaN or infinite.
  int64_t skipped_steps() const;

  bool has_optimizer() const;
  // Adds an optimizer model to a session created without one. Throws kModelLoaded if it already has one.
  void attach_optimizer(const Model& optimizer);

  void set_learning_rate(float learning_rate);
  float learning_rate() const;
  // The parameter groups of the optimizer, in the order of its model, and the group of a trainable parameter.
  size_t group_count() const;
  const std::string& group_name(size_t index) const;
  const std::string& group_of(const std::string& parameter) const;
  // The parameters of a group, in the order of the state.
  size_t group_size(const std::string& group) const;
  const std::string& group_parameter(const std::string& group, size_t index) const;
  // An attribute of a group: learning_rate, or one of Optimizer's. What is set is saved with the optimizer's
  // state. The rate of a group is stored as a factor, so that it follows schedules.
  float group_attribute(const std::string& group, const std::string& attribute) const;
  void set_group_attribute(const std::string& group, const std::string& attribute, float value);
  // Throws when a count is negative or the rate is not a finite number.
  void register_linear_lr_scheduler(int64_t warmup_steps, int64_t total_steps, float initial_learning_rate);
  // A schedule by name, with settings as a text (schedule/schedule.h). It is saved with the optimizer's
  // state, and a session that is created with that state continues it. The factor is that of the steps taken
  // so far.
  void register_lr_scheduler(const std::string& schedule, const std::string& settings,
                             float initial_learning_rate);
  void scheduler_step();
  // Tells the schedule a value that it may follow, such as a validation loss, and sets the learning rate.
  void scheduler_report(float value);

  // The user's inputs and outputs, without parameters and gradient buffers. A session without an eval model
  // has no names for it.
  const std::vector<ValueInfo>& inputs(bool training) const;
  const std::vector<std::string>& input_names(bool training) const;
  const std::vector<std::string>& output_names(bool training) const;

  // Writes the eval model, pruned to the requested outputs, with the parameters in it.
  void export_for_inferencing(const std::filesystem::path& path,
                              const std::vector<std::string>& outputs) const;

  // From now on every step records how long each kernel takes, until the profile is taken. Calling this again
  // starts over.
  void start_profiling();
  // The profile in Chrome's trace event format. Throws if nothing is being recorded.
  std::string end_profiling();

  const SessionOptions& options() const;
  CheckpointState& state() { return *state_; }

 private:
  struct Impl;
  std::shared_ptr<CheckpointState> state_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain
