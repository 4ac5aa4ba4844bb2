// The gradients of a training graph, and nodes that are computed a second time for them.
#pragma once

#include "legacy/graph_draft.h"

namespace ortrain {

// Adds the gradients of weights and received inputs to a forward graph whose weights are inputs. Throws
// kNotImplemented with all that prevents training.
void add_gradients(GraphDraft& d);

}  // namespace ortrain
