// Tensor: a dense row-major array with a type and a shape.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/error.h"
#include "runtime/shape.h"

namespace ortrain {

// Copies share their elements. A tensor either owns its memory (shared) or is a view of the caller's.
class Tensor {
 public:
  Tensor() = default;

  // An uninitialized tensor that owns its memory.
  Tensor(DType dtype, Shape shape);

  // A tensor over memory owned by the caller (`owner` empty) or by `owner`.
  Tensor(DType dtype, Shape shape, void* data, std::shared_ptr<void> owner = nullptr);

  // A tensor of rank 1, or of the given shape, with a copy of the values.
  template <typename T>
  static Tensor of(const std::vector<T>& values, Shape shape) {
    Tensor t(dtype_of<T>(), std::move(shape));
    std::copy(values.begin(), values.end(), t.data<T>());
    return t;
  }
  template <typename T>
  static Tensor of(const std::vector<T>& values) {
    return of(values, Shape{static_cast<int64_t>(values.size())});
  }
  // A scalar (rank 0).
  template <typename T>
  static Tensor scalar(T value) {
    return of(std::vector<T>{value}, Shape{});
  }
  // A scalar of a given numeric type.
  static Tensor scalar(DType dtype, double value);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return bytes_of(dtype_, size_); }
  bool defined() const { return dtype_ != DType::kUndefined; }

  std::byte* raw() const { return data_; }

  // The elements; throws if T is not the tensor's type.
  template <typename T>
  T* data() const {
    require(dtype_ == dtype_of<T>(), ErrorCode::kInvalidArgument, "a tensor of type ", to_string(dtype_),
            " was read as ", to_string(dtype_of<T>()));
    return reinterpret_cast<T*>(data_);
  }
  template <typename T>
  std::span<T> elements() const {
    return {data<T>(), static_cast<size_t>(size_)};
  }

  // The integers of an int32 or int64 tensor.
  std::vector<int64_t> to_int64() const;
  // The values of a tensor of any type except strings and complex numbers.
  std::vector<double> to_double() const;

  // A tensor with its own copy of the elements.
  Tensor clone() const;
  // The same elements under another shape of the same size.
  Tensor reshaped(Shape shape) const;
  // Copies the elements of `source`, which must have the same type and shape.
  void copy_from(const Tensor& source) const;

 private:
  DType dtype_ = DType::kUndefined;
  Shape shape_;
  int64_t size_ = 0;
  std::byte* data_ = nullptr;
  std::shared_ptr<void> owner_;
};

}  // namespace ortrain
