// Transposed convolution.
//
// It is the gradient of a convolution with respect to that convolution's input: X takes the role of dY, and
// the result takes the role of dX. So the Window here is the window of the convolution: its `input` is the
// size of Y, its `output` the size of X. Along each axis Y[x * stride + k * dilation - before] += X[x] W[k].
#pragma once

#include "geometry/sliding_window.h"
#include "op/operator.h"

namespace ortrain {

// The shapes, groups and window of a node whose inputs `x_at` and `w_at` are X and W.
struct Transposed {
  Shape x, w, y;
  int64_t groups;
  Window window;

  Transposed(const NodeContext& c, size_t x_at, size_t w_at);
};

}  // namespace ortrain
