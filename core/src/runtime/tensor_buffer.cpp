#include "runtime/tensor_buffer.h"

#include <algorithm>
#include <cstring>

#include "runtime/memory.h"

namespace ortrain {

const Tensor& TensorBuffer::reset(DType dtype, const Shape& shape, bool keep) {
  if (tensor_.defined() && tensor_.dtype() == dtype && tensor_.shape() == shape) return tensor_;
  const auto count = static_cast<size_t>(element_count(shape));
  size_t bytes = 0;
  require(!__builtin_mul_overflow(count, (bits_of(dtype) + 7) / 8, &bytes), ErrorCode::kInvalidArgument,
          "a tensor of shape ", to_string(shape), " is too large");
  if (!block_ || bytes > capacity_) {
    // A buffer that keeps growing grows by at least half each time.
    const size_t wanted = keep ? std::max(bytes, capacity_ + capacity_ / 2) : bytes;
    auto block = allocate(wanted);
    if (keep && tensor_.defined() && tensor_.bytes() > 0)
      std::memcpy(block.get(), tensor_.raw(), std::min(bytes, tensor_.bytes()));
    block_ = std::move(block);
    capacity_ = wanted;
  }
  tensor_ = Tensor(dtype, shape, block_.get(), block_);
  return tensor_;
}

}  // namespace ortrain
