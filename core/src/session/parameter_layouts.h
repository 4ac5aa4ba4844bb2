// The element order in which a training session stores its parameters.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "graph/graph.h"
#include "op/kernel.h"
#include "state/checkpoint_state.h"

namespace ortrain {

// Suffix that turns the name of a trainable parameter into that of the input which accumulates its gradient.
inline constexpr std::string_view kBufferSuffix = "_grad.accumulation.buffer";

// The orders, by name, of the trainable parameters that should not be row-major: weights that only
// convolutions read, in either model, and whose gradient is only accumulated. `eval` may be null.
std::unordered_map<std::string, LayoutPtr> parameter_layouts(const CheckpointState& state, const Model& train,
                                                             const Model* eval);

}  // namespace ortrain
