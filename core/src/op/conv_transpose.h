// What transposed convolutions are.
//
// One is the gradient of a convolution with regard to that convolution's input: X plays the part of dY and
// the result that of dX. So the Window here is that of the convolution: its `input` is the extent of Y, its
// `output` that of X. Along each axis Y[x * stride + k * dilation - before] += X[x] W[k].
#pragma once

#include "op/operator.h"
#include "op/sliding_window.h"

namespace ortrain {

// Where X and W are among the inputs, and what they make.
struct Transposed {
  Shape x, w, y;
  int64_t groups;
  Window window;

  Transposed(const NodeContext& c, size_t x_at, size_t w_at);
};

}  // namespace ortrain
