// What elementwise operators share: what their rules and kernel makers ask of a node.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

#include "backend/cpu/elementwise/functions.h"
#include "op/operator.h"

namespace ortrain {

// A kernel that applies the function to inputs 0 and 1, which broadcast to output 0. `cost` is that of one
// element, in additions.
Kernel broadcast_kernel(KernelContext& c, BinaryFunction function, int64_t cost);

// Rejects the node unless inputs i and j have the same type and shape.
void expect_same(const NodeContext& c, size_t i, size_t j);

// The axis of the first operand, of the given rank, at which the second one stands; nothing where the two are
// aligned at their ends, as they always are since version 7 of the ONNX operators. `slopes`: the second one
// is a vector of more than one element.
std::optional<int64_t> operand_axis(const Node& node, int64_t opset, int64_t rank, bool slopes);
// The shape with which input i broadcasts: its own, or that of an operand at an axis with ones behind it.
Shape operand_shape(const NodeContext& c, size_t i);

// The shape that all inputs broadcast to; rejects the node where they do not or differ in type (`first` and
// later ones).
Shape broadcast_inputs(const NodeContext& c, size_t first = 0);

// The layout in which a flat walk over the floats of input i may run: its own where that holds the elements
// only, else row-major.
LayoutPtr flat_layout(const KernelContext& c, size_t i);

// Output 0, over the memory of the first of the candidates that has the output's type and shape and may be
// overwritten. For kernels that write an element after they have read the same element of the candidate.
Slot out_over(KernelContext& c, std::initializer_list<size_t> candidates, const LayoutPtr& layout = nullptr);

}  // namespace ortrain
