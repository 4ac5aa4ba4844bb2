#include "runtime/value.h"

#include <utility>

#include "runtime/error.h"

namespace ortrain {

namespace {

size_t bytes_of(const Tensor& element) { return element.bytes() + sizeof(Tensor); }

}  // namespace

Sequence::Sequence(DType dtype, const std::vector<Tensor>& elements)
    : dtype_(dtype),
      elements_(std::make_shared<std::deque<Tensor>>(elements.begin(), elements.end())),
      size_(elements.size()) {
  for (size_t i = 0; i < size_; ++i) {
    require(at(i).dtype() == dtype, ErrorCode::kInvalidArgument, "element ", i, " of a sequence of type ",
            to_string(dtype), " has type ", to_string(at(i).dtype()));
    bytes_ += bytes_of(at(i));
  }
}

Sequence Sequence::inserted(size_t position, Tensor element) const {
  require(element.dtype() == dtype_, ErrorCode::kInvalidArgument, "a tensor of type ",
          to_string(element.dtype()), " cannot be added to a sequence of type ", to_string(dtype_));
  Sequence result = position == size_ && elements_ && elements_->size() == size_ ? *this : detached();
  result.bytes_ += bytes_of(element);
  const auto at = result.elements_->begin() + static_cast<std::ptrdiff_t>(position);
  if (position == size_)
    result.elements_->push_back(std::move(element));
  else
    result.elements_->insert(at, std::move(element));
  ++result.size_;
  return result;
}

Sequence Sequence::erased(size_t position) const {
  Sequence result = *this;
  result.bytes_ -= bytes_of(at(position));
  if (position + 1 < size_) {
    result.elements_ = detached().elements_;
    result.elements_->erase(result.elements_->begin() + static_cast<std::ptrdiff_t>(position));
  }
  --result.size_;
  return result;
}

Sequence Sequence::detached() const {
  Sequence copy(dtype_);
  for (size_t i = 0; i < size_; ++i) copy.elements_->push_back(at(i));
  copy.size_ = size_;
  copy.bytes_ = bytes_;
  return copy;
}

Sequence Sequence::clone() const {
  Sequence copy(dtype_);
  for (size_t i = 0; i < size_; ++i) copy.elements_->push_back(at(i).clone());
  copy.size_ = size_;
  copy.bytes_ = bytes_;
  return copy;
}

std::string describe(const ValueRef& value) {
  if (const Tensor* tensor = value.tensor()) return to_string(tensor->dtype()) + to_string(tensor->shape());
  if (const Sequence* sequence = value.sequence())
    return concat("a sequence of ", sequence->size(), " ", to_string(sequence->dtype()), " tensors");
  return "nothing";
}

}  // namespace ortrain
