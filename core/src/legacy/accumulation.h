// What follows the gradients of a training graph: their accumulation over several runs, and their norm.
#pragma once

#include <string>

#include "legacy/graph_draft.h"

namespace ortrain {

// Adds each gradient to a buffer, which is a state.
void accumulate(GraphDraft& d);

struct GradientNorm {
  std::string value;   // of all gradients together, as sums over the accumulated runs; empty: not computed
  std::string finite;  // whether it is finite, if this process computes that; otherwise empty
};
// Other processes have a part in the norm of several, so there it is an input.
GradientNorm add_norm(GraphDraft& d);

}  // namespace ortrain
