// Products of 8-bit integers, on every instruction set of this machine, compared with sums of 64 bits.
#include <algorithm>
#include <random>
#include <vector>

#include "backend/cpu/matmul/integer_product.h"
#include "catch.h"
#include "targets.h"

using namespace ortrain;

namespace {

int64_t value(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : code; }

void check(const IntegerKernels& kernels, int64_t m, int64_t n, int64_t k, bool a_signed, bool b_signed) {
  std::mt19937 random(static_cast<unsigned>(m * 1000 + n * 10 + k));
  // Zero and the extremes of both types, of which 255 is also -1.
  const uint8_t codes[] = {0, 127, 128, 255};
  const auto some = [&](int64_t count) {
    std::vector<uint8_t> v(static_cast<size_t>(count));
    for (uint8_t& code : v) code = codes[random() % 4];
    return v;
  };
  const int64_t a_row = k + 3, b_row = n + 5;
  const std::vector<uint8_t> a = some(m * a_row), b = some(k * b_row), a_zero = some(m), b_zero = some(n);

  std::vector<uint32_t> left(static_cast<size_t>(m * kernels.words(k)));
  std::vector<uint32_t> right(static_cast<size_t>(kernels.right_words(k, n)));
  std::vector<int32_t> sums(static_cast<size_t>(m)), left_zeros = sums, bias = sums, y(sums.size() * n);
  std::vector<int32_t> right_zeros(static_cast<size_t>(kernels.whole(n)));
  for (size_t i = 0; i < sums.size(); ++i) {
    left_zeros[i] = kernels.left_zero(a_signed, static_cast<int32_t>(value(a_zero[i], a_signed)));
    bias[i] = static_cast<int32_t>(i * 1000);
  }
  for (size_t j = 0; j < b_zero.size(); ++j)
    right_zeros[j] = kernels.right_zero(b_signed, static_cast<int32_t>(value(b_zero[j], b_signed)));
  kernels.pack_left(m, k, {a.data(), a_signed, a_row}, left.data(), sums.data());
  for (int64_t column = 0; column < n; column += kernels.panel) {
    const int64_t count = std::min(kernels.panel, n - column);
    kernels.pack_panel(column, count, k, {b.data(), b_signed, b_row}, right.data());
    kernels.multiply({m, count, k, left.data(), sums.data(), left_zeros.data(), bias.data(),
                      right.data() + kernels.right_words(k, column), right_zeros.data() + column,
                      y.data() + column, n});
  }
  bool same = true;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const size_t row = static_cast<size_t>(i), at = static_cast<size_t>(j);
      int64_t sum = bias[row];
      for (int64_t l = 0; l < k; ++l)
        sum += (value(a[static_cast<size_t>(i * a_row + l)], a_signed) - value(a_zero[row], a_signed)) *
               (value(b[static_cast<size_t>(l * b_row + j)], b_signed) - value(b_zero[at], b_signed));
      same = same && y[static_cast<size_t>(i * n + j)] == static_cast<int32_t>(sum);
    }
  CHECK(same);
}

// The sums of two lines of a depthwise convolution with windows of three elements.
void check_lines(const IntegerKernels& kernels, int64_t n, int64_t stride, bool is_signed) {
  constexpr int64_t kKernel = 3, kLines = 2;
  const int64_t length = (n - 1) * stride + kKernel + 1;
  const int32_t zero = is_signed ? -128 : 255,
                factors[kLines][kKernel + 1] = {{255, -255, 1, 0}, {-1, 254, 3, 0}};
  std::mt19937 random(static_cast<unsigned>(n));
  const uint8_t codes[] = {0, 127, 128, 255};
  std::vector<uint8_t> x(static_cast<size_t>(kLines * length));
  for (uint8_t& code : x) code = codes[random() % 4];
  std::vector<int16_t> shifted(x.size());
  kernels.shift_line(kLines * length, x.data(), is_signed, zero, shifted.data());
  std::vector<std::vector<uint32_t>> words;
  std::vector<const uint32_t*> lines;
  std::vector<uint32_t> weights;
  for (int64_t l = 0; l < kLines; ++l)
    for (int64_t k = 0; k < kKernel; k += 2) {
      words.emplace_back(static_cast<size_t>(kernels.whole(n)));
      kernels.pair_line(n, shifted.data() + l * length + k, stride, 1, words.back().data());
      weights.push_back(static_cast<uint16_t>(factors[l][k]) |
                        static_cast<uint32_t>(static_cast<uint16_t>(factors[l][k + 1])) << 16);
    }
  for (const auto& line : words) lines.push_back(line.data());
  std::vector<int32_t> y(static_cast<size_t>(n));
  kernels.sum_lines(n, 4, lines.data(), weights.data(), 7, false, y.data());
  kernels.sum_lines(n, 2, lines.data(), weights.data(), 0, true, y.data());  // the first line again
  bool same = true;
  for (int64_t i = 0; i < n; ++i) {
    int64_t sum = 7;
    for (int64_t l = 0; l < kLines; ++l)
      for (int64_t k = 0; k < kKernel; ++k) {
        const uint8_t code = x[static_cast<size_t>(l * length + i * stride + k)];
        sum += (l == 0 ? 2 : 1) * factors[l][k] * (value(code, is_signed) - zero);
      }
    same = same && y[static_cast<size_t>(i)] == sum;
  }
  CHECK(same);
}

}  // namespace

TEST_CASE("sums of lines of 8-bit integers are exact on every instruction set") {
  on_every_target([] {
    for (const bool is_signed : {false, true})
      for (const int64_t stride : {1, 2, 3})
        for (const int64_t n : {1, 5, 16, 67, 300}) check_lines(integer_kernels(), n, stride, is_signed);
  });
}

TEST_CASE("products of 8-bit integers are exact on every instruction set") {
  on_every_target([] {
    for (const bool with_quads : {true, false}) {
      const IntegerKernels kernels = integer_kernels(with_quads);
      INFO(kernels.group << " elements in a word");
      for (const bool a_signed : {false, true})
        for (const bool b_signed : {false, true})
          for (const int64_t k : {0, 1, 2, 3, 4, 5, 7, 260})
            for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {13, 70}, {4, 131}})
              check(kernels, m, n, k, a_signed, b_signed);
    }
  });
}
