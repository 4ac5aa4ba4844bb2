// Kernels of matrix products that need no library.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "geometry/matrix_product.h"
#include "runtime/threads.h"

namespace ortrain {

std::optional<Kernel> plain_matmul(KernelContext& c);
std::optional<Kernel> plain_gemm(KernelContext& c);
std::optional<Kernel> plain_fused_product(KernelContext& c);

// Drops batch axes of size 1, merges neighbouring axes that can be stepped through as one, and merges the
// batch into the rows of A if all of it uses the same B: [batch, M, K] x [K, N] is a single matrix product.
Product simplify(Product p);

// What is added to the product.
enum class Bias { kNone, kScalar, kRow, kColumn, kFull };

struct Addend {
  Bias kind = Bias::kNone;
  float beta = 1;
  Slot slot;
  Shape shape;
};

// y = beta * bias, broadcast.
template <typename T>
void fill_bias(Bias kind, const T* bias, T beta, int64_t m, int64_t n, T* y) {
  if (n == 0) return;  // the bias may be empty too
  parallel_for(m, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      T* row = y + i * n;
      if (kind == Bias::kScalar || kind == Bias::kColumn) {
        std::fill(row, row + n, beta * bias[kind == Bias::kColumn ? i : 0]);
      } else {
        const T* from = kind == Bias::kFull ? bias + i * n : bias;
        if (beta == T(1) && from != row)
          std::copy(from, from + n, row);
        else if (beta != T(1))
          std::transform(from, from + n, row, [beta](T v) { return beta * v; });
      }
    }
  });
}

// Input 2 of a Gemm.
Addend read_addend(const NodeContext& c);

}  // namespace ortrain
