// Det: the determinants of the square matrices that the last two axes hold, and DetGrad (com.microsoft).
//
//     dA = dY adj(A)ᵀ
//
// Both operators factorize with complete pivoting: P A Q = L U with unit lower L. Then det A = s Π U_ii, s
// the sign of the permutations, and adj(A) = s Q adj(U) L⁻¹ P. The adjugate of a triangular matrix has a
// closed form even if U is singular, so the gradient is correct there as well.
//
// Compiled for size: the matrices are small (CMakeLists.txt).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "op/floating_kernel.h"
#include "op/operator.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// The factors of one matrix [n, n], in the caller's memory: U above and on the diagonal, L below it.
struct Factors {
  int64_t n;
  double* lu;
  int64_t *rows, *columns;  // row i of P A Q is row rows[i] of A; the same for columns
  double sign = 1;

  double& at(int64_t i, int64_t j) const { return lu[i * n + j]; }

  template <typename T>
  void factorize(const T* a) {
    std::copy(a, a + n * n, lu);
    std::iota(rows, rows + n, int64_t{0});
    std::iota(columns, columns + n, int64_t{0});
    sign = 1;
    for (int64_t k = 0; k < n; ++k) {
      int64_t row = k, column = k;
      for (int64_t i = k; i < n; ++i)
        for (int64_t j = k; j < n; ++j)
          if (!(std::abs(at(i, j)) <= std::abs(at(row, column)))) row = i, column = j;
      if (row != k) {
        std::swap_ranges(lu + k * n, lu + (k + 1) * n, lu + row * n);
        std::swap(rows[k], rows[row]);
        sign = -sign;
      }
      if (column != k) {
        for (int64_t i = 0; i < n; ++i) std::swap(at(i, k), at(i, column));
        std::swap(columns[k], columns[column]);
        sign = -sign;
      }
      if (at(k, k) == 0) break;  // the rest is zero
      for (int64_t i = k + 1; i < n; ++i) {
        const double factor = at(i, k) /= at(k, k);
        for (int64_t j = k + 1; j < n; ++j) at(i, j) -= factor * at(k, j);
      }
    }
  }

  // The product of the first `count` pivots.
  double pivots(int64_t count) const {
    double product = 1;
    for (int64_t i = 0; i < count; ++i) product *= at(i, i);
    return product;
  }

  // m = adj(U) L⁻¹. With U = [V u; 0 d] and D = det V:  adj(U) = D [d V⁻¹, -V⁻¹ u; 0, 1], which is zero if V
  // is singular: then two pivots are zero.
  void adjugate(double* m) const {
    std::fill(m, m + n * n, 0.0);
    const int64_t last = n - 1;
    const double det = pivots(last);
    if (det == 0) return;
    m[last * n + last] = det;
    // The columns of V⁻¹ [d I, -u], from the bottom up.
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = last; i-- > 0;) {
        double sum = j == last ? -at(i, last) : i == j ? at(last, last) : 0;
        for (int64_t k = i + 1; k < last; ++k) sum -= at(i, k) * m[k * n + j] / det;
        m[i * n + j] = det * sum / at(i, i);
      }
    for (int64_t j = last; j-- > 0;)
      for (int64_t k = j + 1; k < n; ++k)
        for (int64_t i = 0; i < n; ++i) m[i * n + j] -= m[i * n + k] * at(k, j);
  }
};

// The matrices of input x, shared among the threads.
struct Matrices {
  int64_t count, n, shares;

  Matrices(const NodeContext& c, size_t x) {
    const Shape& a = c.shape(x);
    c.expect(a.size() >= 2 && a[a.size() - 1] == a[a.size() - 2],
             "its input must have shape [..., M, M], found ", to_string(a));
    n = a.back();
    count = element_count(a, 0, a.size() - 2);
    shares = std::min<int64_t>(count, max_threads());
  }
  Shape batch(const Shape& a) const { return {a.begin(), a.end() - 2}; }

  // Doubles and integers per share; the adjugate is stored after the factors.
  int64_t doubles() const { return 2 * n * n; }
  Slot scratch(KernelContext& c) const {
    return c.scratch(static_cast<size_t>(shares * (doubles() + 2 * n)) * 8);
  }

