// TensorBuffer: memory for a tensor whose type and shape change from use to use.
#pragma once

#include "runtime/tensor.h"

namespace ortrain {

// It only grows, so values no larger than the largest so far need no allocation.
class TensorBuffer {
 public:
  // A tensor of that type and shape, uninitialized. With `keep`, the previous bytes stay at the front.
  // Tensors returned before must not be used any more: they share the memory or, if the buffer had to grow,
  // keep the old one.
  const Tensor& reset(DType dtype, const Shape& shape, bool keep = false);
  // The tensor of the last reset.
  const Tensor& tensor() const { return tensor_; }

 private:
  std::shared_ptr<std::byte> block_;
  size_t capacity_ = 0;
  Tensor tensor_;
};

}  // namespace ortrain
