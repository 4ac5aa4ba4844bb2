// Compares attributes by their bits: 0.0 differs from -0.0, a NaN equals itself, and numbers that print alike
// may differ.
#pragma once

#include <cstddef>

#include "graph/graph.h"

namespace ortrain {

// True if both have the same attributes, bit by bit. Subgraphs are the same if all of their nodes, values and
// names are; tensors of strings never are.
bool same_bits(const Attributes& a, const Attributes& b);

// A hash: equal for attributes that are the same.
size_t hash_bits(const Attributes& attributes);

}  // namespace ortrain
