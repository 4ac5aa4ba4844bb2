// Shape and Size: dimensions as values. They read no element of their input, so they are known when a Program
// is compiled.
#include <algorithm>

#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

// The part [start, end) of the dimensions; both count from the end where negative and are clamped.
std::vector<int64_t> wanted_extents(const NodeContext& c) {
  const Shape& shape = c.shape(0);
  const int64_t rank = c.rank(0);
  const auto position = [&](int64_t p) { return std::clamp<int64_t>(p < 0 ? p + rank : p, 0, rank); };
  const int64_t start = position(c.node().int_or("start", 0));
  const int64_t end = std::max(start, position(c.node().int_or("end", rank)));
  return {shape.begin() + start, shape.begin() + end};
}

void shape_shape(ShapeContext& c) { c.value(0, Tensor::of(wanted_extents(c))); }

ORTRAIN_OPERATOR({.type = "Shape",
                  .rules = {.shape = shape_shape, .element_type = always<DType::kInt64>},
                  .traits = {.stops_gradient = true}});

void size_shape(ShapeContext& c) { c.value(0, Tensor::scalar(c.size(0))); }

ORTRAIN_OPERATOR({.type = "Size",
                  .rules = {.shape = size_shape, .element_type = always<DType::kInt64>},
                  .traits = {.stops_gradient = true}});

}  // namespace
}  // namespace ortrain
