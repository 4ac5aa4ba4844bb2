// Values of type float that are stored in bfloat16: which operators store them so, and in which order.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "op/operator.h"

namespace ortrain {

// Whether input i is stored in bfloat16.
bool is_stored_in_bf16(const KernelContext& c, size_t i);
inline bool lies_in_bf16(const KernelContext& c, size_t i) {
  return kHasKernels<BFloat16> && is_stored_in_bf16(c, i);
}
// Whether output 0 is stored in bfloat16: it should be, and one of these inputs is. An operator that computes
// little follows its inputs, so that the storage type does not change within chains between products.
inline bool follows_bf16(const KernelContext& c, std::initializer_list<size_t> inputs) {
  return kHasKernels<BFloat16> && c.wants_bf16(0) &&
         std::any_of(inputs.begin(), inputs.end(), [&](size_t i) { return lies_in_bf16(c, i); });
}
// A layout in bfloat16 without padding: that of input i if its memory holds only the elements, else
// row-major.
LayoutPtr bf16_layout(const KernelContext& c, size_t i);
// Row-major in bfloat16.
LayoutPtr bf16_row_major(const Shape& shape);

}  // namespace ortrain
