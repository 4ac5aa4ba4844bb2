// Convolution with 3 x 3 windows and stride 1 by minimal filtering: F(2 x 2, 3 x 3) of A. Lavin and S. Gray,
// "Fast algorithms for convolutional neural networks", CVPR 2016. Four results need 16 multiplications
// instead of 36:
//
//     Y = Aᵀ [ (G W Gᵀ) ∘ (Bᵀ X B) ] A          for tiles X of 4 x 4 that overlap by 2, tiles Y of 2 x 2
//     dW = Gᵀ [ (Bᵀ X B) ∘ (A dY Aᵀ) ] G
//
// and summed over channels and tiles, each of the 16 elements is a matrix product. The gradient of X is the
// convolution of dY with the flipped windows.
//
// X, Y and their gradients are stored with channels last, [N, H, W, C], and weights and their gradient as [M,
// 3, 3, C].
//
// F(2 x 2, 3 x 3) is chosen because its transforms use only sums and halves, so its errors are those
// of direct summation; F(4 x 4, 3 x 3) loses a digit. If the cache holds the transformed weights, each
// thread takes tiles through all three stages; otherwise all data are transformed first, and each thread
// takes columns of the weights. suits_winograd() decides by measurements where the algorithm is faster.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/stored_values.h"

namespace ortrain {

// The sizes of a convolution, of the forward pass: X [batch, channels, height, width], Y [batch, filters,
// rows, columns].
struct WinogradSizes {
  int64_t batch = 0, channels = 0, filters = 0, height = 0, width = 0, rows = 0, columns = 0;
  int64_t top = 0, left = 0;  // padding in front, at most 2

  // Those of the convolution that computes dX from dY.
  WinogradSizes transposed() const {
    return {batch, filters, channels, rows, columns, height, width, 2 - top, 2 - left};
  }
};

// Values of X, Y and their gradients are float or bfloat16; all arithmetic is in float in both cases.

// Whether it is possible here, and pays off with this many threads.
bool suits_winograd(const WinogradSizes& s, int threads);

// Bytes of memory that a run needs besides its operands.
size_t winograd_scratch(const WinogradSizes& s, int threads);
size_t winograd_weights_scratch(const WinogradSizes& s, int threads);

// Y = Conv(X, W) + bias, plus the contents of Y if `add`, clipped at zero if `relu`. bias may be null.
void winograd_forward(const WinogradSizes& s, int threads, StoredInput x, const float* w, const float* bias,
                      bool add, bool relu, StoredOutput y, void* scratch);
// With winograd_scratch(s.transposed()).
void winograd_backward_data(const WinogradSizes& s, int threads, StoredInput dy, const float* w,
                            StoredOutput dx, void* scratch);
void winograd_backward_weights(const WinogradSizes& s, int threads, StoredInput x, StoredInput dy, float* dw,
                               void* scratch);

}  // namespace ortrain
