// Winograd's convolution compared with plain sums in double, on every instruction set of this machine.
#include <hwy/highway.h>
#include <hwy/targets.h>
#include <cmath>

#include "backend/cpu/conv/winograd.h"
#include "runtime/threads.h"
#include "support.h"

using namespace ortrain;
using namespace ortrain::test;

namespace {

constexpr int kThreads = 3;

// Channels are last.
struct ChannelsLast {
  int64_t channels, height, width;
  int64_t at(int64_t n, int64_t c, int64_t h, int64_t w) const {
    return ((n * height + h) * width + w) * channels + c;
  }
};

struct Case {
  WinogradSizes s;
  std::vector<float> x, w, bias, y, dy;

  explicit Case(const WinogradSizes& sizes) : s(sizes) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, int64_t n) {
      values.resize(static_cast<size_t>(n));
      for (float& value : values) value = normal(random);
    };
    fill(x, s.batch * s.channels * s.height * s.width);
    fill(w, s.filters * s.channels * 9);
    fill(bias, s.filters);
    fill(y, s.batch * s.filters * s.rows * s.columns);
    fill(dy, s.batch * s.filters * s.rows * s.columns);
  }

  ChannelsLast in() const { return {s.channels, s.height, s.width}; }
  ChannelsLast out() const { return {s.filters, s.rows, s.columns}; }
  int64_t weight(int64_t m, int64_t c, int64_t r, int64_t k) const {
    return (m * 9 + 3 * r + k) * s.channels + c;
  }

  // Calls f(index in y, index in x, index in w) for every product of the convolution.
  template <typename F>
  void each_product(const F& f) const {
    for (int64_t n = 0; n < s.batch; ++n)
      for (int64_t m = 0; m < s.filters; ++m)
        for (int64_t r = 0; r < s.rows; ++r)
          for (int64_t k = 0; k < s.columns; ++k)
            for (int64_t c = 0; c < s.channels; ++c)
              for (int64_t i = 0; i < 3; ++i)
                for (int64_t j = 0; j < 3; ++j) {
                  const int64_t h = r + i - s.top, l = k + j - s.left;
                  if (h < 0 || h >= s.height || l < 0 || l >= s.width) continue;
                  f(out().at(n, m, r, k), in().at(n, c, h, l), weight(m, c, i, j));
                }
  }
};

// The largest difference over the largest value.
double error_of(const std::vector<float>& found, const std::vector<double>& expected) {
  double error = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(found[i]) - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return std::isfinite(error) ? error / largest : INFINITY;
}

// Memory for a run, filled with NaN, so that a read before the write is noticed.
std::vector<float> scratch_of(size_t bytes) { return std::vector<float>(bytes / sizeof(float) + 16, NAN); }
void* aligned(std::vector<float>& scratch) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
}

void check(const WinogradSizes& s) {
  const Case c(s);
  std::vector<double> y(c.y.size()), dx(c.x.size()), dw(c.w.size());
  c.each_product([&](int64_t at_y, int64_t at_x, int64_t at_w) {
    const auto i = static_cast<size_t>(at_y), j = static_cast<size_t>(at_x), k = static_cast<size_t>(at_w);
    y[i] += static_cast<double>(c.x[j]) * c.w[k];
    dx[j] += static_cast<double>(c.dy[i]) * c.w[k];
    dw[k] += static_cast<double>(c.dy[i]) * c.x[j];
  });
  const ThreadScope threads(kThreads);
  const float nan = NAN;
  {
    std::vector<float> found(c.y.size(), nan), scratch = scratch_of(winograd_scratch(s, kThreads));
    winograd_forward(s, kThreads, {c.x.data()}, c.w.data(), nullptr, false, false, {found.data()},
                     aligned(scratch));
    CHECK(error_of(found, y) < 2e-6);
  }
  {  // over an addend, with bias and Relu
    std::vector<float> found = c.y, scratch = scratch_of(winograd_scratch(s, kThreads));
    winograd_forward(s, kThreads, {c.x.data()}, c.w.data(), c.bias.data(), true, true, {found.data()},
                     aligned(scratch));
    std::vector<double> expected = y;
    for (int64_t n = 0; n < s.batch; ++n)
      for (int64_t m = 0; m < s.filters; ++m)
        for (int64_t r = 0; r < s.rows; ++r)
          for (int64_t k = 0; k < s.columns; ++k) {
            const auto i = static_cast<size_t>(c.out().at(n, m, r, k));
            expected[i] = std::max(0.0, expected[i] + c.bias[static_cast<size_t>(m)] + c.y[i]);
          }
    CHECK(error_of(found, expected) < 2e-6);
  }
  {
    std::vector<float> found(c.x.size(), nan),
        scratch = scratch_of(winograd_scratch(s.transposed(), kThreads));
    winograd_backward_data(s, kThreads, {c.dy.data()}, c.w.data(), {found.data()}, aligned(scratch));
    CHECK(error_of(found, dx) < 2e-6);
  }
  {
    std::vector<float> found(c.w.size(), nan), scratch = scratch_of(winograd_weights_scratch(s, kThreads));
    winograd_backward_weights(s, kThreads, {c.x.data()}, {c.dy.data()}, found.data(), aligned(scratch));
    CHECK(error_of(found, dw) < 2e-6);
  }
}

}  // namespace

TEST_CASE("Winograd's convolution gives the sums of products") {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    INFO(hwy::TargetName(target));
    // What is required of a target; the other sizes below count as too small to be worthwhile.
    if (!suits_winograd({4, 128, 128, 28, 28, 28, 28, 1, 1}, 1)) continue;
    check({1, 16, 16, 6, 6, 6, 6, 1, 1});
    check({2, 16, 48, 5, 7, 5, 7, 1, 1});      // odd dimensions, a narrow last panel
    check({1, 32, 16, 4, 9, 2, 7, 0, 0});      // no padding
    check({1, 16, 32, 3, 4, 5, 6, 2, 2});      // as much as there can be
    check({3, 16, 16, 5, 5, 4, 6, 0, 2});      // another on each side
    check({1, 16, 16, 1, 1, 1, 1, 1, 1});      // one element
    check({5, 80, 80, 12, 12, 12, 12, 1, 1});  // several chunks of tiles
    hwy::SetSupportedTargetsForTest(0);
  }
}

TEST_CASE("Winograd's convolution cuts large weights in slices") {
  check({2, 208, 272, 4, 6, 4, 6, 1, 1});      // one chunk of tiles
  check({9, 192, 208, 10, 11, 10, 11, 1, 1});  // several
}

TEST_CASE("Winograd's convolution is taken where it is worth it") {
  const auto suits = [](int64_t batch, int64_t channels, int64_t dim, int threads) {
    return suits_winograd({batch, channels, channels, dim, dim, dim, dim, 1, 1}, threads);
  };
  if (!suits(16, 64, 32, 1)) {
    WARN("not tested: this machine has no vectors");
    return;
  }
  CHECK(suits(16, 64, 32, 2));
  CHECK(suits(16, 512, 4, 2));
  CHECK(suits(16, 64, 7, 2));
  CHECK_FALSE(suits(8, 16, 8, 2));       // few products
  CHECK_FALSE(suits(1, 512, 4, 2));      // few tiles
  CHECK_FALSE(suits(16, 64, 5, 2));      // tiles that reach beyond
  CHECK_FALSE(suits(16, 64, 32, 1024));  // few tiles per thread
}
