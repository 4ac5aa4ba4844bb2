// Gather: the slices of the data along an axis that the indices select. GatherGrad (com.microsoft) adds the
// gradients of the slices to the positions from which they were taken.
#include <numeric>

#include "backend/cpu/axis_order.h"
#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "op/sum_of_products.h"
#include "ops/common/decomposed.h"
#include "ops/common/indices.h"
#include "ops/tensor/row_sums_form.h"

namespace ortrain {
namespace {

// Shared by Gather and GatherGrad: how the indices, input 1, select slices of data of this shape, which are
// stored in this order.
IndexedRows rows_of(const NodeContext& c, const Shape& data_shape, AxisOrder order) {
  const size_t rank = data_shape.size(), axis = order.place(axis_of(c, 0, static_cast<int64_t>(rank)), rank);
  const Shape stored = order.sorted(data_shape);
  return {.outer = element_count(stored, 0, axis),
          .limit = stored[axis],
          .n = c.size(1),
          .row = element_count(stored, axis + 1, rank)};
}

// The order of input i, if the slices keep the axes of the data.
AxisOrder order_of_input(const KernelContext& c, size_t i) {
  const bool keeps_axes = c.rank(1) == 1 && c.dtype(i) == DType::kFloat;
  return {keeps_axes ? order_of(c.in_layout(i)) : Order::kRowMajor};
}

// data_shape with the axis replaced by the shape of the indices.
Shape gathered_shape(const NodeContext& c, const Shape& data_shape) {
  const int64_t axis = static_cast<int64_t>(axis_of(c, 0, static_cast<int64_t>(data_shape.size())));
  Shape out(data_shape.begin(), data_shape.begin() + axis);
  out.insert(out.end(), c.shape(1).begin(), c.shape(1).end());
  out.insert(out.end(), data_shape.begin() + axis + 1, data_shape.end());
  return out;
}

void gather_shape(ShapeContext& c) { c.output(0, c.dtype(0), gathered_shape(c, c.shape(0))); }

Kernel gather_kernel(KernelContext& c) {
  const AxisOrder order = order_of_input(c, 0);
  const IndexedRows r = rows_of(c, c.shape(0), order);
  const size_t row_bytes = static_cast<size_t>(r.row) * width_of(c, 0);
  const DType type = index_type(c, 1);
  const Slot data = c.in(0, order.layout(c.shape(0))), indices = c.in(1),
             out = c.out(0, order.layout(c.out_shape(0))), rows = positions_scratch(c, r.n);
  const bool of_rows = axis_of(c, 0, static_cast<int64_t>(c.shape(0).size())) == 0;
  return [=, label = c.node().label(),
          names = IndexNames{c.node().inputs[1], c.node().inputs[0]}](const Frame& f) {
    resolve_indices(label, type, f.at<void>(indices), r.n, r.limit, f.at<int64_t>(rows),
                    of_rows ? &names : nullptr);
    gather_rows(r, row_bytes, f.at<std::byte>(data), f.at<int64_t>(rows), f.at<std::byte>(out));
  };
}

void gather_gradient(GradientContext& g) {
  g.set(0, g("GatherGrad", {shape_of(g, g.x(0)), g.x(1), g.dy(0)}, {{"axis", g.node().int_or("axis", 0)}},
             kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "Gather",
                  .rules = {.shape = gather_shape, .gradient = gather_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = gather_kernel}});

// GatherGrad(shape, indices, dY)
void gather_grad_shape(ShapeContext& c) {
  const Shape shape = constant_ints(c, 0), expected = gathered_shape(c, shape);
  c.expect(c.shape(2) == expected, "dY has shape ", to_string(c.shape(2)), ", expected ",
           to_string(expected));
  c.output(0, c.dtype(2), shape);
}

Kernel gather_grad_kernel(KernelContext& c) {
  const AxisOrder order = order_of_input(c, 2);
  const IndexedRows r = rows_of(c, c.out_shape(0), order);
  const DType type = index_type(c, 1), dtype = c.dtype(2);
  if (dtype != DType::kFloat && dtype != DType::kDouble) c.reject_dtype(2);
  const BinaryFunction add = binary_function("Add", dtype);
  const Slot indices = c.in(1), dy = c.in(2, order.layout(c.shape(2))),
             dx = c.out(0, order.layout(c.out_shape(0))), rows = positions_scratch(c, r.n);
  const size_t width = size_of(dtype), bytes = bytes_of(dtype, c.out_size(0));
  return [=, label = c.node().label()](const Frame& f) {
    resolve_indices(label, type, f.at<void>(indices), r.n, r.limit, f.at<int64_t>(rows));
    zero_bytes(f.at<std::byte>(dx), bytes);
    scatter_rows(r, width, add, f.at<std::byte>(dy), f.at<int64_t>(rows), f.at<std::byte>(dx));
  };
}

void gather_grad_gradient(GradientContext& g) {
  g.set(2, g("Gather", {g.dy(0), g.x(1)}, {{"axis", g.node().int_or("axis", 0)}}));
}

// Each element is a sum of elements of dY, or 0.
std::vector<ProductTerm> gather_grad_terms(const Node&, size_t) { return {{{2}}}; }
ORTRAIN_OPERATOR_FACT(ProductTermsRule, kMicrosoft, "GatherGrad", gather_grad_terms);

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GatherGrad",
                  .signature = "shape, indices, dY -> dX",
                  .rules = {.shape = gather_grad_shape,
                            .gradient = gather_grad_gradient,
                            .element_type = type_of_input<2>},
                  .kernels = {.cpu = gather_grad_kernel}});

// GatherGrad with operators of ONNX: dY's slices are added to zeros, as rows of a matrix, so the gathered
// axis is moved to the front.
void gather_grad_form(DecompositionContext& e) {
  const Name dy = e.x(2);
  const auto sums = [&](const std::string& shape, const std::string& updates) {
    const Name count = e("Slice", {shape, e.int64s({0}), e.int64s({1}), e.int64s({0})});
    const Name rows = row_sums(e, count, product_of_dims(e, shape, 1, INT64_MAX), e.x(1), updates);
    return e("Reshape", {rows, shape});
  };
  if (e.node().int_or("axis", 0) == 0) return e.set(0, sums(e.x(0), dy));
  const int64_t of_indices = need_rank(e, e.x(1)), of_dy = need_rank(e, dy), rank = of_dy - of_indices + 1;
  const int64_t axis = normalize_axis(e.node().int_or("axis", 0), rank, e.node().label());
  std::vector<int64_t> to_front(static_cast<size_t>(of_dy)), order(static_cast<size_t>(rank)),
      back(order.size());
  std::iota(to_front.begin(), to_front.end(), 0);
  std::rotate(to_front.begin(), to_front.begin() + axis, to_front.begin() + axis + of_indices);
  std::iota(order.begin(), order.end(), 0);
  std::rotate(order.begin(), order.begin() + axis, order.begin() + axis + 1);
  for (size_t i = 0; i < order.size(); ++i) back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  const Name updates = e("Transpose", {dy}, {{"perm", to_front}});
  const Name shape = e("Gather", {e.x(0), e.int64s(order)});
  e.set(0, e("Transpose", {sums(shape, updates)}, {{"perm", back}}));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GatherGrad", {cold<gather_grad_form>});

}  // namespace
}  // namespace ortrain
