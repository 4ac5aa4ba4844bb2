// Split, and SplitTraining (com.microsoft), which takes the lengths as an input in every opset.
#include <algorithm>

#include "backend/cpu/axis_order.h"
#include "backend/cpu/strided_copy.h"
#include "op/standard_form.h"
#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

// The size of every output along the axis: the given sizes, or equal parts, of which the last may be smaller.
std::vector<int64_t> lengths_of(const NodeContext& c, size_t axis) {
  const int64_t dim = c.shape(0)[axis], count = static_cast<int64_t>(c.output_count());
  if (const auto given = ints_of(c, "split", 1)) {
    c.expect(given->size() == c.output_count(), "it has ", counted(count, "output"), " but ",
             counted(given->size(), "length"), " ", to_string(*given));
    int64_t sum = 0;
    for (const int64_t length : *given) {
      c.expect(length >= 0 && length <= dim, "the lengths ", to_string(*given), " do not match the size ",
               dim, " of axis ", axis);
      sum += length;
    }
    c.expect(sum == dim, "the lengths ", to_string(*given), " add up to ", sum, ", but axis ", axis,
             " has the size ", dim);
    return *given;
  }
  const int64_t parts = c.node().int_or("num_outputs", count);
  c.expect(parts == count, "num_outputs is ", parts, ", but it has ", counted(count, "output"));
  c.expect(c.node().has("num_outputs") || dim % parts == 0, "axis ", axis, " of size ", dim,
           " cannot be split into ", counted(parts, "equal part"));
  const int64_t length = (dim + parts - 1) / parts;
  std::vector<int64_t> lengths;
  for (int64_t left = dim, i = 0; i < parts; ++i) {
    lengths.push_back(std::min(length, left));
    left -= lengths.back();
  }
  return lengths;
}

void shape(ShapeContext& c) {
  const size_t axis = axis_of(c, 0, c.rank(0));
  const std::vector<int64_t> lengths = lengths_of(c, axis);
  for (size_t o = 0; o < lengths.size(); ++o) {
    if (!c.has_output(o)) continue;
    Shape out = c.shape(0);
    out[axis] = lengths[o];
    c.output(o, c.dtype(0), out);
  }
}

Kernel kernel(KernelContext& c) {
  const size_t given_axis = axis_of(c, 0, c.rank(0)), width = width_of(c, 0);
  if (c.output_count() == 1) {
    c.alias(0, 0);
    return nullptr;
  }
  struct Part {
    StridedCopy copy;
    Slot out;
  };
  std::vector<Part> parts;
  const AxisOrder order = order_of_inputs(c);
  const Shape in_shape = order.sorted(c.shape(0));
  const size_t axis = order.place(given_axis, in_shape.size());
  const int64_t outer = element_count(in_shape, 0, axis),
                inner = element_count(in_shape, axis + 1, in_shape.size());
  const int64_t in_row = in_shape[axis] * inner;
  const std::vector<int64_t> lengths = lengths_of(c, given_axis);
  const Slot in = c.in(0, order.layout(c.shape(0)));
  int64_t offset = 0;
  for (size_t o = 0; o < lengths.size(); ++o) {
    const int64_t row = lengths[o] * inner;
    const Slot out = c.has_output(o) ? c.out(o, order.layout(c.out_shape(o))) : Slot{};
    if (out.defined()) parts.push_back({{width, {outer, row}, {offset, {in_row, 1}}, {0, {row, 1}}}, out});
    offset += row;
  }
  return [=](const Frame& f) {
    for (const Part& part : parts) part.copy(f.at<std::byte>(in), f.at<std::byte>(part.out));
  };
}

void gradient(GradientContext& g) {
  Names pieces;
  for (size_t o = 0; o < g.node().outputs.size(); ++o) pieces.push_back(dy_or_zeros(g, o));
  g.set(0, g("Concat", pieces, {{"axis", g.node().int_or("axis", 0)}}));
}

ORTRAIN_OPERATOR({.type = "Split",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough, .independent_outputs = true},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "SplitTraining",
                  .signature = "input, split -> outputs...",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});

// SplitTraining is the Split of opset 13 and later.
void training_form(DecompositionContext& e) {
  const size_t count = e.node().outputs.size();
  const auto parts = e.emit("Split", e.node().inputs, count, {{"axis", e.node().int_or("axis", 0)}});
  for (size_t o = 0; o < count; ++o) e.set(o, parts[o]);
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "SplitTraining", {cold<training_form>});

}  // namespace
}  // namespace ortrain
