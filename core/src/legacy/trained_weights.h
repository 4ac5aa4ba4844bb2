// Which weights of a model are trained.
#pragma once

#include "legacy/graph_draft.h"

namespace ortrain {

// Those that the parameters name or, if they name none, floating-point initializers that a gradient of the
// loss reaches; without those that are excluded. Throws kInvalidArgument if the model does not compute the
// loss, if a named weight is not an initializer, or if none is left.
void choose_weights(GraphDraft& d);

}  // namespace ortrain
