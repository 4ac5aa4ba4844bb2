// Matrix products in mixed precision on every instruction set, against sums in double.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/conv/byte_conv_kernels.h"
#include "backend/cpu/matmul/integer_product.h"
#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/product_instructions.h"
#include "catch.h"
#include "targets.h"

namespace ortrain {
namespace {

float rounded(float v) { return static_cast<float>(BFloat16(v)); }

// Values in both types; those of a matrix that is stored in bfloat16 are representable.
struct Values {
  bool bf16;
  std::vector<float> floats;
  std::vector<BFloat16> halves;

  Values(int64_t n, bool narrow, unsigned seed) : bf16(narrow) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) {
      halves.emplace_back(normal(random));
      floats.push_back(bf16 ? static_cast<float>(halves.back()) : normal(random));
    }
  }
  StoredInput stored() const { return bf16 ? StoredInput(halves.data()) : StoredInput(floats.data()); }
};

struct Matrix {
  int64_t rows, columns;
  bool by_columns;
  Values values;

  Matrix(int64_t m, int64_t n, bool transposed, bool narrow, unsigned seed)
      : rows(m), columns(n), by_columns(transposed), values(m * n, narrow, seed) {}
  StoredMatrix view() const { return {values.stored(), by_columns ? 1 : columns, by_columns ? rows : 1}; }
  float at(int64_t i, int64_t j) const {
    return values.floats[static_cast<size_t>(by_columns ? j * rows + i : i * columns + j)];
  }
};

struct Case {
  int64_t m, n, k;
  bool a_by_columns, b_by_columns, a_bf16, b_bf16, y_bf16, pairs, with_terms;
};

// The terms: a bias for each column, a full addend, a value for each row, and a full factor.
struct Terms {
  Values row, full, column, factor;
  explicit Terms(const Case& c)
      : row(c.n, false, 3), full(c.m * c.n, true, 4), column(c.m, true, 5), factor(c.m * c.n, !c.y_bf16, 6) {}

  std::vector<MixedTerm> list() const {
    return {{row.stored(), Bias::kRow, 0.5f},
            {full.stored(), Bias::kFull},
            {column.stored(), Bias::kColumn, -2},
            {factor.stored(), Bias::kFull, 1, true}};
  }
  double apply(double sum, int64_t i, int64_t j, int64_t n) const {
    const auto of = [](const Values& v, int64_t at) {
      return static_cast<double>(v.floats[static_cast<size_t>(at)]);
    };
    return (sum + 0.5 * of(row, j) + of(full, i * n + j) - 2 * of(column, i)) * of(factor, i * n + j);
  }
};

// Y in parts, as threads compute it.
std::vector<float> compute(const Case& c, const Matrix& a, const Matrix& b, const Terms& terms, bool parts) {
  const auto size = static_cast<size_t>(c.m * c.n);
  std::vector<float> floats(size, std::numeric_limits<float>::quiet_NaN());
  std::vector<BFloat16> halves(size, BFloat16(std::numeric_limits<float>::quiet_NaN()));
  const std::vector<MixedTerm> list = terms.list();
  MixedProduct p{c.m, c.n, c.k, 0.75f, a.view(), b.view(), c.pairs, floats.data(), {}};
  if (c.y_bf16) p.y = halves.data();
  if (c.with_terms) p.terms = list;
  const int64_t row = parts ? std::min(c.m, mixed_rows()) : c.m;
  const int64_t column = parts ? std::min(c.n, mixed_columns()) : c.n;
  mixed_product(p, 0, row, 0, column);
  mixed_product(p, row, c.m, 0, column);
  mixed_product(p, 0, c.m, column, c.n);
  if (c.y_bf16)
    std::transform(halves.begin(), halves.end(), floats.begin(), [](BFloat16 v) { return float(v); });
  return floats;
}

// The values of a matrix, rounded if they are multiplied in pairs, one row after the other, or one column
// after the other.
std::vector<double> operand(const Matrix& a, bool pairs, bool columns) {
  std::vector<double> values;
  values.reserve(a.values.floats.size());
  const auto add = [&](float v) { values.push_back(static_cast<double>(pairs ? rounded(v) : v)); };
  for (int64_t i = 0; i < (columns ? a.columns : a.rows); ++i)
    for (int64_t j = 0; j < (columns ? a.rows : a.columns); ++j) add(columns ? a.at(j, i) : a.at(i, j));
  return values;
}

