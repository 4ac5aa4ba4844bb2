// Gradient of ai.onnx.preview.training: a node that stands for the derivative of a part of its own graph.
#pragma once

#include "graph/graph.h"

namespace ortrain {

// Puts the derivative in the place of every such node. The node names values of the graph: y, and xs and zs
// that y follows from. Its outputs are the gradients of y, or of the sum of y's elements, with respect to the
// xs, at the values that are its inputs. Where these are the named values themselves, what was computed on
// the way to y is used again. y may be what another such node gives, which is how higher derivatives are
// written. Throws kInvalidGraph where a node names what is not there, kNotImplemented where y cannot be
// differentiated.
void expand_gradient_nodes(Model& model);

}  // namespace ortrain
