// Values of type float that are stored in bfloat16: which operators keep them so, and in which order.
#pragma once

#include <initializer_list>

#include "op/operator.h"

namespace ortrain {

// Whether input i is stored in bfloat16.
bool lies_in_bf16(const KernelContext& c, size_t i);
// Whether output 0 is to be stored in bfloat16: it should, and one of these inputs is. An operator that
// computes little follows its inputs, so that chains between products stay as they are.
bool follows_bf16(const KernelContext& c, std::initializer_list<size_t> inputs);
// A layout in bfloat16 whose elements lie in a flat walk's order: that of input i where the memory holds
// nothing else, else row-major.
LayoutPtr bf16_layout(const KernelContext& c, size_t i);
// Row-major in bfloat16.
LayoutPtr bf16_row_major(const Shape& shape);

}  // namespace ortrain
