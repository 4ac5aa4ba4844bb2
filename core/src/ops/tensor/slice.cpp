// Slice, and SliceGrad (com.microsoft), which returns zeros with dY at the positions of the slice.
#include <algorithm>

#include "backend/cpu/axis_order.h"
#include "backend/cpu/strided_copy.h"
#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

// The part of a tensor that a slice takes.
struct Cut {
  Shape dims;
  int64_t offset = 0;            // of the first element
  std::vector<int64_t> strides;  // in the tensor, in elements
  bool whole = true;             // the whole tensor, in order
};

// starts, ends, axes, steps: attributes, or inputs from `first` on. Axes of the result are in the given
// order, like those of `shape`.
Cut cut_of(const NodeContext& c, const Shape& shape, size_t first, AxisOrder order = {}) {
  const int64_t rank = static_cast<int64_t>(shape.size());
  const auto starts = ints_of(c, "starts", first), ends = ints_of(c, "ends", first + 1);
  c.expect(starts && ends, "starts or ends are missing");
  std::vector<int64_t> every(starts->size());
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<int64_t>(i);
  const std::vector<int64_t> axes = normalize_axes(c, ints_of(c, "axes", first + 2).value_or(every), rank);
  const auto steps = ints_of(c, "steps", first + 3).value_or(std::vector<int64_t>(starts->size(), 1));
  c.expect(ends->size() == starts->size() && axes.size() == starts->size() && steps.size() == starts->size(),
           "starts, ends, axes and steps must have the same length, found ", starts->size(), ", ",
           ends->size(), ", ", axes.size(), " and ", steps.size());

  Cut cut{shape, 0, strides_of(shape)};
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t axis = order.place(static_cast<size_t>(axes[i]), shape.size());
    const int64_t dim = shape[axis], step = steps[i];
    c.expect(step != 0, "the step along axis ", axis, " is 0");
    if (dim == 0) continue;
    // For negative steps, "before the first" is -1.
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? dim : dim - 1;
    const auto position = [&](int64_t p) { return std::clamp(p < 0 ? p + dim : p, low, high); };
    const int64_t start = std::max<int64_t>(position((*starts)[i]), 0),
                  distance = position((*ends)[i]) - start;
    const int64_t count = step > 0       ? (distance > 0 ? (distance - 1) / step + 1 : 0)
                          : distance < 0 ? (distance + 1) / step + 1
                                         : 0;
    cut.whole &= count == dim && step == 1;
    cut.dims[axis] = count;
    cut.offset += start * cut.strides[axis];
    cut.strides[axis] = count > 1 ? step * cut.strides[axis] : 0;
  }
  return cut;
}

void slice_shape(ShapeContext& c) { c.output(0, c.dtype(0), cut_of(c, c.shape(0), 1).dims); }

Kernel slice_kernel(KernelContext& c) {
  const AxisOrder order = order_of_inputs(c);
  const Cut cut = cut_of(c, order.sorted(c.shape(0)), 1, order);
  if (cut.whole) {
    c.alias(0, 0);
    return nullptr;
  }
  const StridedCopy copy(width_of(c, 0), cut.dims, {cut.offset, cut.strides}, {0, strides_of(cut.dims)});
  const Slot in = c.in(0, order.layout(c.shape(0))), out = c.out(0, order.layout(c.out_shape(0)));
  return [=](const Frame& f) { copy(f.at<std::byte>(in), f.at<std::byte>(out)); };
}

