// Kernels that compute with few integer types. Models seldom compute with int8, int16, uint8, uint16 and
// uint32. with_wide_integers() makes a kernel that computes with such values as int64, so the loops of an
// operator need not be compiled for each of these types.
#pragma once

#include <functional>

#include "op/operator.h"

namespace ortrain {

// Calls f(T{}) for the types that such a kernel sees. Returns false for other types.
template <typename F>
bool visit_wide_integer(DType dtype, F&& f) {
  return visit_types<int32_t, int64_t, uint64_t>(dtype, f);
}
template <typename F>
bool visit_wide_numeric(DType dtype, F&& f) {
  return visit_floating(dtype, f) || visit_wide_integer(dtype, f);
}

// How a result that its type cannot represent is converted.
enum class Overflow { kWraps, kSaturates };

// The kernel of `make`, which sees int64 instead of the small integer types. Values are converted before and
// after its run. Constants keep their types (NodeContext::constant).
Kernel with_wide_integers(KernelContext& c, const std::function<Kernel(KernelContext&)>& make,
                          Overflow overflow = Overflow::kWraps);

// with_wide_integers() as a kernel maker.
template <Kernel (*kMake)(KernelContext&), Overflow kOverflow = Overflow::kWraps>
Kernel wide_integers(KernelContext& c) {
  return with_wide_integers(c, kMake, kOverflow);
}

}  // namespace ortrain
