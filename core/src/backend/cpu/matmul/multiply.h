// Matrix products with our own kernels (backend/cpu/matmul/product_tiles-inl.h), for any target, floats and
// integers.
//
// An operand is packed if enough rows use it to pay for that; with few rows it is read in place. The
// choice depends on the sizes of the whole product, and each element is summed in the order of its
// products, so the number of threads changes no bit.
//
// These are our own rather than Eigen's: a redistributed library is compiled for the oldest supported
// machine, and Eigen would use only that machine's vectors. The micro-kernel is compiled for several
// instruction sets and chosen at program start: four to six times faster with AVX-512, three times with
// AVX2.
#pragma once

#include <cstdint>

namespace ortrain {

// A matrix in memory: element (i, j) is data[i * row + j * column]; one of the strides or sizes is 1.
template <typename T>
struct MatrixView {
  T* data;
  int64_t row;
  int64_t column;
};

// C = alpha A B + beta C with A [m, k], B [k, n] and C [m, n] row-major with `c_row` elements between rows,
// on at most `threads` threads; small products stay on this one. The number of threads does not change a bit
// of C. If beta is 0, C is not read. Types: float, double, int32, int64, uint32, uint64; integers wrap
// around.
template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b, T beta,
              T* c, int64_t c_row, int threads = 1);

// A right operand that many products read is packed once. [k, n] takes packed_size(k, n) elements. Types:
// float and double.
template <typename T>
int64_t packed_size(int64_t k, int64_t n);

// Packs B [k, n] on all threads.
template <typename T>
void pack(int64_t k, int64_t n, MatrixView<const T> b, T* packed);

// C = A B or C + A B on this thread, with B packed, and C row-major with `c_row` elements between rows.
template <typename T>
void multiply_packed(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, const T* packed, bool add, T* c,
                     int64_t c_row);

}  // namespace ortrain
