// Value: a value of a model during a run: a tensor, a sequence of tensors, or empty.
//
// Programs see only tensors; sequences and empty values exist between Programs. A sequence is immutable:
// adding an element returns a new sequence that shares all elements with the old one, so a loop that
// collects its results takes linear time.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/tensor.h"

namespace ortrain {

// A list of tensors of one element type. A sequence is immutable: adding and removing return another one.
// Both share the elements, so that a loop that adds one element per iteration takes linear time. A sequence
// and those derived from it belong to one thread at a time.
class Sequence {
 public:
  Sequence() = default;
  // The elements share the memory of the given tensors, whose type must be `dtype`.
  explicit Sequence(DType dtype, const std::vector<Tensor>& elements = {});

  DType dtype() const { return dtype_; }
  size_t size() const { return size_; }
  // The memory that its elements take, with what each needs besides its data.
  size_t bytes() const { return bytes_; }
  const Tensor& at(size_t i) const { return (*elements_)[i]; }

  // A sequence with one more element, at index `position`.
  Sequence inserted(size_t position, Tensor element) const;
  // A sequence without element `position`.
  Sequence erased(size_t position) const;
  // A sequence with copies of the elements, or with the same elements in a separate list.
  Sequence clone() const;
  Sequence detached() const;

 private:
  DType dtype_ = DType::kUndefined;
  // The sequence is the first `size_` of these. A sequence that includes all of them may append an element,
  // which other sequences over the list do not see.
  std::shared_ptr<std::deque<Tensor>> elements_;
  size_t size_ = 0;
  size_t bytes_ = 0;
};

// An empty optional value.
struct Nothing {};

// A value that owns its contents. As the place of a result, an undefined tensor accepts any value.
using Value = std::variant<Tensor, Sequence, Nothing>;

// A reference to a value owned elsewhere.
class ValueRef {
 public:
  ValueRef() = default;  // nothing
  ValueRef(const Tensor* tensor) : tensor_(tensor) {}
  ValueRef(const Tensor& tensor) : tensor_(&tensor) {}
  ValueRef(const Sequence& sequence) : sequence_(&sequence) {}
  ValueRef(const Value& value)
      : tensor_(std::get_if<Tensor>(&value)), sequence_(std::get_if<Sequence>(&value)) {}

  // Null if it is something else.
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
