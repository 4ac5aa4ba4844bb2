// Computing a forward model in 16 bits.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

// Has the float32 nodes that can do so compute in float16, with conversions where types differ. What lies
// between the last weight and the loss stays in float32. `weights` are inputs of the graph of type float32;
// those that are read in float16 are replaced with inputs `<weight>_fp16`, whose names are returned by
// weight. Outputs of the model may become float16.
std::map<std::string, std::string> use_half_precision(Model& model, const std::set<std::string>& weights,
                                                      const std::string& loss);

// Moves conversions between float32 and 16 bits past nodes that can compute in 16 bits: those of `allow`,
// from level 1 on those that move elements about, from level 2 on those that have kernels for 16 bits. A
// level below 0 changes nothing.
void propagate_casts(Model& model, int64_t level, const std::vector<std::string>& allow);

}  // namespace ortrain
