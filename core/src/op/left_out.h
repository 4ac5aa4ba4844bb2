// Builds without some operators (the CMake option ORTRAIN_OPERATORS): which operators are missing, and the
// hint for errors.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace ortrain {

// Whether this build leaves out operators.
bool leaves_out_operators();
// The last part of an error about a missing operator: how to build the library with it. Empty if this build
// has all operators.
std::string_view left_out_hint();
// Whether a node of the graph or of its subgraphs has an operator that is not part of this build.
bool lacks_operators(const Graph& graph);

}  // namespace ortrain
