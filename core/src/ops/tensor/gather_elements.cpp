// GatherElements: every index selects one element along an axis; the other coordinates are the coordinates of
// the index. GatherElementsGrad (com.microsoft) adds the gradients of the elements to the positions from
// which they were taken.
//
// Compiled for speed: a loop over the indices (CMakeLists.txt).
#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/common/indices.h"

namespace ortrain {
namespace {

void gather_shape(ShapeContext& c) {
  sheets_of(c, c.shape(0), c.shape(1));
  c.output(0, c.dtype(0), c.shape(1));
}

Kernel gather_kernel(KernelContext& c) {
  const Sheets s = sheets_of(c, c.shape(0), c.shape(1));
  const DType type = index_type(c, 1);
  Kernel kernel;
  visit_width(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot data = c.in(0), indices = c.in(1), out = c.out(0), positions = positions_scratch(c, s.size);
    kernel = [=, label = c.node().label()](const Frame& f) {
      resolve_indices(label, type, f.at<void>(indices), s.size, s.limit, f.at<int64_t>(positions));
      const T* from = f.at<T>(data);
      T* to = f.at<T>(out);
      for_each_index(s, f.at<int64_t>(positions), [=](int64_t d, int64_t k) { to[k] = from[d]; });
    };
  });
  return kernel;
}

void gather_gradient(GradientContext& g) {
  g.set(0, g("GatherElementsGrad", {g.dy(0), shape_of(g, g.x(0)), g.x(1)},
             {{"axis", g.node().int_or("axis", 0)}}, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "GatherElements",
                  .rules = {.shape = gather_shape, .gradient = gather_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = gather_kernel}});

// GatherElementsGrad(dY, shape, indices)
void gather_grad_shape(ShapeContext& c) {
  const Shape shape = constant_ints(c, 1);
  sheets_of(c, shape, c.shape(2));
  c.expect(c.shape(0) == c.shape(2), "dY has shape ", to_string(c.shape(0)),
           ", expected that of the indices, ", to_string(c.shape(2)));
  c.output(0, c.dtype(0), shape);
}

Kernel gather_grad_kernel(KernelContext& c) {
  const Sheets s = sheets_of(c, c.out_shape(0), c.shape(2));
  const DType type = index_type(c, 2), dtype = c.dtype(0);
  if (dtype != DType::kFloat && dtype != DType::kDouble) c.reject_dtype(0);
  const Slot dy = c.in(0), indices = c.in(2), dx = c.out(0), positions = positions_scratch(c, s.size);
  const size_t bytes = bytes_of(dtype, c.out_size(0));
  return [=, label = c.node().label()](const Frame& f) {
    resolve_indices(label, type, f.at<void>(indices), s.size, s.limit, f.at<int64_t>(positions));
    zero_bytes(f.at<std::byte>(dx), bytes);
    add_at_indices(s, dtype, f.at<int64_t>(positions), f.at<void>(dy), f.at<void>(dx));
  };
}

void gather_grad_gradient(GradientContext& g) {
  g.set(0, g("GatherElements", {g.dy(0), g.x(2)}, {{"axis", g.node().int_or("axis", 0)}}));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GatherElementsGrad",
                  .signature = "dY, shape, indices -> dX",
                  .rules = {.shape = gather_grad_shape, .gradient = gather_grad_gradient},
                  .kernels = {.cpu = gather_grad_kernel}});

// GatherElementsGrad with operators of ONNX.
void gather_grad_form(DecompositionContext& e) {
  const Expression dy(e, e.x(0));
  e.set(0, e("ScatterElements", {e("Expand", {dy.number(0), e.x(1)}), e.x(2), dy},
             {{"axis", e.node().int_or("axis", 0)}, {"reduction", std::string("add")}}));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "GatherElementsGrad", {cold<gather_grad_form>});

}  // namespace
}  // namespace ortrain
