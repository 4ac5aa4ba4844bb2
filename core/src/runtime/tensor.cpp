#include "runtime/tensor.h"

#include <cstring>

#include "runtime/memory.h"

namespace ortrain {

Tensor::Tensor(DType dtype, Shape shape)
    : dtype_(dtype), shape_(std::move(shape)), size_(element_count(shape_)) {
  const size_t width = size_of(dtype);
  require(width > 0, ErrorCode::kNotImplemented, "tensors of type ", to_string(dtype), " are not supported");
  size_t total = 0;
  require(!__builtin_mul_overflow(static_cast<size_t>(size_), width, &total), ErrorCode::kInvalidArgument,
          "a tensor of shape ", to_string(shape_), " is too large");
  auto block = allocate(total);
  data_ = block.get();
  owner_ = std::move(block);
}

Tensor::Tensor(DType dtype, Shape shape, void* data, std::shared_ptr<void> owner)
    : dtype_(dtype),
      shape_(std::move(shape)),
      size_(element_count(shape_)),
      data_(static_cast<std::byte*>(data)),
      owner_(std::move(owner)) {
  require(size_of(dtype) > 0, ErrorCode::kNotImplemented, "tensors of type ", to_string(dtype),
          " are not supported");
}

Tensor Tensor::scalar(DType dtype, double value) {
  Tensor t(dtype, Shape{});
  if (dtype == DType::kBool) {
    *t.data<bool>() = value != 0;
    return t;
  }
  const bool known = visit_numeric(dtype, [&](auto zero) {
    using T = decltype(zero);
    *t.data<T>() = static_cast<T>(value);
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
  const bool known = visit_numeric_or_bool(dtype_, [&](auto zero) {
    using T = decltype(zero);
    const T* p = data<T>();
    for (int64_t i = 0; i < size_; ++i) out[static_cast<size_t>(i)] = static_cast<double>(p[i]);
  });
  require(known, ErrorCode::kNotImplemented, "reading values of type ", to_string(dtype_),
          " is not supported");
  return out;
}

Tensor Tensor::clone() const {
  if (!defined()) return {};
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
