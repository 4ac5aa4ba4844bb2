// Gradient of ai.onnx.preview.training: a node that represents the derivative of a part of the graph that
// contains it.
//
// The nodes between the independent values and y become a separate model, which the gradient builder
// differentiates. The result replaces the node. Forward values keep their names if the gradient is taken
// at the values that the graph computes. A node whose y depends on another gradient is replaced after that
// one.
#pragma once

#include "graph/graph.h"

namespace ortrain {

// Replaces every such node by the derivative. The node names values of the graph: y, and the xs and zs that y
// depends on. Its outputs are the gradients of y, or of the sum of y's elements, with respect to the xs, at
// the values that are its inputs. If these are the named values themselves, what was computed on the way to y
// is reused. y may be the result of another such node, which is how higher derivatives are written. Throws
// kInvalidGraph if a node names a missing value, kNotImplemented if y cannot be differentiated.
void expand_gradient_nodes(Model& model);

}  // namespace ortrain
