// Convolutions with channels last whose operands are pairs of bfloat16 values, on every instruction set,
// compared with the convolution in float of the rounded operands.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/conv/channels_last_conv.h"
#include "catch.h"
#include "runtime/half.h"
#include "runtime/threads.h"
#include "targets.h"

namespace ortrain {
namespace {

// Values that bfloat16 represents.
std::vector<BFloat16> some(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<BFloat16> values;
  for (int64_t i = 0; i < n; ++i) values.emplace_back(normal(random));
  return values;
}

std::vector<float> widened(const std::vector<BFloat16>& halves) {
  std::vector<float> floats;
  for (const BFloat16 v : halves) floats.push_back(static_cast<float>(v));
  return floats;
}

// The largest difference, relative to sums of that many products of numbers of size 1.
double difference(const std::vector<float>& found, const std::vector<float>& expected, int64_t products) {
  double most = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    most = std::max(most,
                    std::isnan(found[i]) ? INFINITY : std::abs(static_cast<double>(found[i]) - expected[i]));
  return most / std::sqrt(static_cast<double>(products));
}

struct Case {
  ConvSizes sizes;
  bool bf16;  // whether X, dY, the addend and the results are stored so
  bool ends;  // with a bias, an addend and Relu
};

std::vector<float> room(int64_t n) { return std::vector<float>(static_cast<size_t>(n) + 16, NAN); }

// Y and dX.
struct Results {
  std::vector<float> y, dx;

  Results(const Case& c, bool pairs) {
    const ChannelsLastConvolution conv(c.sizes, pairs);
    REQUIRE(conv.suits());
    REQUIRE(conv.in_pairs() == pairs);
    const ConvSizes& s = c.sizes;
    const int64_t of_x = s.batch * s.channels * s.input_points(),
                  of_y = s.batch * s.filters * s.output_points();
    const std::vector<BFloat16> x = some(of_x, 1), w = some(s.filters * s.column_rows(), 2),
                                dy = some(of_y, 3), addend = some(of_y, 4), bias = some(s.filters, 5);
    const std::vector<float> wide_x = widened(x), wide_w = widened(w), wide_dy = widened(dy),
                             wide_addend = widened(addend), wide_bias = widened(bias);
    const bool halves = c.bf16 && pairs;  // what is compared is in float
    const auto input = [&](const std::vector<BFloat16>& narrow, const std::vector<float>& wide) {
      return halves ? StoredInput(narrow.data()) : StoredInput(wide.data());
    };
    std::vector<BFloat16> narrow_y(static_cast<size_t>(of_y)), narrow_dx(static_cast<size_t>(of_x));
    y.resize(static_cast<size_t>(of_y)), dx.resize(static_cast<size_t>(of_x));
    std::vector<float> packed = room(conv.packed_size()), back = room(conv.packed_backward_size()),
                       work = room(std::max(conv.forward_work(halves), conv.backward_data_work(halves)));
    conv.pack(wide_w.data(), packed.data());
    conv.pack_backward(wide_w.data(), back.data());
    Activation activation;
    if (c.ends) activation.kind = Activation::Kind::kRelu;
    conv.forward(input(x, wide_x), packed.data(), c.ends ? wide_bias.data() : nullptr,
                 c.ends ? input(addend, wide_addend) : StoredInput{}, activation,
                 halves ? StoredOutput(narrow_y.data()) : StoredOutput(y.data()), work.data());
    conv.backward_data(input(dy, wide_dy), back.data(), nullptr,
                       halves ? StoredOutput(narrow_dx.data()) : StoredOutput(dx.data()), work.data());
    if (halves) y = widened(narrow_y), dx = widened(narrow_dx);
  }
};

WindowAxis axis(int64_t input, int64_t kernel, int64_t stride, int64_t dilation, int64_t before) {
  WindowAxis a{input, 0, kernel, stride, dilation, before, before};
  a.output = (input + 2 * before - a.span()) / stride + 1;
  return a;
}

void check(const Case& c) {
  const ConvSizes& s = c.sizes;
  INFO(s.channels << " to " << s.filters << " channels, groups " << s.groups << ", kernel "
                  << s.window[1].kernel << ", stride " << s.window[1].stride << ", bf16 " << c.bf16
                  << ", ends " << c.ends);
  const Results found(c, true), expected(c, false);
  // Sums in float; results in bfloat16 are rounded once more.
  const double allowed = c.bf16 ? 0.02 : 2e-6;
  CHECK(difference(found.y, expected.y, s.column_rows()) < allowed);
  CHECK(difference(found.dx, expected.dx, s.column_rows() / s.channels * s.groups * s.filters) < allowed);
}

}  // namespace

TEST_CASE("convolutions in pairs agree with those in float of the same operands on every instruction set") {
  const ThreadScope threads(2);
  on_every_target([] {
    for (const bool bf16 : {false, true})
      for (const bool ends : {false, true})
        for (const auto& [channels, filters, groups, kernel, stride, dilation] :
             {std::array<int64_t, 6>{16, 20, 1, 3, 1, 1},
              {64, 70, 1, 3, 2, 1},
              {6, 128, 1, 1, 1, 1},
              {96, 40, 2, 3, 1, 2},
              {64, 32, 1, 1, 2, 1},
              {2, 6, 1, 7, 2, 1},
              {320, 34, 1, 3, 1, 1}}) {
          const WindowAxis h = axis(9, kernel, stride, dilation, kernel / 2),
                           w = axis(21, kernel, stride, dilation, kernel / 2);
          check({{2, channels, filters, groups, {WindowAxis{1, 1, 1, 1, 1, 0, 0}, h, w}}, bf16, ends});
        }
  });
}

TEST_CASE("convolutions of an odd number of channels or filters stay in float") {
  const auto in_pairs = [](int64_t channels, int64_t filters) {
    const WindowAxis one{1, 1, 1, 1, 1, 0, 0}, a = axis(9, 3, 1, 1, 1);
    return ChannelsLastConvolution({1, channels, filters, 1, {one, a, a}}, true).in_pairs();
  };
  CHECK(in_pairs(4, 6));
  CHECK(!in_pairs(3, 6));
  CHECK(!in_pairs(4, 5));
}

}  // namespace ortrain
