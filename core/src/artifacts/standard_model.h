// Models for other runtimes: the same computation with only operators of ONNX.
#pragma once

#include "graph/graph.h"

namespace ortrain {

// Returns the model with the standard forms (op/standard_form.h) of all nodes whose operators ONNX does not
// define or other runtimes support only in part. Equal nodes are merged, and nodes that nothing reads are
// removed. The opset of the model must be at least 17. Throws kNotImplemented with the complete list of nodes
// that have no such form.
Model standard_model(const Model& model);

}  // namespace ortrain
