// Stochastic gradient descent without momentum, for operators that need it alone.
#pragma once

namespace ortrain {

struct OptimizerPasses;

template <typename T>
struct SgdFactors {
  T rate = 0, kept = 1;  // `kept`: what weight decay leaves of a weight
};

// w ← kept w - rate g
const OptimizerPasses& sgd_passes();

}  // namespace ortrain
