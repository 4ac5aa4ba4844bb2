// The numbers of a step of AdamW, in both of its forms.
#pragma once

#include <cstdint>

namespace ortrain {

struct OptimizerPasses;

template <typename T>
struct AdamWFactors {
  T alpha = 0, beta = 0, epsilon = 0;   // decay rates of the moments; what keeps the square root from zero
  T decay_before = 1, decay_after = 1;  // what weight decay leaves of a weight, before and after the step
  T root_scale = 1;                     // 1 / sqrt(bias correction of the second moment)
  T step_size = 0;
};

struct AdamWSettings {
  double alpha = 0.9, beta = 0.999, epsilon = 1e-8, weight_decay = 1e-2;
  bool correct_bias = true;
  int64_t adam_mode = 0;
};

// `step` counts from 1.
AdamWFactors<double> adamw_factors(const AdamWSettings& settings, double learning_rate, int64_t step);

// m ← αm + (1-α)g,  v ← βv + (1-β)g²,  w ← decay_after (decay_before w - step_size m / (root_scale √v + ε))
const OptimizerPasses& adamw_passes();

}  // namespace ortrain
