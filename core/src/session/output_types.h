// What is known of a model's outputs.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace ortrain {

// Type and shape of each output, whether the model states them or not. Operators that have no shape rule of
// their own are decomposed for it. With `name_all`, every dimension whose size is not known has a name.
std::vector<ValueInfo> output_types(const Model& model, bool name_all = false);

}  // namespace ortrain
