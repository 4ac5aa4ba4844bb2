// Attributes compared by their bits: 0.0 is not -0.0, a NaN is itself, and numbers that print alike may
// differ.
#pragma once

#include <cstddef>

#include "graph/graph.h"

namespace ortrain {

// True where both hold the same attributes, bit by bit. Subgraphs are the same where all of their nodes,
// values and names are; tensors of strings never are.
bool same_bits(const Attributes& a, const Attributes& b);

// A number that is the same for attributes that are the same.
size_t hash_bits(const Attributes& attributes);

}  // namespace ortrain
