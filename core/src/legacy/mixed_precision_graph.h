// Mixed precision of a training graph: 16-bit copies of weights that the nodes read, and the loss scale.
#pragma once

#include <string>

#include "legacy/graph_draft.h"

namespace ortrain {

// Has the forward graph compute in float16, unless the session stores values in bfloat16 instead.
void use_halves(GraphDraft& d);
// The value to differentiate: the loss, in mixed precision times a new input. Only the last stage of a
// pipeline scales; the gradients that the others receive are scaled already.
std::string add_loss_scale(GraphDraft& d);
// Has the copy of a weight become a state, if there is one. Returns its name; empty: none.
std::string add_half_state(GraphDraft& d, const std::string& weight, bool hidden = false);

}  // namespace ortrain
