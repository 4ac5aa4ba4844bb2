// Value: a value of a model during a run: a tensor, a sequence of tensors, or nothing.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/tensor.h"

namespace ortrain {

// Tensors of one element type, one after another. A sequence never changes: adding and removing give another
// one. Both share the elements, so that a loop which adds an element a turn takes linear time. A sequence and
// those made of it belong to one thread at a time.
class Sequence {
 public:
  Sequence() = default;
  // The elements share their memory with those given, whose type must be `dtype`.
  explicit Sequence(DType dtype, const std::vector<Tensor>& elements = {});

  DType dtype() const { return dtype_; }
  size_t size() const { return size_; }
  const Tensor& at(size_t i) const { return (*elements_)[i]; }

  // With an element more, which is number `position` then.
  Sequence inserted(size_t position, Tensor element) const;
  // Without element `position`.
  Sequence erased(size_t position) const;
  // With copies of the elements, or with the same elements in a list of its own.
  Sequence clone() const;
  Sequence detached() const;

 private:
  DType dtype_ = DType::kUndefined;
  // The first `size_` of these. Who has them all may add one after them, which the others do not see.
  std::shared_ptr<std::deque<Tensor>> elements_;
  size_t size_ = 0;
};

// An optional value that is not there.
struct Nothing {};

// One that owns what it is. Where a result is wanted, an undefined tensor stands for whatever comes.
using Value = std::variant<Tensor, Sequence, Nothing>;

// A value of somebody else.
class ValueRef {
 public:
  ValueRef() = default;  // nothing
  ValueRef(const Tensor* tensor) : tensor_(tensor) {}
  ValueRef(const Tensor& tensor) : tensor_(&tensor) {}
  ValueRef(const Sequence& sequence) : sequence_(&sequence) {}
  ValueRef(const Value& value)
      : tensor_(std::get_if<Tensor>(&value)), sequence_(std::get_if<Sequence>(&value)) {}

  // Null where it is something else.
  const Tensor* tensor() const { return tensor_; }
  const Sequence* sequence() const { return sequence_; }
  bool is_nothing() const { return !tensor_ && !sequence_; }

 private:
  const Tensor* tensor_ = nullptr;
  const Sequence* sequence_ = nullptr;
};

// "float32[2, 3]", "a sequence of 2 float32 tensors", "nothing"
std::string describe(const ValueRef& value);

}  // namespace ortrain
