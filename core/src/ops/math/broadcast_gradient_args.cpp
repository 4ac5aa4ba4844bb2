// BroadcastGradientArgs (com.microsoft): for the shapes of two operands, the axes of their broadcast shape
// along which each was repeated, which are the axes to sum its gradient over. It only depends on shapes, so
// it is known at compile time.
#include <algorithm>

#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

// The axes along which operand `own` (0 or 1) is broadcast against the other.
std::vector<int64_t> repeated_axes(const NodeContext& c, size_t own) {
  const Shape mine = constant_ints(c, own), other = constant_ints(c, 1 - own);
  const size_t rank = std::max(mine.size(), other.size());
  std::vector<int64_t> axes;
  for (size_t axis = 0; axis < rank; ++axis) {
    const size_t from_end = rank - axis;
    const bool missing = from_end > mine.size();
    const int64_t m = missing ? 1 : mine[mine.size() - from_end];
    const int64_t o = from_end > other.size() ? 1 : other[other.size() - from_end];
    c.expect(m == o || m == 1 || o == 1, "shapes ", to_string(mine), " and ", to_string(other),
             " do not broadcast");
    if (missing || (m == 1 && o != 1)) axes.push_back(static_cast<int64_t>(axis));
  }
  return axes;
}

void shape(ShapeContext& c) {
  for (size_t o = 0; o < 2; ++o)
    if (c.has_output(o)) c.value(o, Tensor::of(repeated_axes(c, o)));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "BroadcastGradientArgs",
                  .signature = "a_shape, b_shape -> a_axes?, b_axes?",
                  .rules = {.shape = shape},
                  .traits = {.stops_gradient = true, .optional_outputs = true}});

}  // namespace
}  // namespace ortrain
