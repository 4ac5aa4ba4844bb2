// Inverse (com.microsoft): Y = X⁻¹ for each matrix of the last two axes, by Gauss-Jordan elimination with
// partial pivoting in double precision.
//
// From X Y = I: dY = -Y dX Y, so the gradient of X is -Yᵀ dY Yᵀ.
#include <atomic>
#include <cmath>
#include <cstring>

#include "op/operator.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) {
  const Shape& x = c.shape(0);
  if (!is_floating(c.dtype(0))) c.reject_dtype(0);
  c.expect(x.size() >= 2 && x[x.size() - 1] == x[x.size() - 2],
           "its input must hold square matrices, found shape ", to_string(x));
  shape_like_first(c);
}

// Inverts the n x n matrix in `a`, which is overwritten, into `y`. False if it has no inverse.
bool invert(int64_t n, double* a, double* y) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = i == j ? 1 : 0;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i)
      if (std::abs(a[i * n + k]) > std::abs(a[pivot * n + k])) pivot = i;
    const double largest = a[pivot * n + k];
    if (largest == 0 || !std::isfinite(largest)) return false;
    if (pivot != k)
      for (int64_t j = 0; j < n; ++j) {
        std::swap(a[pivot * n + j], a[k * n + j]);
        std::swap(y[pivot * n + j], y[k * n + j]);
      }
    for (int64_t j = 0; j < n; ++j) {
      a[k * n + j] /= largest;
      y[k * n + j] /= largest;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double factor = a[i * n + k];
      if (i == k || factor == 0) continue;
      for (int64_t j = 0; j < n; ++j) {
        a[i * n + j] -= factor * a[k * n + j];
        y[i * n + j] -= factor * y[k * n + j];
      }
    }
  }
  return true;
}

template <typename T>
Kernel typed(KernelContext& c) {
  const int64_t n = c.shape(0).back(), count = n ? c.size(0) / (n * n) : 0, size = n * n;
  const Slot x_slot = c.in(0), y_slot = c.out(0);
  const Slot work_slot = c.scratch(static_cast<size_t>(2 * c.size(0)) * sizeof(double));
  const std::string label = c.node().label();
  return [=](const Frame& f) {
    const T* x = f.at<const T>(x_slot);
    T* y = f.at<T>(y_slot);
    double* work = f.at<double>(work_slot);
    std::atomic<int64_t> singular{-1};
    parallel_for(count, 2 * size * n, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        double *a = work + 2 * m * size, *inverse = a + size;
        std::copy_n(x + m * size, size, a);
        if (!invert(n, a, inverse)) singular = m;
        for (int64_t i = 0; i < size; ++i) y[m * size + i] = static_cast<T>(inverse[i]);
      }
    });
    require(singular < 0, ErrorCode::kInvalidArgument, label, ": matrix ", singular.load(),
            " of its input has no inverse");
  };
}

Kernel kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = typed<decltype(zero)>(c); })) c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  const auto product = [&](const std::string& a, bool trans_a, const std::string& b, bool trans_b,
                           float factor) {
    return g("FusedMatMul", {a, b},
             {{"transA", int64_t{trans_a}}, {"transB", int64_t{trans_b}}, {"alpha", factor}}, kMicrosoft);
  };
  g.set(0, product(product(g.y(0), true, g.dy(0), false, -1), false, g.y(0), true, 1));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "Inverse",
                  .signature = "X -> Y",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
