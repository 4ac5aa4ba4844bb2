// multiply(), on every instruction set of this machine, compared with sums in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "backend/cpu/matmul/multiply.h"
#include "catch.h"
#include "runtime/threads.h"
#include "targets.h"

using namespace ortrain;

namespace {

// A matrix somewhere in memory, by rows or by columns, with `gap` elements between its lines.
template <typename T>
struct Matrix {
  int64_t rows, columns;
  bool by_columns;
  int64_t gap;
  std::vector<T> data;

  Matrix(int64_t rows, int64_t columns, bool by_columns, int64_t gap)
      : rows(rows), columns(columns), by_columns(by_columns), gap(gap) {
    data.resize(static_cast<size_t>((by_columns ? columns : rows) * line()));
  }
  int64_t line() const { return (by_columns ? rows : columns) + gap; }
  int64_t row() const { return by_columns ? 1 : line(); }
  int64_t column() const { return by_columns ? line() : 1; }
  T& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * row() + j * column())]; }
  MatrixView<const T> view() const { return {data.data(), row(), column()}; }
};

// Elements that are not part of the matrix are NaN, so that reading them is noticed.
template <typename T>
void fill(Matrix<T>& m, std::mt19937& random) {
  if constexpr (std::is_floating_point_v<T>)
    std::fill(m.data.begin(), m.data.end(), std::numeric_limits<T>::quiet_NaN());
  for (int64_t i = 0; i < m.rows; ++i)
    for (int64_t j = 0; j < m.columns; ++j) {
      if constexpr (std::is_floating_point_v<T>)
        m.at(i, j) = static_cast<T>(static_cast<int>(random() % 2001) - 1000) / T{512};
      else
        m.at(i, j) = static_cast<T>(static_cast<uint64_t>(random()) << 32 | random());
    }
}

template <typename T>
struct Case {
  int64_t m, n, k;
  bool a_by_columns, b_by_columns;
  int64_t gap;
  T alpha, beta;
  int threads = 1;
};

// True if the product is right and nothing outside C is written.
template <typename T>
bool holds(const Case<T>& c, std::mt19937& random) {
  Matrix<T> a(c.m, c.k, c.a_by_columns, c.gap), b(c.k, c.n, c.b_by_columns, c.gap), y(c.m, c.n, false, c.gap);
  fill(a, random), fill(b, random), fill(y, random);
  if constexpr (std::is_floating_point_v<T>)
    if (c.beta == 0) std::fill(y.data.begin(), y.data.end(), std::numeric_limits<T>::quiet_NaN());
  const std::vector<T> before = y.data;
  multiply<T>(c.m, c.n, c.k, c.alpha, a.view(), b.view(), c.beta, y.data.data(), y.row(), c.threads);
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < y.line(); ++j) {
      const T found = y.data[static_cast<size_t>(i * y.line() + j)];
      const T old = before[static_cast<size_t>(i * y.line() + j)];
      if constexpr (std::is_floating_point_v<T>) {
        if (j >= c.n) {
          if (!std::isnan(found)) return false;
          continue;
        }
        double sum = 0, size = 0;
        for (int64_t l = 0; l < c.k; ++l) {
          const double term = static_cast<double>(a.at(i, l)) * b.at(l, j);
          sum += term, size += std::fabs(term);
        }
        const double kept = c.beta == 0 ? 0 : static_cast<double>(c.beta) * old;
        const double bound = 4 * std::numeric_limits<T>::epsilon() *
                             (std::fabs(kept) + std::fabs(c.alpha) * size) *
                             std::sqrt(static_cast<double>(c.k + 1));
        if (!(std::fabs(found - (c.alpha * sum + kept)) <= bound)) return false;
      } else {
        using U = std::make_unsigned_t<T>;
        U wanted = static_cast<U>(old);
        if (j < c.n) {
          U sum = 0;
          for (int64_t l = 0; l < c.k; ++l) sum += static_cast<U>(a.at(i, l)) * static_cast<U>(b.at(l, j));
          wanted = static_cast<U>(c.alpha) * sum + static_cast<U>(c.beta) * wanted;
        }
        if (static_cast<U>(found) != wanted) return false;
      }
    }
  return true;
}

template <typename T>
void check(const Case<T>& c, std::mt19937& random) {
  INFO("[" << c.m << ", " << c.k << "] x [" << c.k << ", " << c.n << "], A by "
           << (c.a_by_columns ? "columns" : "rows") << ", B by " << (c.b_by_columns ? "columns" : "rows")
           << ", gap " << c.gap << ", alpha " << c.alpha << ", beta " << c.beta << ", threads " << c.threads);
  if (!holds(c, random)) FAIL("differs from the sum of products");
}

// Sizes at and around the edges of vectors, tiles, panels and blocks.
const std::vector<int64_t> kRows = {1, 2, 3, 5, 6, 7, 13, 36, 41, 175};
const std::vector<int64_t> kColumns = {1, 2, 3, 5, 8, 15, 16, 17, 31, 48, 63, 64, 65, 70, 129, 530};
const std::vector<int64_t> kProducts = {0, 1, 2, 3, 8, 15, 17, 33, 128, 129, 300, 1030};

