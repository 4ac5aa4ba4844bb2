// The role of an operator in a transformer: the recompute options of training graphs speak of these.
#pragma once

#include "graph/graph.h"

namespace ortrain {

enum class TransformerRole { kNone, kGelu, kSoftmax, kDropout };

TransformerRole transformer_role(const Node& node);

}  // namespace ortrain
