// Replaces operators with their decompositions (op/decomposition.h).
#pragma once

#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

enum class DecomposeFor {
  kRun,       // nodes that no kernel can run, and those with the trait decomposed_to_run
  kGradient,  // the same, and gradient operators
  kStandard,  // all nodes that have a standard form (op/standard_form.h), or are not ONNX's and can be
              // decomposed
};

// Replaces all nodes of the model and its subgraphs whose operator is decomposed for that purpose. Nodes that
// cannot be decomposed are left as they are; returns the reasons, each with the node's label, except, unless
// it is for the standard, for nodes that a kernel can run.
std::vector<std::string> decompose_operators(Model& model, DecomposeFor purpose);

}  // namespace ortrain