void slice_gradient(GradientContext& g) {
  Names inputs = {g.dy(0), shape_of(g, g.x(0))};
  if (g.node().has("starts")) {
    for (const char* name : {"starts", "ends", "axes"})
      if (g.node().has(name)) inputs.push_back(g.int64s(g.node().ints_or(name, {})));
  } else {
    for (size_t i = 1; i < g.node().inputs.size(); ++i) inputs.push_back(g.node().inputs[i]);
  }
  g.set(0, g("SliceGrad", inputs, {}, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "Slice",
                  .rules = {.shape = slice_shape, .gradient = slice_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = slice_kernel}});

// SliceGrad(dY, shape, starts, ends, axes?, steps?)
void slice_grad_shape(ShapeContext& c) {
  const Shape shape = constant_ints(c, 1);
  element_count(shape);  // rejects negative dimensions
  const Cut cut = cut_of(c, shape, 2);
  c.expect(cut.dims == c.shape(0), "the slice of shape ", to_string(shape), " has shape ",
           to_string(cut.dims), ", but dY has shape ", to_string(c.shape(0)));
  c.output(0, c.dtype(0), shape);
}

Kernel slice_grad_kernel(KernelContext& c) {
  const AxisOrder order = order_of_inputs(c);
  const Cut cut = cut_of(c, order.sorted(c.out_shape(0)), 2, order);
  if (cut.whole) {
    c.alias(0, 0);
    return nullptr;
  }
  const StridedCopy copy(width_of(c, 0), cut.dims, {0, strides_of(cut.dims)}, {cut.offset, cut.strides});
  const size_t bytes = static_cast<size_t>(c.out_size(0)) * width_of(c, 0);
  const Slot dy = c.in(0, order.layout(c.shape(0))), dx = c.out(0, order.layout(c.out_shape(0)));
  return [=](const Frame& f) {
    zero_bytes(f.at<std::byte>(dx), bytes);
    copy(f.at<std::byte>(dy), f.at<std::byte>(dx));
  };
}

// A slice of the gradient.
void slice_grad_gradient(GradientContext& g) {
  Names inputs = {g.dy(0)};
  for (size_t i = 2; i < g.node().inputs.size(); ++i) inputs.push_back(g.node().inputs[i]);
  g.set(0, g("Slice", inputs));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "SliceGrad",
                  .signature = "dY, shape, starts, ends, axes?, steps? -> dX",
                  .rules = {.shape = slice_grad_shape, .gradient = slice_grad_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = slice_grad_kernel}});

// SliceGrad with operators of ONNX: Pad where the starts are constants and the steps are 1. Otherwise dY is
// scattered to the slice's positions, which are the same slice of the numbers 0, 1, 2 ...
void slice_grad_form(DecompositionContext& e) {
  const Expression dy(e, e.x(0)), shape(e, e.x(1));
  const auto dims = e.dims(shape);
  std::optional<int64_t> known = e.rank(dy);
  if (!known && dims && dims->size() == 1 && dims->front().known()) known = dims->front().value;
  const int64_t rank = known.value_or(0);
  const auto constant = [&](size_t i) { return e.has_x(i) ? e.constant_value(e.x(i)) : nullptr; };
  const Tensor *starts = constant(2), *axes = constant(4), *steps = constant(5);
  bool is_pad = known && starts && (!e.has_x(4) || axes) && (!e.has_x(5) || steps);
  if (is_pad && steps)
    for (const int64_t step : steps->to_int64()) is_pad &= step == 1;
  if (is_pad) {
    std::vector<int64_t> before(static_cast<size_t>(rank), 0), from_end(static_cast<size_t>(rank), 0);
    const std::vector<int64_t> given = starts->to_int64();
    for (size_t i = 0; i < given.size(); ++i) {
      const auto axis = static_cast<size_t>(
          axes ? normalize_axis(axes->to_int64().at(i), rank, e.node().label()) : static_cast<int64_t>(i));
      before.at(axis) = std::min<int64_t>(given[i], INT32_MAX);
      from_end.at(axis) = given[i] < 0;
    }
    Expression begin(e, e.int64s(before));
    if (std::count(from_end.begin(), from_end.end(), 1) > 0)
      begin = (begin + Expression(e, e.int64s(from_end)) * shape).call("Max", Expression(e, e.int64s({0})));
    if (std::count(before.begin(), before.end(), 0) != rank) begin = begin.call("Min", shape);
    const Expression after = shape - dy.call("Shape") - begin;
    e.set(0, e("Pad", {dy, e("Concat", {begin, after}, {{"axis", int64_t{0}}})}));
    return;
  }
  const Name line = e.int64s({-1});
  const Name count = e("ReduceProd", {shape}, {{"keepdims", int64_t{0}}});
  const Name numbers =
      e("Range", {e.constant(Tensor::scalar(int64_t{0})), count, e.constant(Tensor::scalar(int64_t{1}))});
  Names slice = {reshape_to(e, numbers, shape)};
  slice.insert(slice.end(), e.node().inputs.begin() + 2, e.node().inputs.end());
  const Name places = e("Reshape", {e("Slice", slice), line});
  const Name zeros = e("Expand", {dy.number(0), e("Reshape", {count, line})});
  e.set(0, reshape_to(e, e("ScatterElements", {zeros, places, e("Reshape", {dy, line})}), shape));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "SliceGrad", {cold<slice_grad_form>});

}  // namespace
}  // namespace ortrain
