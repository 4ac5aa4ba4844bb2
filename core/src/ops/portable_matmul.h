// Matrix products without oneDNN, over Eigen: any floating type, any target.
#pragma once

#include <cstdint>

namespace ortrain {

// A matrix in memory: element (i, j) is data[i * row + j * column]; one of the strides is 1, or an extent is.
template <typename T>
struct MatrixView {
  T* data;
  int64_t row;
  int64_t column;
};

// C = alpha A B + beta C with A [m, k], B [k, n] and C [m, n] row-major with `c_row` elements between rows,
// on this thread. Where beta is 0, C is not read. Types: float, double, int32, int64, uint32, uint64.
template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b, T beta,
              T* c, int64_t c_row);

}  // namespace ortrain
