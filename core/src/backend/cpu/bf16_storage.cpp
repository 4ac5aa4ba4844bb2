#include "backend/cpu/bf16_storage.h"

#include <algorithm>

#include "backend/cpu/kernel_library.h"

namespace ortrain {

bool lies_in_bf16(const KernelContext& c, size_t i) {
  if (!c.has_input(i)) return false;
  const LayoutPtr layout = c.in_layout(i);
  return layout && layout->bf16();
}

bool follows_bf16(const KernelContext& c, std::initializer_list<size_t> inputs) {
  return c.wants_bf16(0) &&
         std::any_of(inputs.begin(), inputs.end(), [&](size_t i) { return lies_in_bf16(c, i); });
}

// Without a library no value is stored in bfloat16, so this is never called.
LayoutPtr bf16_row_major(const Shape& shape) {
  require(kernel_library() != nullptr, ErrorCode::kFail, "this build cannot store values in bfloat16");
  return kernel_library()->bf16_row_major(shape);
}

LayoutPtr bf16_layout(const KernelContext& c, size_t i) {
  require(kernel_library() != nullptr, ErrorCode::kFail, "this build cannot store values in bfloat16");
  return kernel_library()->bf16_layout(c, i);
}

}  // namespace ortrain
