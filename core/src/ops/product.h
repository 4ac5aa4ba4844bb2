// One product of matrices: by oneDNN where it is there and takes the type, else by Eigen.
#pragma once

#include "ops/portable_matmul.h"

namespace ortrain {

// y = a b + beta y with a [m, k], b [k, n] and y [m, n] in rows that are `y_row` apart, on this thread.
// Types: float, double, int32, int64, uint32, uint64.
template <typename T>
void product(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, MatrixView<const T> b, T beta, T* y,
             int64_t y_row);

// The same with the rows of y shared among the threads.
template <typename T>
void threaded_product(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, MatrixView<const T> b, T beta,
                      T* y, int64_t y_row);

}  // namespace ortrain
