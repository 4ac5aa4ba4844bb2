// Prepares a forward model for the gradient builder.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// Decomposes and fuses the nodes of a model, which must already have only the requested outputs. First turns
// `parameters` from initializers into inputs after the other inputs, in the order of the model, because
// fusions take initializers for constants. Removes nodes that no output needs. `config` switches off passes
// (passes/pass.h). Adds to `problems` why nodes could not be decomposed.
void prepare_forward(Model& model, const std::set<std::string>& parameters,
                     const std::map<std::string, std::string>& config, std::vector<std::string>& problems);

// Throws kNotImplemented with the reasons why a model cannot be trained.
[[noreturn]] void reject_training(const std::vector<std::string>& problems);

// Clears the names of outputs that nothing reads and that the operator need not produce, so they are not
// computed.
void drop_unused_outputs(Graph& graph);

}  // namespace ortrain
