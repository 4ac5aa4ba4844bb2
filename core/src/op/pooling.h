// Pooling.
#pragma once

#include "op/operator.h"
#include "op/sliding_window.h"

namespace ortrain {

// The windows over X; those that pooling cannot use are rejected.
Window read_pool(const NodeContext& c, const Shape& x);

}  // namespace ortrain
