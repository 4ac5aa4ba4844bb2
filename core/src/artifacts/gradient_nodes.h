// Gradient of ai.onnx.preview.training: a node that represents the derivative of a part of the graph that
// contains it.
//
// The nodes between the independent values and y become a separate model, which the gradient builder
// differentiates. The result replaces the node. Forward values keep their names if the gradient is taken at
// the values that the graph computes. If y depends on another Gradient node, that other node is replaced
// first.
#pragma once

#include "graph/graph.h"

namespace ortrain {

// Replaces every Gradient node by nodes that compute the derivative. The attributes of a Gradient node name
// values of the graph: y, and the xs and zs that y depends on. The outputs are the gradients of y, or of the
// sum of y's elements, with respect to the xs, where the xs and zs have the values of the node's inputs. If
// the inputs are the named xs and zs themselves, the derivative reads the intermediate values that the graph
// computes for y. y may be the output of another Gradient node: models write higher derivatives in this way.
// Throws kInvalidGraph if a node names a missing value, kNotImplemented if y cannot be differentiated.
void expand_gradient_nodes(Model& model);

}  // namespace ortrain
