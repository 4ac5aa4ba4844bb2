#include "ops/portable_matmul.h"

#include <Eigen/Core>
#include <cstdint>
#include <type_traits>

namespace ortrain {

namespace {

template <typename T>
using Columns = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>, 0,
                           Eigen::OuterStride<>>;
template <typename T>
using Rows = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                        Eigen::OuterStride<>>;
template <typename T>
using Result =
    Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0, Eigen::OuterStride<>>;

// Calls f with the matrix as Eigen sees it: stored by columns or by rows.
template <typename T, typename F>
void visit(MatrixView<const T> v, int64_t rows, int64_t columns, F&& f) {
  if (v.row == 1 && v.column != 1)
    f(Columns<T>(v.data, rows, columns, Eigen::OuterStride<>(v.column)));
  else
    f(Rows<T>(v.data, rows, columns, Eigen::OuterStride<>(v.row)));
}

template <typename T>
void eigen_product(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b,
                   T beta, T* c, int64_t c_row) {
  if (m <= 0 || n <= 0) return;
  Result<T> result(c, m, n, Eigen::OuterStride<>(c_row));
  if (beta == T(0))
    result.setZero();
  else if (beta != T(1))
    result *= beta;
  if (k <= 0 || alpha == T(0)) return;
  visit<T>(a, m, k, [&](const auto& left) {
    visit<T>(b, k, n, [&](const auto& right) { result.noalias() += alpha * (left * right); });
  });
}

}  // namespace

// Signed integers wrap around as unsigned ones do.
template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b, T beta,
              T* c, int64_t c_row) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    const auto bits = [](MatrixView<const T> v) {
      return MatrixView<const U>{reinterpret_cast<const U*>(v.data), v.row, v.column};
    };
    eigen_product<U>(m, n, k, static_cast<U>(alpha), bits(a), bits(b), static_cast<U>(beta),
                     reinterpret_cast<U*>(c), c_row);
  } else {
    eigen_product(m, n, k, alpha, a, b, beta, c, c_row);
  }
}

#define ORTRAIN_MULTIPLY(T)                                                                                \
  template void multiply<T>(int64_t, int64_t, int64_t, T, MatrixView<const T>, MatrixView<const T>, T, T*, \
                            int64_t)
ORTRAIN_MULTIPLY(float);
ORTRAIN_MULTIPLY(double);
ORTRAIN_MULTIPLY(int32_t);
ORTRAIN_MULTIPLY(int64_t);
ORTRAIN_MULTIPLY(uint32_t);
ORTRAIN_MULTIPLY(uint64_t);

}  // namespace ortrain
