// BroadcastGradientArgs (com.microsoft): for the shapes of two operands, the axes of their broadcast shape
// along which each operand was repeated. The gradient of the operand is summed over these axes. The result
// only depends on shapes, so it is known at compile time.
#include <algorithm>

#include "op/gradient_expression.h"
#include "op/standard_form.h"
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

// With operators of ONNX: the axes that an operand lacks, and the axes along which only this operand has size
// 1.
void form(DecompositionContext& e) {
  // Both shapes with the same number of axes; an axis that an operand lacks has the size -1 in that operand's
  // shape.
  const std::string lengths[] = {e("Shape", {e.x(0)}), e("Shape", {e.x(1)})};
  const Expression rank(e, e("Max", {lengths[0], lengths[1]}));
  const auto padded = [&](size_t i, int64_t value) {
    const Name front = e("ConstantOfShape", {rank - Expression(e, lengths[i])},
                         {{"value", Tensor::of(std::vector<int64_t>{value})}});
    return Expression(e, e("Concat", {front, e.x(i)}, {{"axis", int64_t{0}}}));
  };
  for (size_t i = 0; i < 2; ++i) {
    if (!e.has_y(i)) continue;
    const Expression own = padded(i, -1), other = padded(1 - i, 1);
    const Name differs = e("Not", {own.call("Equal", other)});
    const Name repeated = e("And", {own.call("Equal", own.number(1)), differs});
    const Name missing = own.call("Less", own.number(0));
    e.set(i, e("Reshape", {e("NonZero", {e("Or", {repeated, missing})}), e.int64s({-1})}));
  }
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "BroadcastGradientArgs", {cold<form>});

}  // namespace
}  // namespace ortrain