template <typename T>
void check_sizes(const std::vector<T>& alphas, const std::vector<T>& betas) {
  std::mt19937 random(5);
  size_t number = 0;
  for (int64_t m : kRows)
    for (int64_t n : kColumns)
      for (int64_t k : kProducts) {
        if (m * n * k > 600'000) continue;
        // All storage orders for small sizes; for the others one of them in turn, and none for many.
        const bool small = m * n * k <= 1'000;
        const size_t first = small ? 0 : ++number % 12, last = small ? 4 : std::min<size_t>(first + 1, 4);
        for (size_t way = first; way < last; ++way, ++number)
          check<T>({m, n, k, way % 2 == 1, way / 2 == 1, static_cast<int64_t>(number % 3),
                    alphas[number % alphas.size()], betas[number % betas.size()]},
                   random);
      }
}

}  // namespace

TEMPLATE_TEST_CASE("A product is the sum of products, whatever the sizes and strides", "", float, double) {
  on_every_target([] { check_sizes<TestType>({1, TestType(-0.75)}, {0, 1, TestType(0.5)}); });
}

TEMPLATE_TEST_CASE("Products of integers wrap around", "", int32_t, int64_t, uint32_t, uint64_t) {
  on_every_target([] { check_sizes<TestType>({1, static_cast<TestType>(-3)}, {0, 1, 7}); });
}

// Its rows are copied by tiles, since elements of a row are far apart.
TEMPLATE_TEST_CASE("A large left operand may be stored by columns", "", float, double) {
  on_every_target([] {
    std::mt19937 random(5);
    for (int64_t m : {131, 175, 342})
      for (int64_t n : {65, 130})
        for (int64_t k : {1, 7, 256, 300})
          for (TestType beta : {0, 1})
            check<TestType>({m, n, k, true, n == 130, k % 3, TestType{1}, beta}, random);
  });
}

TEST_CASE("A row or column of a product may lie anywhere") {
  std::mt19937 random(6);
  on_every_target([&] {
    for (int64_t n : {1, 5, 64, 1500}) {
      for (int64_t k : {1, 40, 1100}) {
        // A column of C whose elements are 3 apart, from a column of B whose elements are 2 apart.
        Matrix<double> a(n, k, false, 0), at(n, k, true, 0), b(k, 2, false, 0), c(n, 3, false, 0);
        fill(a, random), fill(b, random);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t l = 0; l < k; ++l) at.at(i, l) = a.at(i, l);
        for (const Matrix<double>* left : {&a, &at}) {
          fill(c, random);
          const Matrix<double> before = c;
          multiply<double>(n, 1, k, 2, left->view(), b.view(), 1, c.data.data(), c.row());
          for (int64_t i = 0; i < n; ++i) {
            double wanted = 0;
            for (int64_t l = 0; l < k; ++l) wanted += 2 * a.at(i, l) * b.at(l, 0);
            wanted += before.data[static_cast<size_t>(3 * i)];
            REQUIRE(c.at(i, 0) == Catch::Approx(wanted).epsilon(1e-11).margin(1e-11));
            REQUIRE(c.at(i, 1) == before.data[static_cast<size_t>(3 * i + 1)]);
          }
        }
      }
    }
  });
}

TEMPLATE_TEST_CASE("NaN and infinity reach what they are a factor of", "", float, double) {
  const TestType nan = std::numeric_limits<TestType>::quiet_NaN();
  const TestType infinity = std::numeric_limits<TestType>::infinity();
  on_every_target([&] {
    for (int64_t m : {1, 5, 50})
      for (int64_t n : {1, 20, 90})
        for (int way = 0; way < 4; ++way) {
          const int64_t k = 21;
          Matrix<TestType> a(m, k, way % 2, 0), b(k, n, way / 2, 0), c(m, n, false, 0);
          std::fill(b.data.begin(), b.data.end(), TestType(1));
          a.at(m - 1, 3) = nan;       // the others are 0
          b.at(4, n - 1) = infinity;  // 0 times infinity is NaN
          multiply<TestType>(m, n, k, 1, a.view(), b.view(), 0, c.data.data(), n);
          for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) REQUIRE(std::isnan(c.at(i, j)) == (i == m - 1 || j == n - 1));
        }
  });
}

TEMPLATE_TEST_CASE("The number of threads changes no bit of a product", "", float, double, int32_t) {
  std::mt19937 random(7);
  struct Sizes {
    int64_t m, n, k;
  };
  for (const Sizes s : {Sizes{100, 200, 300},
                        {1, 3000, 500},
                        {3000, 1, 500},
                        {3, 2000, 300},
                        {7, 1000, 200},
                        {20, 20, 5000},
                        {1000, 10, 500},
                        {2, 70000, 20}})
    for (int way = 0; way < 4; ++way) {
      Matrix<TestType> a(s.m, s.k, way % 2, 0), b(s.k, s.n, way / 2, 0), one(s.m, s.n, false, 0);
      fill(a, random), fill(b, random);
      multiply<TestType>(s.m, s.n, s.k, 1, a.view(), b.view(), 0, one.data.data(), s.n);
      for (int threads : {2, 3, 5}) {
        const ThreadScope scope(threads);
        Matrix<TestType> shared(s.m, s.n, false, 0);
        multiply<TestType>(s.m, s.n, s.k, 1, a.view(), b.view(), 0, shared.data.data(), s.n, threads);
        INFO(s.m << " x " << s.n << " x " << s.k << ", way " << way << ", threads " << threads);
        REQUIRE((shared.data == one.data));
      }
    }
}
