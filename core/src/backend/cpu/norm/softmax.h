// Softmax and its logarithm along one axis, for the operators that are based on them.
#pragma once

#include <cstdint>

#include "runtime/dtype.h"

namespace ortrain {

// A tensor as [outer, length, inner]; the numbers of one softmax are those along `length`.
struct SoftmaxShape {
  int64_t outer = 1, length = 1, inner = 1;
};

// y = softmax(x) or log softmax(x), in float or double, or in float on values kept in bfloat16. x and y may
// be the same memory.
void run_softmax(const SoftmaxShape& shape, DType dtype, bool log, const void* x, void* y);
// The gradient of the input from that of the output: y (dy - sum dy y), or with log dy - e^y sum dy. dx may
// be dy or y.
void run_softmax_gradient(const SoftmaxShape& shape, DType dtype, bool log, const void* dy, const void* y,
                          void* dx);

}  // namespace ortrain
