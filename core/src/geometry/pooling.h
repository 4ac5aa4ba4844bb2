// The windows of pooling operators.
#pragma once

#include "geometry/sliding_window.h"
#include "op/operator.h"

namespace ortrain {

// The windows over X. Rejects windows that pooling cannot use.
Window read_pool(const NodeContext& c, const Shape& x);

}  // namespace ortrain
