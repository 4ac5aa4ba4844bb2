// Shape and Size: dimensions as values. The operators read no element of their input, so their results are
// known when a Program is compiled.
#include "ops/tensor/shape.h"

#include <algorithm>

#include "ops/common/shape_helpers.h"

namespace ortrain {

std::pair<int64_t, int64_t> shape_axes(const Node& node, int64_t rank) {
  const auto position = [&](int64_t p) { return std::clamp<int64_t>(p < 0 ? p + rank : p, 0, rank); };
  const int64_t start = position(node.int_or("start", 0));
  return {start, std::max(start, position(node.int_or("end", rank)))};
}

namespace {

void shape_shape(ShapeContext& c) {
  const auto [start, end] = shape_axes(c.node(), c.rank(0));
  const Shape& shape = c.shape(0);
  c.value(0, Tensor::of(std::vector<int64_t>(shape.begin() + start, shape.begin() + end)));
}

ORTRAIN_OPERATOR({.type = "Shape",
                  .rules = {.shape = shape_shape, .element_type = always<DType::kInt64>},
                  .traits = {.stops_gradient = true}});

void size_shape(ShapeContext& c) { c.value(0, Tensor::scalar(c.size(0))); }

ORTRAIN_OPERATOR({.type = "Size",
                  .rules = {.shape = size_shape, .element_type = always<DType::kInt64>},
                  .traits = {.stops_gradient = true}});

}  // namespace
}  // namespace ortrain
