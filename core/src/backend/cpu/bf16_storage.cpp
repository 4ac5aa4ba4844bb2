#include "backend/cpu/bf16_storage.h"

#include <algorithm>

#include "backend/cpu/stored_layout.h"

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

LayoutPtr bf16_row_major(const Shape& shape) { return stored_layout(shape, Order::kRowMajor, true); }

LayoutPtr bf16_layout(const KernelContext& c, size_t i) {
  return stored_layout(c.shape(i), order_of(c.in_layout(i)), true);
}

}  // namespace ortrain
