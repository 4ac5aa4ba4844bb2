// TrainingSession: the calls of the training loop on one checkpoint state.
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
  // `eval` and `optimizer` may be left out; calls that need them then say so. Throws when a model cannot be
  // trained (all reasons at once) or does not belong to the checkpoint.
  TrainingSession(SessionOptions options, std::shared_ptr<CheckpointState> state, Model train,
                  std::optional<Model> eval, std::optional<Model> optimizer);
  ~TrainingSession();
  TrainingSession(const TrainingSession&) = delete;
  TrainingSession& operator=(const TrainingSession&) = delete;

  // Forward and backward. `outputs` has one entry for each user output; an undefined tensor is filled with a
  // new one, a defined one must have the right type and shape and is written into. Neither call allocates
  // memory once a shape has been seen and the outputs are given.
  void train_step(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
                  const RunOptions* options = nullptr);
  void eval_step(std::span<const Tensor* const> inputs, std::span<Tensor* const> outputs,
                 const RunOptions* options = nullptr);
  void lazy_reset_grad();
  void optimizer_step(const RunOptions* options = nullptr);

  bool has_optimizer() const;
  // Gives a session that was made without an optimizer model one. Throws kModelLoaded when it has one.
  void attach_optimizer(const Model& optimizer);

  void set_learning_rate(float learning_rate);
  float learning_rate() const;
  // Throws when a count is negative or the rate is not a finite number.
  void register_linear_lr_scheduler(int64_t warmup_steps, int64_t total_steps, float initial_learning_rate);
  void scheduler_step();

  // The user's inputs and outputs, without parameters and gradient buffers. A session without an eval model
  // has no names for it.
  const std::vector<ValueInfo>& inputs(bool training) const;
  const std::vector<std::string>& input_names(bool training) const;
  const std::vector<std::string>& output_names(bool training) const;

  // Writes the eval model pruned to the wanted outputs, the parameters inside.
  void export_for_inferencing(const std::filesystem::path& path,
                              const std::vector<std::string>& outputs) const;

  // From here on every step records how long each kernel takes, until the profile is taken. Recording again
  // starts over.
  void start_profiling();
  // The record in Chrome's trace event format. Throws when nothing is being recorded.
  std::string end_profiling();

  CheckpointState& state() { return *state_; }
  const std::shared_ptr<CheckpointState>& shared_state() const { return state_; }

 private:
  struct Impl;
  std::shared_ptr<CheckpointState> state_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ortrain
