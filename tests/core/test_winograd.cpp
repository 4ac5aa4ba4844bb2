// Winograd's convolution compared with plain sums in double, on every instruction set of this machine.
#include <cmath>
#include <tuple>

#include "backend/cpu/conv/channels_last_conv.h"
#include "backend/cpu/conv/winograd.h"
#include "runtime/threads.h"
#include "support.h"
#include "targets.h"

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

// The results of each pass, in double precision.
struct Sums {
  std::vector<double> y, dx, dw;

  explicit Sums(const Case& c) : y(c.y.size()), dx(c.x.size()), dw(c.w.size()) {
    c.each_product([&](int64_t at_y, int64_t at_x, int64_t at_w) {
      const auto i = static_cast<size_t>(at_y), j = static_cast<size_t>(at_x), k = static_cast<size_t>(at_w);
      y[i] += static_cast<double>(c.x[j]) * c.w[k];
      dx[j] += static_cast<double>(c.dy[i]) * c.w[k];
      dw[k] += static_cast<double>(c.dy[i]) * c.x[j];
    });
  }
};

std::vector<float> forward(const Case& c) {
  std::vector<float> y(c.y.size(), NAN), scratch = scratch_of(winograd_scratch(c.s, kThreads));
  winograd_forward(c.s, kThreads, {c.x.data()}, c.w.data(), nullptr, false, false, {y.data()},
                   aligned(scratch));
  return y;
}

std::vector<float> backward_data(const Case& c) {
  std::vector<float> dx(c.x.size(), NAN), scratch = scratch_of(winograd_scratch(c.s.transposed(), kThreads));
  winograd_backward_data(c.s, kThreads, {c.dy.data()}, c.w.data(), {dx.data()}, aligned(scratch));
  return dx;
}

std::vector<float> backward_weights(const Case& c) {
  std::vector<float> dw(c.w.size(), NAN), scratch = scratch_of(winograd_weights_scratch(c.s, kThreads));
  winograd_backward_weights(c.s, kThreads, {c.x.data()}, {c.dy.data()}, dw.data(), aligned(scratch));
  return dw;
}

void check(const WinogradSizes& s, double limit) {
  const Case c(s);
  const Sums sums(c);
  const ThreadScope threads(kThreads);
  CHECK(error_of(forward(c), sums.y) < limit);
  CHECK(error_of(backward_data(c), sums.dx) < limit);
  CHECK(error_of(backward_weights(c), sums.dw) < limit);
  // Over an addend, with bias and Relu.
  std::vector<float> found = c.y, scratch = scratch_of(winograd_scratch(s, kThreads));
  winograd_forward(s, kThreads, {c.x.data()}, c.w.data(), c.bias.data(), true, true, {found.data()},
                   aligned(scratch));
  std::vector<double> expected = sums.y;
  for (size_t i = 0; i < expected.size(); ++i) {
    const float bias = c.bias[i % c.bias.size()];
    expected[i] = std::max(0.0, expected[i] + bias + c.y[i]);
  }
  CHECK(error_of(found, expected) < limit);
}

// With both tiles.
void check(WinogradSizes s) {
  s.tile = 2;
  check(s, 2e-6);
  s.tile = 4;
  check(s, 6e-6);
}

// The root of the mean squared difference.
double distance(const std::vector<float>& found, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < expected.size(); ++i) sum += (found[i] - expected[i]) * (found[i] - expected[i]);
  return std::sqrt(sum / static_cast<double>(expected.size()));
}

// The direct convolution of the same values.
struct Direct {
  std::vector<float> y, dx, dw;

