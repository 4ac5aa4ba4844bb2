// Models for other runtimes: the same computation with operators of ONNX alone.
#pragma once

#include "graph/graph.h"

namespace ortrain {

// The model with every node that is not an operator of ONNX, or of which runtimes only have a part, in its
// standard form (op/standard_form.h). Equal nodes are merged, and nodes that nothing reads are removed. Its
// opset must be at least 17. Throws kNotImplemented with the complete list of nodes that have no such form.
Model standard_model(const Model& model);

}  // namespace ortrain
