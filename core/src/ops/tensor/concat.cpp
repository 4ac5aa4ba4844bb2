// Concat, and ConcatTraining (com.microsoft), which also returns the size of every input along the axis.
#include <algorithm>

#include "backend/cpu/axis_order.h"
#include "backend/cpu/strided_copy.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

// Size along the axis of every input.
std::vector<int64_t> lengths_of(const NodeContext& c, size_t axis) {
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < c.input_count(); ++i) lengths.push_back(c.shape(i)[axis]);
  return lengths;
}

void shape(ShapeContext& c) {
  c.expect(c.input_count() > 0, "it has no inputs");
  // Version 1 has a default.
  c.expect(c.node().has("axis") || (c.opset() < 4 && c.node().domain.empty()), "attribute 'axis' is missing");
  const size_t axis = axis_of(c, 1, c.rank(0));
  Shape out = c.shape(0);
  for (size_t i = 1; i < c.input_count(); ++i) {
    const Shape& other = c.shape(i);
    c.expect(c.dtype(i) == c.dtype(0), "its inputs must have the same type, found ", to_string(c.dtype(0)),
             " and ", to_string(c.dtype(i)));
    bool fits = other.size() == out.size();
    for (size_t d = 0; fits && d < out.size(); ++d) fits = d == axis || other[d] == out[d];
    c.expect(fits, "input ", i, " of shape ", to_string(other), " does not match input 0 of shape ",
             to_string(c.shape(0)), " outside axis ", axis);
    c.expect(!__builtin_add_overflow(out[axis], other[axis], &out[axis]), "its inputs are too long on axis ",
             axis, " for one output");
  }
  c.output(0, c.dtype(0), out);
  c.value(1, Tensor::of(lengths_of(c, axis)));
}

Kernel kernel(KernelContext& c) {
  const size_t given_axis = axis_of(c, 1, c.rank(0)), width = width_of(c, 0);
  const std::vector<int64_t> lengths = lengths_of(c, given_axis);
  if (c.input_count() == 1) {
    c.alias(0, 0);
    return nullptr;
  }
  const AxisOrder order = order_of_inputs(c);
  struct Part {
    StridedCopy copy;
    Slot in;
  };
  std::vector<Part> parts;
  const Shape out_shape = order.sorted(c.out_shape(0));
  const size_t axis = order.place(given_axis, out_shape.size());
  const int64_t outer = element_count(out_shape, 0, axis),
                inner = element_count(out_shape, axis + 1, out_shape.size());
  const int64_t out_row = out_shape[axis] * inner;
  int64_t offset = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t row = lengths[i] * inner;
    const Slot in = row > 0 ? c.in(i, order.layout(c.shape(i))) : Slot{};
    if (row > 0) parts.push_back({{width, {outer, row}, {0, {row, 1}}, {offset, {out_row, 1}}}, in});
    offset += row;
  }
  const Slot out = c.out(0, order.layout(c.out_shape(0)));
  return [=](const Frame& f) {
    for (const Part& part : parts) part.copy(f.at<std::byte>(part.in), f.at<std::byte>(out));
  };
}

// Each input gets its part of dY: by Split if the sizes are known, else by the lengths that ConcatTraining
// returns.
template <bool ReturnsLengths>
void gradient(GradientContext& g) {
  const size_t count = g.node().inputs.size();
  if (count == 1) return g.set(0, g.dy(0));
  const int64_t axis = g.node().int_or("axis", 1);
  std::vector<int64_t> lengths;
  for (size_t i = 0; i < count; ++i)
    if (const auto dims = g.dims(g.x(i))) {
      const int64_t at = normalize_axis(axis, static_cast<int64_t>(dims->size()), g.node().label());
      if (const Dim& dim = (*dims)[static_cast<size_t>(at)]; dim.known()) lengths.push_back(dim.value);
    }
  Names pieces;
  if (lengths.size() == count && g.opset() >= since::kAxesAsInput) {
    pieces = g.emit("Split", {g.dy(0), g.int64s(lengths)}, count, {{"axis", axis}});
  } else if (lengths.size() == count) {
    pieces = g.emit("Split", {g.dy(0)}, count, {{"axis", axis}, {"split", lengths}});
  } else {
    if (!ReturnsLengths) g.retype_node("ConcatTraining", kMicrosoft);
    pieces = g.emit("SplitTraining", {g.dy(0), g.want_y(1)}, count, {{"axis", axis}}, kMicrosoft);
  }
  for (size_t i = 0; i < count; ++i)
    if (g.needs(i)) g.set(i, pieces[i]);
}

ORTRAIN_OPERATOR({.type = "Concat",
                  .rules = {.shape = shape, .gradient = gradient<false>},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "ConcatTraining",
     .signature = "inputs... -> concat_result, per_input_length?",
     .rules = {.shape = shape, .gradient = gradient<true>, .element_type = first_like_input<DType::kInt64>},
     .traits = {.narrow_types = NarrowTypes::kPassthrough},
     .kernels = {.cpu = kernel}});

// With operators of ONNX.
void training_form(DecompositionContext& e) {
  const int64_t axis = e.node().int_or("axis", 1);
  e.set(0, e("Concat", e.node().inputs, {{"axis", axis}}));
  if (!e.has_y(1)) return;
  Names lengths;
  for (const std::string& x : e.node().inputs)
    lengths.push_back(dims_of(e, x, axis, axis == -1 ? kToTheLast : axis + 1));
  e.set(1, e("Concat", lengths, {{"axis", int64_t{0}}}));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "ConcatTraining", {cold<training_form>});

}  // namespace
}  // namespace ortrain
