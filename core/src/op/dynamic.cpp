#include "op/dynamic.h"

namespace ortrain {

void OutputPlaces::take(size_t o, const ValueRef& value) {
  fail(ErrorCode::kNotImplemented, "output ", o, " is ", describe(value), ", expected a tensor");
}

const Tensor& DynamicContext::in(size_t i) const {
  const ValueRef found = value(i);
  expect(found.tensor() != nullptr, "input ", i, " is ", describe(found), ", expected a tensor");
  return *found.tensor();
}

const Sequence& DynamicContext::sequence(size_t i) const {
  const ValueRef found = value(i);
  expect(found.sequence() != nullptr, "input ", i, " is ", describe(found), ", expected a sequence");
  return *found.sequence();
}

ValueInfo info_of(const ValueRef& value) {
  ValueInfo info;
  if (const Tensor* tensor = value.tensor()) {
    info.dtype = tensor->dtype();
    info.dims.emplace();
    for (const int64_t dim : tensor->shape()) info.dims->push_back(Dim{dim, ""});
  } else if (const Sequence* sequence = value.sequence()) {
    info.dtype = sequence->dtype();
    info.is_sequence = true;
  } else {
    info.is_optional = true;
  }
  return info;
}

}  // namespace ortrain
