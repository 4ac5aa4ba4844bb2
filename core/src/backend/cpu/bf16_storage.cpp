#include "backend/cpu/bf16_storage.h"

#include "backend/cpu/stored_layout.h"

namespace ortrain {

bool is_stored_in_bf16(const KernelContext& c, size_t i) {
  if (!c.has_input(i)) return false;
  const LayoutPtr layout = c.in_layout(i);
  return layout && layout->bf16();
}

LayoutPtr bf16_row_major(const Shape& shape) { return stored_layout(shape, Order::kRowMajor, true); }

LayoutPtr bf16_layout(const KernelContext& c, size_t i) {
  return stored_layout(c.shape(i), order_of(c.in_layout(i)), true);
}

}  // namespace ortrain
