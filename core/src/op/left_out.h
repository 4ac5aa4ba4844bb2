// Builds without some operators (the CMake option ORTRAIN_OPERATORS): which operators are missing, and the
// hint for errors.
#pragma once

#include <string_view>

#include "graph/graph.h"

namespace ortrain {

// Whether this build leaves out operators.
bool leaves_out_operators();
// What an error about an operator that is not there adds in such a build: how to get it. Empty in a build
// that has all operators.
std::string_view left_out_hint();
// Whether a node of the graph or of its subgraphs has an operator that is not there.
bool lacks_operators(const Graph& graph);

}  // namespace ortrain
