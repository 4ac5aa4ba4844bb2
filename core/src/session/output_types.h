// The types and shapes of a model's outputs, as far as they are known.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace ortrain {

// The type and shape of each output, whether the model states them or not. Operators without a shape rule of
// their own are decomposed for this. With `name_all`, every dimension whose size is not known has a name.
std::vector<ValueInfo> output_types(const Model& model, bool name_all = false);

}  // namespace ortrain
