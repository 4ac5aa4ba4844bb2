#include "ops/common/bf16_storage.h"

#include <algorithm>

#include "backend/cpu/onednn/dnnl.h"

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

#if ORTRAIN_ONEDNN

LayoutPtr bf16_row_major(const Shape& shape) { return dnnl_layout(dnnl_plain(shape, DnnlType::bf16)); }

LayoutPtr bf16_layout(const KernelContext& c, size_t i) {
  if (const LayoutPtr layout = c.in_layout(i); layout && layout->dense())
    if (const auto desc = dnnl_stored(c, i, DnnlType::bf16)) return dnnl_layout(*desc);
  return bf16_row_major(c.shape(i));
}

#else

// Without oneDNN no value lies in bfloat16, and nobody asks.
LayoutPtr bf16_row_major(const Shape&) { fail(ErrorCode::kFail, "this build keeps no values in bfloat16"); }
LayoutPtr bf16_layout(const KernelContext& c, size_t i) { return bf16_row_major(c.shape(i)); }

#endif

}  // namespace ortrain
