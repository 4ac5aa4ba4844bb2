#include "runtime/tensor.h"

#include <cstring>

#include "runtime/convert.h"
#include "runtime/memory.h"
#include "runtime/text_tensor.h"

namespace ortrain {

Tensor::Tensor(DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(element_count(shape_)) {
  const size_t bits = bits_of(dtype);
  require(bits > 0, ErrorCode::kNotImplemented, "tensors of type ", to_string(dtype), " are not supported");
  size_t total = 0;
  require(!__builtin_mul_overflow(static_cast<size_t>(size_), (bits + 7) / 8, &total),
          ErrorCode::kInvalidArgument, "a tensor of shape ", to_string(shape_), " is too large");
  auto block = allocate(bytes());
  data_ = block.get();
  owner_ = std::move(block);
}

Tensor::Tensor(DType dtype, Shape shape, void* data, std::shared_ptr<void> owner)
    : dtype_(dtype),
      shape_(std::move(shape)),
      size_(element_count(shape_)),
      data_(static_cast<std::byte*>(data)),
      owner_(std::move(owner)) {
  require(bits_of(dtype) > 0, ErrorCode::kNotImplemented, "tensors of type ", to_string(dtype),
          " are not supported");
}

Tensor Tensor::scalar(DType dtype, double value) {
  Tensor t(dtype, Shape{});
  if (is_half(dtype)) {
    const float number = static_cast<float>(value);
    from_wide(dtype, reinterpret_cast<const std::byte*>(&number), t.raw(), 1);
    return t;
  }
  if (is_small_float(dtype) || is_packed(dtype)) {
    std::byte bits = static_cast<std::byte>(static_cast<int>(value));
    if (is_small_float(dtype)) encode_small_floats(dtype, &value, 1, &bits, {});
    if (is_packed(dtype))
      pack(dtype, &bits, 0, 1, t.raw());
    else
      *t.raw() = bits;
    return t;
  }
  if (dtype == DType::kBool) {
    *t.data<bool>() = value != 0;
    return t;
  }
  const bool known = visit_numeric(dtype, [&](auto zero) {
    using T = decltype(zero);
    *t.data<T>() = cast_number<T>(value);
  });
  require(known, ErrorCode::kNotImplemented, "a constant of type ", to_string(dtype), " is not supported");
  return t;
}

std::vector<int64_t> Tensor::to_int64() const {
  if (dtype_ == DType::kInt64) return {data<int64_t>(), data<int64_t>() + size_};
  if (dtype_ == DType::kInt32) return {data<int32_t>(), data<int32_t>() + size_};
  fail(ErrorCode::kInvalidArgument, "expected a tensor of int64 or int32, found ", to_string(dtype_));
}

std::vector<double> Tensor::to_double() const {
  std::vector<double> out(static_cast<size_t>(size_));
  read_numbers(dtype_, data_, 0, size_, out.data());
  return out;
}

Tensor Tensor::clone() const {
  if (!defined()) return {};
  if (dtype_ == DType::kString) return with_own_texts(*this);
  Tensor copy(dtype_, shape_);
  if (bytes() > 0) std::memcpy(copy.data_, data_, bytes());
  return copy;
}

Tensor Tensor::reshaped(Shape shape) const {
  require(element_count(shape) == size_, ErrorCode::kInvalidArgument, "cannot view shape ", to_string(shape_),
          " as ", to_string(shape));
  Tensor view = *this;
  view.shape_ = std::move(shape);
  return view;
}

void Tensor::copy_from(const Tensor& source) const {
  require(source.dtype_ == dtype_ && source.shape_ == shape_, ErrorCode::kInvalidArgument, "cannot copy ",
          to_string(source.dtype_), to_string(source.shape_), " onto ", to_string(dtype_), to_string(shape_));
  if (bytes() > 0) std::memcpy(data_, source.data_, bytes());
}

}  // namespace ortrain
