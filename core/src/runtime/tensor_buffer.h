// TensorBuffer: memory for a tensor whose type and shape change from use to use.
#pragma once

#include "runtime/tensor.h"

namespace ortrain {

// It grows and is never freed, so values no larger than the largest size so far cost no allocation.
class TensorBuffer {
 public:
  // A tensor of that type and shape, uninitialized. With `keep` the bytes that were there before stay in
  // front. Tensors given before must not be used any more, but for those whose memory is still wanted: they
  // own it where the buffer has to grow.
  const Tensor& reset(DType dtype, const Shape& shape, bool keep = false);
  // What the last reset gave.
  const Tensor& tensor() const { return tensor_; }

 private:
  std::shared_ptr<std::byte> block_;
  size_t capacity_ = 0;
  Tensor tensor_;
};

}  // namespace ortrain
