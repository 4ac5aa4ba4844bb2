// Creates a kernel for float or double, depending on the input.
#pragma once

#include "op/operator.h"

namespace ortrain {

// make(T{}) for the floating type of input i; rejects other types.
template <typename Make>
Kernel floating_kernel(KernelContext& c, size_t i, Make&& make) {
  Kernel kernel;
  if (!visit_floating(c.dtype(i), [&](auto zero) { kernel = make(zero); })) c.reject_dtype(i);
  return kernel;
}

}  // namespace ortrain
