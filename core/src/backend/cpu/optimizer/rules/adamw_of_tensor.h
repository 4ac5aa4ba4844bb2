// AdamW in the form of PyTorch, for the parameters of other optimizers whose states are those of AdamW.
#pragma once

#include <array>

#include "backend/cpu/optimizer/rules/adamw.h"
#include "backend/cpu/optimizer/tensor_rule.h"

namespace ortrain {

// The settings beta1, beta2, epsilon and weight_decay. `step` counts from 1.
inline AdamWFactors<double> adamw_factors(const OptimizerStep& s) {
  const AdamWSettings settings{s["beta1"], s["beta2"], s["epsilon"], s["weight_decay"], true, 0};
  return adamw_factors(settings, s.rate, static_cast<int64_t>(s.step));
}

// In the order in which the passes of AdamW take them.
inline std::array<double, 7> adamw_pass_factors(const OptimizerStep& s) {
  const AdamWFactors<double> f = adamw_factors(s);
  return {f.alpha, f.beta, f.epsilon, f.decay_before, f.decay_after, f.root_scale, f.step_size};
}

// The first two states are the moments.
template <typename T>
void run_adamw(const OptimizerStep& s, const TensorRun<T>& run) {
  const auto factors = adamw_pass_factors(s);
  const OptimizerRun elements{dtype_of<T>(),
                              reinterpret_cast<std::byte*>(run.w),
                              reinterpret_cast<std::byte*>(const_cast<T*>(run.g)),
                              {run.states[0].raw(), run.states[1].raw()},
                              run.n};
  run_optimizer(adamw_passes(), elements, factors.data(), s.gradient_scale);
}

}  // namespace ortrain
