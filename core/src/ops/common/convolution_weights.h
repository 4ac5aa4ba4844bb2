// The order of elements in which convolutions want weights that are trained, for whoever keeps them.
#pragma once

#include <cstddef>

#include "graph/graph.h"
#include "op/kernel.h"
#include "runtime/shape.h"

namespace ortrain {

// The attribute by which a session allows Winograd's convolution (passes/winograd.cpp).
inline constexpr const char* kWinograd = "winograd";

// Whether the node reads its input i as the weights of a convolution, which may lie in any order then.
bool reads_convolution_weights(const Node& node, size_t i);

// The order that such a node wants for float weights of shape `w`; null: row-major. It is that of the forward
// pass and of the gradient for an X of common extents: for others the node may want another one, and brings
// the weights into it as it does with row-major ones. An order that takes padding is never proposed.
LayoutPtr convolution_weights_order(const Node& node, const Shape& w);

}  // namespace ortrain
