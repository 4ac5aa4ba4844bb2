// The exponential moving average of weights.
#pragma once

#include "backend/cpu/optimizer/optimizer_run.h"

namespace ortrain {

// average ← kept · average + (1 - kept) · w, where the average is the first state of the run.
void average_weights(OptimizerRun run, double kept);

}  // namespace ortrain
