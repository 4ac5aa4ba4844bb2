#include "ops/elementwise.h"

namespace ortrain {

void expect_same(const NodeContext& c, size_t i, size_t j) {
  c.expect(c.dtype(i) == c.dtype(j), "inputs ", i, " and ", j, " must have the same type, found ",
           to_string(c.dtype(i)), " and ", to_string(c.dtype(j)));
  c.expect(c.shape(i) == c.shape(j), "inputs ", i, " and ", j, " must have the same shape, found ",
           to_string(c.shape(i)), " and ", to_string(c.shape(j)));
}

std::optional<int64_t> operand_axis(const Node& node, int64_t opset, int64_t rank, bool slopes) {
  if (opset >= 7 || !node.domain.empty()) return {};
  if (node.op_type == "PRelu" && slopes) return 1;  // one for each channel
  if (!node.has("axis")) return {};
  return normalize_axis(node.int_or("axis", 0), rank, node.label());
}

Shape operand_shape(const NodeContext& c, size_t i) {
  Shape shape = c.shape(i);
  if (i != 1) return shape;
  const auto axis = operand_axis(c.node(), c.opset(), c.rank(0), c.rank(1) == 1 && c.size(1) > 1);
  if (!axis) return shape;
  c.expect(*axis + c.rank(1) <= c.rank(0), "input 1 of shape ", to_string(shape), " does not fit axis ",
           *axis, " of input 0 of shape ", to_string(c.shape(0)));
  shape.resize(static_cast<size_t>(c.rank(0) - *axis), 1);
  return shape;
}

Shape broadcast_inputs(const NodeContext& c, size_t first) {
  c.expect(c.input_count() > first, "it needs at least ", first + 1, " inputs");
  Shape out = c.shape(0);
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (i >= first)
      c.expect(c.dtype(i) == c.dtype(first), "its inputs must have one type, found ",
               to_string(c.dtype(first)), " and ", to_string(c.dtype(i)));
    try {
      out = broadcast(out, operand_shape(c, i));
    } catch (const Error& error) {
      c.reject(error.message());
    }
  }
  return out;
}

LayoutPtr flat_layout(const KernelContext& c, size_t i) {
  LayoutPtr layout = c.in_layout(i);
  return layout && layout->dense() && !layout->bf16() ? layout : nullptr;
}

Slot out_over(KernelContext& c, std::initializer_list<size_t> candidates, const LayoutPtr& layout) {
  size_t fit[2] = {}, count = 0;
  for (const size_t i : candidates)
    if (count < 2 && c.dtype(i) == c.out_dtype(0) && c.shape(i) == c.out_shape(0)) fit[count++] = i;
  switch (count) {
    case 0:
      return c.out(0, layout);
    case 1:
      return c.out_inplace(0, {fit[0]}, layout);
    default:
      return c.out_inplace(0, {fit[0], fit[1]}, layout);
  }
}

}  // namespace ortrain
