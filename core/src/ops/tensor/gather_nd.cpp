// GatherND: the slices of the data that index tuples select. GatherNDGrad (com.microsoft) adds the gradients
// of the slices to the positions from which they were taken.
#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/indices.h"
#include "ops/tensor/row_sums_form.h"

namespace ortrain {
namespace {

void gather_shape(ShapeContext& c) {
  const int64_t batch_dims = c.node().int_or("batch_dims", 0);
  tuples_of(c, c.shape(0), c.shape(1), batch_dims);
  c.output(0, c.dtype(0), slices_shape(c.shape(0), c.shape(1), batch_dims));
}

Kernel gather_kernel(KernelContext& c) {
  const Tuples t = tuples_of(c, c.shape(0), c.shape(1), c.node().int_or("batch_dims", 0));
  const size_t row_bytes = static_cast<size_t>(t.rows.row) * width_of(c, 0);
  const DType type = index_type(c, 1);
  const Slot data = c.in(0), indices = c.in(1), out = c.out(0), rows = positions_scratch(c, t.rows.n);
  return [=, label = c.node().label()](const Frame& f) {
    resolve_tuples(label, type, t, f.at<void>(indices), f.at<int64_t>(rows));
    gather_rows(t.rows, row_bytes, f.at<std::byte>(data), f.at<int64_t>(rows), f.at<std::byte>(out));
  };
}

void gather_gradient(GradientContext& g) {
  g.set(0, g("GatherNDGrad", {shape_of(g, g.x(0)), g.x(1), g.dy(0)},
             {{"batch_dims", g.node().int_or("batch_dims", 0)}}, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "GatherND",
                  .rules = {.shape = gather_shape, .gradient = gather_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = gather_kernel}});

// GatherNDGrad(shape, indices, dY)
void gather_grad_shape(ShapeContext& c) {
  const Shape shape = constant_ints(c, 0);
  const int64_t batch_dims = c.node().int_or("batch_dims", 0);
  tuples_of(c, shape, c.shape(1), batch_dims);
  const Shape expected = slices_shape(shape, c.shape(1), batch_dims);
  c.expect(c.shape(2) == expected, "dY has shape ", to_string(c.shape(2)), ", expected ",
           to_string(expected));
  c.output(0, c.dtype(2), shape);
}

Kernel gather_grad_kernel(KernelContext& c) {
  const Tuples t = tuples_of(c, c.out_shape(0), c.shape(1), c.node().int_or("batch_dims", 0));
  const DType type = index_type(c, 1), dtype = c.dtype(2);
  if (dtype != DType::kFloat && dtype != DType::kDouble) c.reject_dtype(2);
  const BinaryFunction add = binary_function("Add", dtype);
  const Slot indices = c.in(1), dy = c.in(2), dx = c.out(0), rows = positions_scratch(c, t.rows.n);
  const size_t width = size_of(dtype), bytes = bytes_of(dtype, c.out_size(0));
  return [=, label = c.node().label()](const Frame& f) {
    resolve_tuples(label, type, t, f.at<void>(indices), f.at<int64_t>(rows));
    zero_bytes(f.at<std::byte>(dx), bytes);
    scatter_rows(t.rows, width, add, f.at<std::byte>(dy), f.at<int64_t>(rows), f.at<std::byte>(dx));
  };
}

void gather_grad_gradient(GradientContext& g) {
  g.set(2, g("GatherND", {g.dy(0), g.x(1)}, {{"batch_dims", g.node().int_or("batch_dims", 0)}}));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GatherNDGrad",
                  .signature = "shape, indices, update -> output",
                  .rules = {.shape = gather_grad_shape,
                            .gradient = gather_grad_gradient,
                            .element_type = type_of_input<2>},
                  .kernels = {.cpu = gather_grad_kernel}});

// The positions to which tuples of indices [..., k] refer, if the first k axes of a shape are merged into one
// axis.
Name places_of(DecompositionContext& e, Name indices, Name shape, int64_t k) {
  const Name sizes = e("Slice", {shape, e.int64s({0}), e.int64s({k}), e.int64s({0})});
  const Expression given(e, indices);
  const Expression from_front = (given < 0).choose(Expression(e, e("Add", {indices, sizes})), given);
  Names steps;
  for (int64_t i = 0; i < k; ++i) steps.push_back(product_of_dims(e, shape, i + 1, k));
  const Name step = steps.empty() ? e.int64s({}) : e("Concat", steps, {{"axis", int64_t{0}}});
  return e.reduce_sum(e("Mul", {from_front, step}), {-1}, false);
}

// GatherNDGrad with operators of ONNX. The batch axes become one axis, whose index is put before the other
// indices.
void gather_grad_form(DecompositionContext& e) {
  const Expression update(e, e.x(2));
  const int64_t batch_dims = e.node().int_or("batch_dims", 0);
  Name shape = e.x(0), indices = e.x(1), updates = update;
  if (e.dtype(indices) != DType::kInt64)
    indices = e("Cast", {indices}, {{"to", static_cast<int64_t>(DType::kInt64)}});
  if (batch_dims > 0) {
    const int64_t rank = need_rank(e, indices), rest = rank - batch_dims;  // with the axis of the tuples
    const Name last = e.int64s({INT64_MAX}), axis = e.int64s({0});
    const auto joined = [&](Name dims) {
      const Name batch = e("ReduceProd", {e("Slice", {dims, axis, e.int64s({batch_dims}), axis})},
                           {{"keepdims", int64_t{1}}});
      return e("Concat", {batch, e("Slice", {dims, e.int64s({batch_dims}), last, axis})},
               {{"axis", int64_t{0}}});
    };
    shape = joined(shape);
    updates = reshape_to(e, updates, joined(e("Shape", {updates})));
    indices = reshape_to(e, indices, joined(e("Shape", {indices})));
    const Name batch = as_scalar(e, e("Slice", {shape, axis, e.int64s({1}), axis}));
    std::vector<int64_t> column(static_cast<size_t>(rest) + 1, 1);
    column[0] = -1;
    const Name numbers = e(
        "Reshape",
        {e("Range", {e.constant(Tensor::scalar(int64_t{0})), batch, e.constant(Tensor::scalar(int64_t{1}))}),
         e.int64s(column)});
    const Name of_tuples = e("Concat", {dims_of(e, indices, 0, rest), e.int64s({1})}, {{"axis", int64_t{0}}});
    indices = e("Concat", {e("Expand", {numbers, of_tuples}), indices}, {{"axis", int64_t{-1}}});
  }
  const auto of_indices = e.dims(e.x(1));
  if (!of_indices || of_indices->empty() || !of_indices->back().known())
    e.reject("the number of indices in a tuple is not known");
  const int64_t k = of_indices->back().value + (batch_dims > 0 ? 1 : 0);
  const Name sums = row_sums(e, product_of_dims(e, shape, 0, k), product_of_dims(e, shape, k, INT64_MAX),
                             places_of(e, indices, shape, k), updates);
  e.set(0, reshape_to(e, sums, e.x(0)));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GatherNDGrad", {cold<gather_grad_form>});

}  // namespace
}  // namespace ortrain
