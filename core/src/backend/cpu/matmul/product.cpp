#include "backend/cpu/matmul/product.h"

#include <algorithm>
#include <type_traits>

#include "runtime/threads.h"

namespace ortrain {

namespace {

// Such products are rare, so plain loops compute them; 32-bit sums wrap around as those of T do.
template <typename T>
void narrow_product(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b,
                    T beta, T* y, int64_t y_row) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      uint32_t sum = beta ? static_cast<uint32_t>(beta) * static_cast<uint32_t>(y[i * y_row + j]) : 0;
      for (int64_t l = 0; l < k; ++l)
        sum += static_cast<uint32_t>(alpha) * static_cast<uint32_t>(a.data[i * a.row + l * a.column]) *
               static_cast<uint32_t>(b.data[l * b.row + j * b.column]);
      y[i * y_row + j] = static_cast<T>(sum);
    }
}

}  // namespace

template <typename T>
void scaled_product(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b,
                    T beta, T* y, int64_t y_row, int threads) {
  constexpr bool kNarrow = std::is_integral_v<T> && sizeof(T) < 4;
  if (kNarrow && threads > 1) {
    // The work is cut along the longer side of y.
    const bool rows = m >= n;
    parallel_for(rows ? m : n, (rows ? n : m) * k, [&](int64_t begin, int64_t end) {
      const int64_t row = rows ? begin : 0, column = rows ? 0 : begin;
      scaled_product<T>(rows ? end - begin : m, rows ? n : end - begin, k, alpha,
                        {a.data + row * a.row, a.row, a.column},
                        {b.data + column * b.column, b.row, b.column}, beta, y + row * y_row + column, y_row);
    });
    return;
  }
  if constexpr (kNarrow)
    narrow_product<T>(m, n, k, alpha, a, b, beta, y, y_row);
  else
    multiply<T>(m, n, k, alpha, a, b, beta, y, y_row, threads);
}

template <typename T>
void product(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, MatrixView<const T> b, T beta, T* y,
             int64_t y_row) {
  scaled_product<T>(m, n, k, T(1), a, b, beta, y, y_row);
}

template <typename T>
void threaded_product(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, MatrixView<const T> b, T beta,
                      T* y, int64_t y_row) {
  scaled_product<T>(m, n, k, T(1), a, b, beta, y, y_row, max_threads());
}

#define ORTRAIN_PRODUCT(T)                                                                                   \
  template void scaled_product<T>(int64_t, int64_t, int64_t, T, MatrixView<const T>, MatrixView<const T>, T, \
                                  T*, int64_t, int);                                                         \
  template void product<T>(int64_t, int64_t, int64_t, MatrixView<const T>, MatrixView<const T>, T, T*,       \
                           int64_t);                                                                         \
  template void threaded_product<T>(int64_t, int64_t, int64_t, MatrixView<const T>, MatrixView<const T>, T,  \
                                    T*, int64_t)
ORTRAIN_PRODUCT(float);
ORTRAIN_PRODUCT(double);
ORTRAIN_PRODUCT(int8_t);
ORTRAIN_PRODUCT(uint8_t);
ORTRAIN_PRODUCT(int16_t);
ORTRAIN_PRODUCT(uint16_t);
ORTRAIN_PRODUCT(int32_t);
ORTRAIN_PRODUCT(int64_t);
ORTRAIN_PRODUCT(uint32_t);
ORTRAIN_PRODUCT(uint64_t);

}  // namespace ortrain
