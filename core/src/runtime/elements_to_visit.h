// How far the loops of a kernel may go.
#pragma once

#include <algorithm>

#include "runtime/shape.h"

namespace ortrain {

// The number of elements of a shape if a dimension of 0 counts as 1: a kernel may visit all positions of the
// other dimensions nevertheless. Throws if the number does not fit.
inline int64_t elements_to_visit(Shape shape) {
  for (int64_t& dim : shape) dim = dim == 0 ? 1 : dim;
  return element_count(shape);
}

}  // namespace ortrain
