// The gradient of a layer normalization from its output.
#pragma once

#include <optional>

#include "graph/graph.h"

namespace ortrain {

// A node that computes the same as `backward`, the gradient of `forward`, but from the output of `forward`,
// so that its input need not be kept. Nothing if the two nodes are not of this kind.
std::optional<Node> layer_normalization_gradient_from_output(const Node& backward, const Node& forward);

}  // namespace ortrain
