// Convolution with 3 x 3 windows and stride 1 by minimal filtering: F(2 x 2, 3 x 3) and F(4 x 4, 3 x 3) of
// A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks", CVPR 2016. Four results need 16
// multiplications instead of 36, and 16 results 36 instead of 144:
//
//     Y = Aᵀ [ (G W Gᵀ) ∘ (Bᵀ X B) ] A          for tiles X that overlap by 2, and tiles Y of 2 x 2 or 4 x 4
//     dW = Gᵀ [ (Bᵀ X B) ∘ (A dY Aᵀ) ] G
//
// and summed over channels and tiles, each of the 16 or 36 elements is a matrix product. The gradient of X is
// the convolution of dY with the flipped windows.
//
// X, Y and their gradients are stored with channels last, [N, H, W, C], and weights and their gradient as [M,
// 3, 3, C].
//
// The transforms of small tiles use only sums and halves, so the errors are those of direct summation. Large
// tiles are interpolated at 0, ±√½, ±√2 and infinity. That keeps their errors within four times those of the
// direct convolution, which the usual points, 0, ±1 and ±2, exceed two to three times.
//
// If the cache holds the transformed weights, each thread takes tiles through all three stages; otherwise all
// data are transformed first, and each thread takes columns of the weights.
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
  int64_t tile = 2;           // rows and columns of the results of a tile: 2 or 4

  // Those of the convolution that computes dX from dY.
  WinogradSizes transposed() const {
    return {batch, filters, channels, rows, columns, height, width, 2 - top, 2 - left, tile};
  }
};

// Values of X, Y and their gradients are float or bfloat16; all arithmetic is in float in both cases.

// The tile that is fastest with this many threads; 0 if the algorithm is not possible here or does not pay
// off.
int64_t winograd_tile(const WinogradSizes& s, int threads);
// The sizes with the tile for the gradient of the weights: small where lines are short, because the direct
// convolution, which sums line by line, is more precise there.
WinogradSizes for_weight_gradient(WinogradSizes s);

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
