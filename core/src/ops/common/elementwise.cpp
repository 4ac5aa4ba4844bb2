#include "ops/common/elementwise.h"

#include "backend/cpu/axis_order.h"
#include "op/opset.h"
#include "runtime/broadcast.h"
#include "runtime/threads.h"

namespace ortrain {

void expect_same(const NodeContext& c, size_t i, size_t j) {
  c.expect(c.dtype(i) == c.dtype(j), "inputs ", i, " and ", j, " must have the same type, found ",
           to_string(c.dtype(i)), " and ", to_string(c.dtype(j)));
  c.expect(c.shape(i) == c.shape(j), "inputs ", i, " and ", j, " must have the same shape, found ",
           to_string(c.shape(i)), " and ", to_string(c.shape(j)));
}

std::optional<int64_t> operand_axis(const Node& node, int64_t opset, int64_t rank, bool channels) {
  if (opset >= since::kBroadcasting || !node.domain.empty()) return {};
  if (channels) return 1;
  if (!node.has("axis")) return {};
  return normalize_axis(node.int_or("axis", 0), rank, node.label());
}

Shape operand_shape(const NodeContext& c, size_t i, bool slopes) {
  Shape shape = c.shape(i);
  if (i != 1) return shape;
  const bool channels = slopes && c.rank(1) == 1 && c.size(1) > 1;
  const auto axis = operand_axis(c.node(), c.opset(), c.rank(0), channels);
  if (!axis) return shape;
  c.expect(*axis + c.rank(1) <= c.rank(0), "input 1 of shape ", to_string(shape), " does not fit axis ",
           *axis, " of input 0 of shape ", to_string(c.shape(0)));
  shape.resize(static_cast<size_t>(c.rank(0) - *axis), 1);
  return shape;
}

Shape broadcast_inputs(const NodeContext& c, size_t first, bool slopes) {
  c.expect(c.input_count() > first, "it needs at least ", counted(first + 1, "input"), ", found ",
           c.input_count());
  Shape out = c.shape(0);
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (i >= first)
      c.expect(c.dtype(i) == c.dtype(first), "its inputs must have the same type, found ",
               to_string(c.dtype(first)), " and ", to_string(c.dtype(i)));
    try {
      out = broadcast(out, operand_shape(c, i, slopes));
    } catch (const Error& error) {
      c.reject(error.message());
    }
  }
  return out;
}

namespace {

// Operands of different shapes in the order in which the operand with the shape of the result is stored.
struct StoredOperands {
  AxisOrder order;
  Shape shapes[2];
  LayoutPtr layouts[2];
};

// Channels last if the operand with the shape of the result is stored so, and the other operand can be read
// so.
StoredOperands stored_operands(const KernelContext& c, const Shape& shape_b) {
  StoredOperands found{{}, {c.shape(0), shape_b}, {}};
  const Shape& out = c.out_shape(0);
  for (const size_t i : {0, 1}) {
    if (found.shapes[i] != out || c.dtype(i) != DType::kFloat || !flat_layout(c, i)) continue;
    const AxisOrder order{order_of(flat_layout(c, i))};
    Shape other = found.shapes[1 - i];
    other.insert(other.begin(), out.size() - other.size(), 1);
    const bool either = !order.layout(other);  // both orders are the same for the other operand
    if (order.order == Order::kRowMajor || (!either && other != c.shape(1 - i))) continue;
    found.order = order;
    found.layouts[i] = order.layout(out), found.layouts[1 - i] = order.layout(other);
    found.shapes[i] = order.sorted(out), found.shapes[1 - i] = order.sorted(std::move(other));
    return found;
  }
  return found;
}

}  // namespace

Kernel broadcast_kernel(KernelContext& c, BinaryFunction function, int64_t cost, bool slopes) {
  // Blocked layouts can be kept if elements correspond in storage order: same shapes, or a scalar.
  LayoutPtr layout_a, layout_b;
  const Shape shape_b = operand_shape(c, 1, slopes);
  StoredOperands operands{{}, {c.shape(0), shape_b}, {}};
  const bool same_types = c.dtype(0) == c.dtype(1);
  if (c.out_dtype(0) != c.dtype(0) && c.out_dtype(0) != DType::kBool) {
    // Operands are read row-major: a result of another type cannot be stored in their layout.
  } else if (same_types && c.shape(0) == shape_b) {
    layout_a = flat_layout(c, 0) ? flat_layout(c, 0) : flat_layout(c, 1);
    layout_b = layout_a;
  } else if (c.size(1) == 1 && c.shape(0) == c.out_shape(0)) {
    layout_a = flat_layout(c, 0);
  } else if (same_types && c.size(0) == 1 && shape_b == c.out_shape(0)) {
    layout_b = flat_layout(c, 1);
  } else if (same_types) {
    operands = stored_operands(c, shape_b);
    layout_a = operands.layouts[0], layout_b = operands.layouts[1];
  }
  const Slot a = c.in(0, layout_a), b = c.in(1, layout_b);
  // That of the operand with the shape of the result.
  const LayoutPtr& layout = layout_a && c.shape(0) == c.out_shape(0) ? layout_a : layout_b;
  const Slot y = out_over(
      c, {0, 1}, c.out_dtype(0) == c.dtype(0) ? layout : layout_like(layout, c.out_dtype(0), c.out_shape(0)));
  const Broadcast<2> shape({operands.shapes[0], operands.shapes[1]}, operands.order.sorted(c.out_shape(0)));
  const auto width_a = static_cast<int64_t>(size_of(c.dtype(0))),
             width_b = static_cast<int64_t>(size_of(c.dtype(1))),
             width_y = static_cast<int64_t>(size_of(c.out_dtype(0)));
  return [=](const Frame& f) {
    const std::byte *from_a = f.at<std::byte>(a), *from_b = f.at<std::byte>(b);
    std::byte* to = f.at<std::byte>(y);
    parallel_for(shape.size(), cost, [&](int64_t begin, int64_t end) {
      shape.walk(begin, end, [&](int64_t at, const std::array<int64_t, 2>& in, int64_t n) {
        function(from_a + in[0] * width_a, shape.step(0), from_b + in[1] * width_b, shape.step(1),
                 to + at * width_y, n);
      });
    });
  };
}

LayoutPtr flat_layout(const KernelContext& c, size_t i) {
  LayoutPtr layout = c.in_layout(i);
  return layout && layout->dense() && !layout->bf16() ? layout : nullptr;
}

LayoutPtr layout_like(const LayoutPtr& layout, DType dtype, const Shape& shape) {
  if (dtype == DType::kBool) return byte_layout(shape, order_of(layout));
  return dtype == DType::kFloat ? stored_layout(shape, order_of(layout), false) : nullptr;
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
