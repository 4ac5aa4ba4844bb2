// One matrix product of any number type.
#pragma once

#include "backend/cpu/matmul/multiply.h"

namespace ortrain {

// y = alpha a b + beta y with a [m, k], b [k, n] and y [m, n] in rows that are `y_row` apart, on this thread
// or divided among `threads` threads. Types: float, double and all integers. If beta is 0, y is not read.
template <typename T>
void scaled_product(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b,
                    T beta, T* y, int64_t y_row, int threads = 1);

// The same with an alpha of 1.
template <typename T>
void product(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, MatrixView<const T> b, T beta, T* y,
             int64_t y_row);

// The same on all threads.
template <typename T>
void threaded_product(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, MatrixView<const T> b, T beta,
                      T* y, int64_t y_row);

}  // namespace ortrain
