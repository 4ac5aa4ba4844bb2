// Batch normalization on row-major values X [batch, channels, points].
//
// S. Ioffe, C. Szegedy, "Batch normalization", ICML 2015.
#pragma once

#include <cstdint>

#include "backend/cpu/norm/clip_range.h"

namespace ortrain {

struct BatchSizes {
  int64_t batch = 0, channels = 0, points = 0;
  int64_t count() const { return batch * points; }  // values of one channel
};

// Mean and (biased) variance of every channel; 0 if there are no values.
template <typename T>
void batch_statistics(const BatchSizes& s, const T* x, T* mean, T* variance);
// Y = scale (X - mean) / sqrt(variance + epsilon) + bias. Y may be X.
template <typename T>
void batch_normalize(const BatchSizes& s, const T* x, const T* scale, const T* bias, const T* mean,
                     const T* variance, T epsilon, T* y);
// The gradients, if mean and variance are those of X itself. dX may be dY; each result may be null.
template <typename T>
void batch_normalize_backward(const BatchSizes& s, const T* dy, const T* x, const T* scale, const T* mean,
                              const T* inverse_deviation, T* dx, T* dscale, T* dbias);

// passed = dY where the activation after the normalization passes it on, otherwise 0. It may not be dY.
template <typename T>
void batch_clip_backward(const BatchSizes& s, const ClipRange& range, const T* dy, const T* x, const T* scale,
                         const T* bias, const T* mean, const T* inverse_deviation, T* passed);

}  // namespace ortrain
