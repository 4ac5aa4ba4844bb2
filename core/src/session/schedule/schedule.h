// Schedule: a learning rate schedule with its settings, and what it keeps from step to step.
//
// After t optimizer steps since first_step, with w warmup steps, the learning rate is the initial rate times
//     (warmup_factor + (1 - warmup_factor) t / w) f(0) while t < w,
//     f(floor((t - w) / interval))                     from then on,
// where f is the factor of the rule (rule.h).
#pragma once

#include <cstdint>
#include <string>

#include "session/schedule/rule.h"
#include "state/checkpoint_state.h"

namespace ortrain {

class Schedule {
 public:
  // `settings` is a text "total_steps=1000, milestones=300:600": names and numbers, separated by commas or
  // blanks; the numbers of a list are separated by colons. Throws kInvalidArgument naming what there is.
  Schedule(const std::string& name, const std::string& settings);
  // The linear schedule of onnxruntime, whose total may be 0.
  static Schedule linear(int64_t warmup_steps, int64_t total_steps);

  // The learning rate after a number of optimizer steps.
  float rate(float initial, int64_t step) const;
  // Takes a value that the schedule follows into account, such as a validation loss.
  void report(double value);

  // Whether the rate never changes.
  bool is_constant() const;
  // For the checkpoint.
  ScheduleState state() const;
  // Continues with what an earlier schedule kept, if that has the same name and first step.
  void continue_from(const ScheduleState& earlier);

 private:
  explicit Schedule(const ScheduleRule& rule);

  double value(std::string_view setting) const { return settings_.find(setting)->second.front(); }

  const ScheduleRule* rule_;
  ScheduleSettings settings_;
  ScheduleScalars scalars_;
};

}  // namespace ortrain
