// The element order in which a training session stores its parameters.
//
// Weights that only convolutions read are stored in the element order that convolutions prefer, and so are
// their gradients and moments: no step packs weights or unpacks gradients. An order is chosen only if it
// needs no padding, so that sizes, offsets and everything that treats all elements alike (optimizer,
// clipping, accumulation) stay the same. Whoever reads or writes a parameter (by name, buffer, checkpoint,
// export) converts it at that point, so callers never see the order and files are bitwise identical.
//
// The order is chosen when the session is created. It is a preference and needs no input shapes: a Program
// whose convolution wants another order reorders the weights. The first step could choose exactly, but
// that would invalidate every Program compiled before. If a later session cannot use the order of a
// parameter, the parameter becomes row-major for good.
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
