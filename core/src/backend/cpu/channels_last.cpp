#include "backend/cpu/channels_last.h"

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/stored_layout.h"

namespace ortrain {

LayoutPtr channels_last(const Shape& shape, bool bf16) {
  return stored_layout(shape, Order::kChannelsLast, bf16);
}

bool suits_channels_last(const KernelContext& c) {
  if (c.dtype(0) != DType::kFloat) return false;
  for (size_t i = 0; i < c.input_count(); ++i)
    if (c.has_input(i) && !c.constant(i)) return true;
  return false;
}

Tensor with_channels_last(const Tensor& values) {
  const Shape& shape = values.shape();
  Tensor made(DType::kFloat, shape);
  const int64_t channels = shape[1], points = element_count(shape, 2, shape.size());
  const float* from = values.data<float>();
  float* to = made.data<float>();
  for (int64_t n = 0; n < shape[0]; ++n)
    for (int64_t p = 0; p < points; ++p)
      for (int64_t c = 0; c < channels; ++c) *to++ = from[(n * channels + c) * points + p];
  return made;
}

bool stored_channels_last(const KernelContext& c, size_t i) {
  return order_of(c.in_layout(i)) == Order::kChannelsLast;
}

StoredSlot in_channels_last(KernelContext& c, size_t i) { return in_channels_last(c, i, lies_in_bf16(c, i)); }

StoredSlot in_channels_last(KernelContext& c, size_t i, bool bf16) {
  return {c.in(i, channels_last(c.shape(i), bf16)), bf16};
}

StoredSlot out_channels_last(KernelContext& c, size_t o, bool bf16) {
  return {c.out(o, channels_last(c.out_shape(o), bf16)), bf16};
}

}  // namespace ortrain