  // Calls f(index of the matrix, its factors, memory for a matrix).
  template <typename T, typename F>
  void each(const T* a, std::byte* memory, F&& f) const {
    double* numbers = reinterpret_cast<double*>(memory);
    int64_t* orders = reinterpret_cast<int64_t*>(numbers + shares * doubles());
    parallel_for(shares, (count / std::max<int64_t>(shares, 1) + 1) * n * n * n, [&](int64_t b, int64_t e) {
      for (int64_t share = b; share < e; ++share) {
        double* lu = numbers + share * doubles();
        Factors factors{n, lu, orders + share * 2 * n, orders + (share * 2 + 1) * n};
        for (int64_t i = count * share / shares; i < count * (share + 1) / shares; ++i) {
          factors.factorize(a + i * n * n);
          f(i, factors, lu + n * n);
        }
      }
    });
  }
};

void shape(ShapeContext& c) {
  const Matrices m(c, 0);
  c.output(0, c.dtype(0), m.batch(c.shape(0)));
}

Kernel kernel(KernelContext& c) {
  const Matrices m(c, 0);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out(0), scratch = m.scratch(c);
    return Kernel([=](const Frame& f) {
      T* to = f.at<T>(y);
      m.each(f.at<const T>(x), f.at<std::byte>(scratch), [&](int64_t i, const Factors& factors, double*) {
        to[i] = static_cast<T>(factors.sign * factors.pivots(m.n));
      });
    });
  });
}

void gradient(GradientContext& g) { g.set(0, g("DetGrad", {g.dy(0), g.x(0)}, {}, kMicrosoft)); }

// DetGrad(dY, X)
void grad_shape(ShapeContext& c) {
  const Matrices m(c, 1);
  c.expect(c.shape(0) == m.batch(c.shape(1)) && c.dtype(0) == c.dtype(1), "dY must be ",
           to_string(c.dtype(1)), to_string(m.batch(c.shape(1))), ", found ", to_string(c.dtype(0)),
           to_string(c.shape(0)));
  c.output(0, c.dtype(1), c.shape(1));
}

Kernel grad_kernel(KernelContext& c) {
  const Matrices m(c, 1);
  return floating_kernel(c, 1, [&](auto zero) {
    using T = decltype(zero);
    const Slot dy = c.in(0), x = c.in(1), dx = c.out(0), scratch = m.scratch(c);
    return Kernel([=](const Frame& f) {
      const T* incoming = f.at<const T>(dy);
      if (m.n == 0) return;
      m.each(f.at<const T>(x), f.at<std::byte>(scratch),
             [&](int64_t k, const Factors& factors, double* adjugate) {
               factors.adjugate(adjugate);
               T* to = f.at<T>(dx) + k * m.n * m.n;
               const double scale = factors.sign * static_cast<double>(incoming[k]);
               for (int64_t i = 0; i < m.n; ++i)
                 for (int64_t j = 0; j < m.n; ++j)
                   to[factors.rows[j] * m.n + factors.columns[i]] =
                       static_cast<T>(scale * adjugate[i * m.n + j]);
             });
    });
  });
}

ORTRAIN_OPERATOR({.type = "Det",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "DetGrad",
                  .signature = "dY, X -> dX",
                  .rules = {.shape = grad_shape},
                  .kernels = {.cpu = grad_kernel}});

// With operators of ONNX: the determinants of all minors, M⁴ elements.
constexpr int64_t kMostRows = 64;

void grad_form(DecompositionContext& e) {
  const auto dims = e.dims(e.x(1));
  if (!dims || dims->size() < 2 || !dims->back().known()) e.reject("the size of the matrices is not known");
  const int64_t n = dims->back().value;
  if (n > kMostRows)
    e.reject("the gradient of the determinant of ", n, " x ", n,
             " matrices has no standard form; matrices of at most ", kMostRows, " x ", kMostRows,
             " have one");
  const Name shape = e("Shape", {e.x(1)});
  if (n <= 1) return e.set(0, e("Reshape", {e.x(0), shape}));
  Tensor others(DType::kInt64, {n, n - 1}), signs(DType::kDouble, {n, n});
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      if (j != i) others.data<int64_t>()[i * (n - 1) + j - (j > i)] = j;
      signs.data<double>()[i * n + j] = (i + j) % 2 == 0 ? 1 : -1;
    }
  const Name kept = e.constant(others), all = e("Reshape", {e.x(1), e.int64s({-1, n, n})});
  const Name minors =
      e("Transpose",
        {e("Gather", {e("Gather", {all, kept}, {{"axis", int64_t{1}}}), kept}, {{"axis", int64_t{3}}})},
        {{"perm", std::vector<int64_t>{0, 1, 3, 2, 4}}});
  const Name cofactors = e("Mul", {e("Det", {minors}), cast_like(e, e.constant(signs), e.x(1))});
  const Name dy = e("Reshape", {e.x(0), e.int64s({-1, 1, 1})});
  e.set(0, e("Reshape", {e("Mul", {cofactors, dy}), shape}));
}

ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "DetGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
