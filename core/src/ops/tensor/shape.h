// Which dimensions a Shape node reads.
#pragma once

#include <cstdint>
#include <utility>

#include "graph/graph.h"

namespace ortrain {

// The part [start, end) of the axes of an input of that rank; negative attributes count from the end, and
// attributes are clamped to [0, rank].
std::pair<int64_t, int64_t> shape_axes(const Node& node, int64_t rank);

}  // namespace ortrain
