// Nodes of custom operators (op/custom.h) in the model of a session.
#pragma once

#include <memory>
#include <vector>

#include "graph/graph.h"
#include "op/custom.h"

namespace ortrain {

// The custom nodes of a model, which can run as long as this exists.
using CustomNodes = std::vector<std::shared_ptr<CustomNode>>;

// Replaces the nodes of custom operators, those of subgraphs included, and prepares them.
CustomNodes bind_custom_nodes(Model& model, const CustomOperators& operators);

}  // namespace ortrain