void check(const Case& c) {
  const Matrix a(c.m, c.k, c.a_by_columns, c.a_bf16, 1), b(c.k, c.n, c.b_by_columns, c.b_bf16, 2);
  const Terms terms(c);
  const std::vector<float> found = compute(c, a, b, terms, false);
  CHECK(compute(c, a, b, terms, true) == found);
  const std::vector<double> rows = operand(a, c.pairs, false), columns = operand(b, c.pairs, true);
  double worst = 0;
  for (int64_t i = 0; i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j) {
      const double *x = rows.data() + i * c.k, *z = columns.data() + j * c.k;
      double sum = 0, size = 1;
      for (int64_t l = 0; l < c.k; ++l) sum += 0.75 * x[l] * z[l], size += std::abs(x[l] * z[l]);
      if (c.with_terms) {
        sum = terms.apply(sum, i, j, c.n);
        size *= 1 + std::abs(static_cast<double>(terms.factor.floats[static_cast<size_t>(i * c.n + j)]));
      }
      // Sums in float, and for bfloat16 one rounding.
      const double allowed = 1e-6 * size + (c.y_bf16 ? std::abs(sum) / 256 : 0);
      const double error = std::abs(static_cast<double>(found[static_cast<size_t>(i * c.n + j)]) - sum);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error / allowed);
    }
  CHECK(worst <= 1);
}

void check_combinations(int64_t m, int64_t n, int64_t k) {
  on_every_target([&] {
    const bool all = m * n * k < 100000;  // larger ones: some combinations
    for (unsigned i = 0; i < (all ? 128 : 37); ++i) {
      const unsigned bits = all ? i : i * 7 % 128;
      const auto bit = [bits](unsigned at) { return (bits >> at & 1) != 0; };
      const Case c{m, n, k, bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6)};
      INFO(m << " x " << n << " x " << k << ", combination " << bits);
      check(c);
    }
  });
}

TEST_CASE("products in mixed precision agree with double precision on every instruction set") {
  check_combinations(7, 5, 3);
  check_combinations(64, 64, 64);
  check_combinations(33, 129, 257);
  check_combinations(512, 17, 40);
}

TEST_CASE("narrow products in mixed precision agree with double precision on every instruction set") {
  check_combinations(21, 150, 8);
  check_combinations(30, 77, 15);
  check_combinations(37, 8, 76);
  check_combinations(45, 5, 64);
  check_combinations(75, 8, 41);
  check_combinations(6, 107, 70);
}

// Takes long in an emulator.
TEST_CASE("narrow products of several blocks in mixed precision agree with double precision", "[large]") {
  check_combinations(300, 700, 8);
  check_combinations(1100, 7, 68);
  check_combinations(8, 1030, 67);
}

// Takes long in an emulator.
TEST_CASE("products of several blocks in mixed precision agree with double precision", "[large]") {
  check_combinations(170, 300, 131);
  check_combinations(20, 530, 131);
  check_combinations(31, 200, 700);
  check_combinations(690, 10, 1100);
}

// A matrix in codes, with its values.
struct Coded {
  std::vector<uint8_t> codes, packed_zeros;
  std::vector<float> scales, zeros, values;
  BlockCodes view;

  // `zero_points`: 0 for none, 1 for packed ones, 2 for floats.
  Coded(int64_t rows, int64_t columns, int64_t block, int64_t bits, int zero_points) {
    const int64_t blocks = (columns + block - 1) / block, row_bytes = blocks * block * bits / 8,
                  zero_bytes = (blocks * bits + 7) / 8;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<uint8_t>& bytes, int64_t n) {
      for (int64_t i = 0; i < n; ++i) bytes.push_back(static_cast<uint8_t>(random()));
    };
    fill(codes, rows * row_bytes);
    if (zero_points == 1) fill(packed_zeros, rows * zero_bytes);
    for (int64_t i = 0; i < rows * blocks; ++i) {
      scales.push_back(normal(random));
      if (zero_points == 2) zeros.push_back(4 + normal(random));
    }
    const auto code = [bits](const std::vector<uint8_t>& bytes, int64_t row, int64_t i) {
      const auto byte = static_cast<size_t>(row + i * bits / 8);
      return static_cast<float>(bytes[byte] >> i * bits % 8 & ((1 << bits) - 1));
    };
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t b = c / block;
        const auto at = static_cast<size_t>(r * blocks + b);
        const float zero = zero_points == 0   ? static_cast<float>(1 << (bits - 1))
                           : zero_points == 1 ? code(packed_zeros, r * zero_bytes, b)
                                              : zeros[at];
        values.push_back((code(codes, r * row_bytes, c) - zero) * scales[at]);
      }
    view = {rows,
            columns,
            block,
            bits,
            blocks,
            codes.data(),
            scales.data(),
            zero_points == 1 ? packed_zeros.data() : nullptr,
            zero_points == 2 ? zeros.data() : nullptr};
  }
};