  explicit Direct(const Case& c) : y(c.y.size()), dx(c.x.size()), dw(c.w.size()) {
    const WindowAxis rows{c.s.height, c.s.rows, 3, 1, 1, 1, 1},
        columns{c.s.width, c.s.columns, 3, 1, 1, 1, 1};
    const ChannelsLastConvolution conv(
        {c.s.batch, c.s.channels, c.s.filters, 1, {WindowAxis{1, 1, 1, 1, 1, 0, 0}, rows, columns}});
    REQUIRE(conv.suits());
    const auto floats = [](int64_t n) { return std::vector<float>(static_cast<size_t>(n) + 16); };
    std::vector<float> packed = floats(conv.packed_size()), back = floats(conv.packed_backward_size());
    std::vector<float> work =
        floats(std::max({conv.forward_work(), conv.backward_data_work(), conv.backward_weights_work()}));
    conv.pack(c.w.data(), packed.data());
    conv.pack_backward(c.w.data(), back.data());
    conv.forward({c.x.data()}, packed.data(), nullptr, {}, {}, {y.data()}, work.data());
    conv.backward_data({c.dy.data()}, back.data(), nullptr, {dx.data()}, work.data());
    conv.backward_weights({c.dy.data()}, {c.x.data()}, dw.data(), work.data());
  }
};

}  // namespace

TEST_CASE("Winograd's convolution has at most four times the error of the direct convolution") {
  const ThreadScope threads(kThreads);
  for (const auto& [batch, channels, dim] :
       {std::tuple<int64_t, int64_t, int64_t>{4, 64, 16}, {4, 128, 12}, {8, 256, 8}}) {
    WinogradSizes s{batch, channels, channels, dim, dim, dim, dim, 1, 1};
    for (const int64_t tile : {2, 4}) {
      s.tile = tile;
      const Case c(s);
      const Sums sums(c);
      const Direct direct(c);
      INFO(channels << " channels, tiles of " << tile);
      CHECK(distance(forward(c), sums.y) < 4 * distance(direct.y, sums.y));
      CHECK(distance(backward_data(c), sums.dx) < 4 * distance(direct.dx, sums.dx));
      Case for_weights = c;
      for_weights.s = for_weight_gradient(s);
      CHECK(distance(backward_weights(for_weights), sums.dw) < 4 * distance(direct.dw, sums.dw));
    }
  }
}

TEST_CASE("Winograd's convolution gives the sums of products") {
  on_every_target([] {
    // What is required of a target; the other sizes below count as too small to be worthwhile.
    if (winograd_tile({4, 128, 128, 28, 28, 28, 28, 1, 1}, 1) == 0) return;
    check({1, 16, 16, 6, 6, 6, 6, 1, 1});
    check({2, 16, 48, 5, 7, 5, 7, 1, 1});      // odd dimensions, a narrow last panel
    check({1, 32, 16, 4, 9, 2, 7, 0, 0});      // no padding
    check({1, 16, 32, 3, 4, 5, 6, 2, 2});      // as much as there can be
    check({3, 16, 16, 5, 5, 4, 6, 0, 2});      // another on each side
    check({1, 16, 16, 1, 1, 1, 1, 1, 1});      // one element
    check({5, 80, 80, 12, 12, 12, 12, 1, 1});  // several chunks of tiles
  });
}

TEST_CASE("Winograd's convolution cuts large weights in slices") {
  check({2, 208, 272, 4, 6, 4, 6, 1, 1});      // one chunk of tiles
  check({9, 192, 208, 10, 11, 10, 11, 1, 1});  // several
}

TEST_CASE("Winograd's convolution is taken where it is worth it") {
  const auto tile = [](int64_t batch, int64_t channels, int64_t dim, int threads) {
    return winograd_tile({batch, channels, channels, dim, dim, dim, dim, 1, 1}, threads);
  };
  if (tile(16, 64, 32, 1) == 0) {
    WARN("not tested: this machine has no vectors");
    return;
  }
  CHECK(tile(16, 64, 32, 2) == 4);
  CHECK(tile(16, 512, 4, 2) == 4);
  CHECK(tile(16, 64, 7, 2) == 4);
  CHECK(tile(16, 64, 6, 2) == 2);      // large tiles that reach beyond
  CHECK(tile(8, 512, 4, 2) == 2);      // few large tiles
  CHECK(tile(8, 16, 8, 2) == 0);       // few products
  CHECK(tile(1, 512, 4, 2) == 0);      // few tiles
  CHECK(tile(16, 64, 5, 2) == 0);      // tiles that reach beyond
  CHECK(tile(16, 64, 32, 1024) == 0);  // few tiles per thread
}
