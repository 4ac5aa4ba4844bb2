// Helpers for the rules and kernels of elementwise operators.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "backend/cpu/elementwise/functions.h"
#include "op/operator.h"

namespace ortrain {

// A kernel that applies the function to inputs 0 and 1, which broadcast to output 0. `cost` is the cost of
// one element, in additions.
Kernel broadcast_kernel(KernelContext& c, BinaryFunction function, int64_t cost, bool slopes = false);

// Rejects the node unless inputs i and j have the same type and shape.
void expect_same(const NodeContext& c, size_t i, size_t j);

// The axis of the first operand, of the given rank, with which the second operand is aligned; nullopt if the
// last axes are aligned, as they always are since version 7 of the ONNX operators. `channels`: the second
// operand has an element for each channel.
std::optional<int64_t> operand_axis(const Node& node, int64_t opset, int64_t rank, bool channels);
// The shape with which input i broadcasts: the shape of the input or, if the input is aligned with an axis,
// that shape with ones appended. `slopes`, here and below: a second operand of several elements has an
// element for each channel.
Shape operand_shape(const NodeContext& c, size_t i, bool slopes = false);

// The shape that all inputs broadcast to; rejects the node if they do not, or if the types of inputs from
// `first` on differ.
Shape broadcast_inputs(const NodeContext& c, size_t first = 0, bool slopes = false);

// The layout in which the floats of input i can be processed as a flat array: the layout of the input if that
// has no padding, else row-major.
LayoutPtr flat_layout(const KernelContext& c, size_t i);

// The layout of a value of type float or bool whose elements are in the order of a flat layout; null for
// other types.
LayoutPtr layout_like(const LayoutPtr& layout, DType dtype, const Shape& shape);

// Output 0 in the memory of the first candidate that has the output's type and shape and may be overwritten.
// For kernels that write an element only after reading the same element of the candidate.
Slot out_over(KernelContext& c, std::initializer_list<size_t> candidates, const LayoutPtr& layout = nullptr);

}  // namespace ortrain