void check_coded(int64_t m, int64_t rows, int64_t columns, int64_t block, int64_t bits, int zero_points) {
  const Coded w(rows, columns, block, bits, zero_points);
  for (const bool by_column : {false, true})
    for (const bool pairs : {false, true}) {
      INFO(m << " rows, W " << rows << " x " << columns << ", blocks of " << block << " codes of " << bits
             << " bits, zero points " << zero_points << ", transposed " << by_column << ", pairs " << pairs);
      const int64_t n = by_column ? rows : columns, k = by_column ? columns : rows;
      const Matrix a(m, k, false, pairs, 1);
      const auto multiply = [&](bool coded) {
        std::vector<float> y(static_cast<size_t>(m * n), std::numeric_limits<float>::quiet_NaN());
        MixedProduct p{m, n, k, 1, a.view(), {}, pairs, y.data(), {}};
        p.b = {w.values.data(), by_column ? 1 : columns, by_column ? columns : 1};
        if (coded) p.codes = &w.view, p.codes_by_column = by_column;
        mixed_product(p, 0, m, 0, n);
        return y;
      };
      CHECK(multiply(true) == multiply(false));
    }
}

TEST_CASE("products with codes have the bits of products with their values on every instruction set") {
  on_every_target([&] {
    for (const int zero_points : {0, 1, 2}) {
      check_coded(7, 33, 40, 16, 4, zero_points);
      check_coded(17, 70, 96, 32, 4, zero_points);
      // Narrow products, of up to eight rows, add up long sums in another order.
      check_coded(11, 131, 320, 64, 4, zero_points);
      check_coded(11, 300, 416, 32, 4, zero_points);
      check_coded(9, 65, 47, 16, 4, zero_points);
      check_coded(9, 20, 64, 32, 2, zero_points);
      check_coded(9, 20, 64, 32, 8, zero_points);
    }
  });
}

#if defined(__aarch64__) && defined(__linux__)
TEST_CASE("arm64 processors multiply with the instructions that they name") {
  // Linux lets programs read these registers.
  uint64_t first = 0, second = 0;
  asm("mrs %0, id_aa64isar0_el1" : "=r"(first));
  asm("mrs %0, id_aa64isar1_el1" : "=r"(second));
  const bool dot_products = (first >> 44 & 15) != 0, bf16 = (second >> 44 & 15) != 0;
  CHECK(integer_kernels().group == (dot_products ? 4 : 2));
  CHECK(byte_conv_kernels().group == (dot_products ? 4 : 2));
  CHECK(bf16_products() == (bf16 ? Bf16Products::kFast : Bf16Products::kNone));
}
#endif

TEST_CASE("a product of values that are not numbers is not a number in mixed precision") {
  for (const bool pairs : {false, true}) {
    std::vector<float> a(64 * 64, 1), b(64 * 64, 1);
    a[64 * 3 + 9] = std::numeric_limits<float>::quiet_NaN();
    b[7] = std::numeric_limits<float>::infinity();
    std::vector<BFloat16> y(64 * 64);
    const MixedProduct p{64, 64, 64, 1, {a.data(), 64, 1}, {b.data(), 64, 1}, pairs, y.data(), {}};
    mixed_product(p, 0, 64, 0, 64);
    for (int64_t i = 0; i < 64; ++i)
      for (int64_t j = 0; j < 64; ++j) {
        const auto found = static_cast<float>(y[static_cast<size_t>(i * 64 + j)]);
        if (i == 3)
          CHECK(std::isnan(found));
        else
          CHECK(found == (j == 7 ? std::numeric_limits<float>::infinity() : 64.0f));
      }
  }
}

}  // namespace
}  // namespace ortrain
