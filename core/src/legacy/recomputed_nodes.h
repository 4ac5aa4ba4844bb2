// Recomputation as nodes of a graph: what the recompute options of training graphs name.
#pragma once

#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// The values of a forward graph to recompute, by what they are. A value that depends on a weight is active.
std::set<std::string> gelu_outputs(const Graph& graph);
std::set<std::string> attention_dropout_outputs(const Graph& graph);
// Of transformer layers, each with its inner values; layers end at values through which everything active
// passes, and have an attention each.
std::vector<std::set<std::string>> transformer_layers(const Graph& graph,
                                                      const std::unordered_set<std::string>& weights,
                                                      const std::string& loss);

// Has nodes that are not in `forward` (the outputs of the forward nodes) read second copies of these values,
// made by copies of their nodes right before the first reader. Values of nodes that cannot run twice are read
// as they are.
void recompute(Graph& graph, const std::unordered_set<std::string>& forward,
               const std::set<std::string>& values);

}  // namespace ortrain
