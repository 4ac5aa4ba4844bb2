// How far the loops of a kernel may go.
#pragma once

#include <algorithm>

#include "runtime/shape.h"

namespace ortrain {

// The elements of a shape where a dimension of 0 counts as 1: a kernel may go through the other dimensions
// all the same. Throws if they cannot be counted.
inline int64_t elements_to_visit(Shape shape) {
  for (int64_t& dim : shape) dim = dim == 0 ? 1 : dim;
  return element_count(shape);
}

}  // namespace ortrain
