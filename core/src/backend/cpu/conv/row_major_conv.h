// Convolution on row-major values: windows are laid out as columns of a matrix (im2col), and matrix products
// do the rest.
#pragma once

#include <cstdint>

#include "geometry/sliding_window.h"

namespace ortrain {

// X [batch, channels, input...] * W [filters, channels / groups, kernel...] → Y [batch, filters, output...]
struct ConvSizes {
  int64_t batch = 0, channels = 0, filters = 0, groups = 1;
  Window window;  // three axes

  int64_t input_points() const;   // of one channel
  int64_t output_points() const;  // of one filter
  int64_t column_rows() const;    // values of one window of one group: channels / groups * kernel
};

// Into how many shares the work is divided, each with its own scratch memory.
int64_t conv_workers(const ConvSizes& s);
// Elements of scratch memory that each function needs, for all workers.
int64_t conv_scratch(const ConvSizes& s);
int64_t conv_weights_scratch(const ConvSizes& s);

// Y = X * W + bias; `bias` may be null.
template <typename T>
void conv_forward(const ConvSizes& s, int64_t workers, const T* x, const T* w, const T* bias, T* y,
                  T* scratch);
// dX from dY and W.
template <typename T>
void conv_backward_data(const ConvSizes& s, int64_t workers, const T* dy, const T* w, T* dx, T* scratch);
// dW from dY and X.
template <typename T>
void conv_backward_weights(const ConvSizes& s, int64_t workers, const T* dy, const T* x, T* dw, T* scratch);
// The gradient of the bias: dY summed over batch and space.
template <typename T>
void conv_backward_bias(const ConvSizes& s, const T* dy, T* db);

}  // namespace ortrain
