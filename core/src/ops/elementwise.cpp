#include "ops/elementwise.h"

namespace ortrain {

void expect_same(const NodeContext& c, size_t i, size_t j) {
  c.expect(c.dtype(i) == c.dtype(j), "inputs ", i, " and ", j, " must have the same type, found ",
           to_string(c.dtype(i)), " and ", to_string(c.dtype(j)));
  c.expect(c.shape(i) == c.shape(j), "inputs ", i, " and ", j, " must have the same shape, found ",
           to_string(c.shape(i)), " and ", to_string(c.shape(j)));
}

Shape broadcast_inputs(const NodeContext& c, size_t first) {
  c.expect(c.input_count() > first, "it needs at least ", first + 1, " inputs");
  Shape out = c.shape(0);
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (i >= first)
      c.expect(c.dtype(i) == c.dtype(first), "its inputs must have one type, found ",
               to_string(c.dtype(first)), " and ", to_string(c.dtype(i)));
    try {
      out = broadcast(out, c.shape(i));
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
