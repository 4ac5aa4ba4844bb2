// Depthwise convolutions on every instruction set, against the portable ones in double precision.
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/conv/depthwise_conv.h"
#include "catch.h"
#include "targets.h"

namespace ortrain {
namespace {

WindowAxis axis(int64_t input, int64_t kernel, int64_t stride, int64_t dilation, int64_t before,
                int64_t after) {
  WindowAxis a{input, 1, kernel, stride, dilation, before, after};
  a.output = (input + before + after - a.span()) / stride + 1;
  return a;
}

std::vector<float> numbers(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> made(static_cast<size_t>(n));
  for (float& v : made) v = normal(random);
  return made;
}

std::vector<double> doubles(const std::vector<float>& v) { return {v.begin(), v.end()}; }

void check_near(const std::vector<float>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  double largest = 0, error = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::isnan(found[i]) ? INFINITY : std::max(error, std::abs(found[i] - expected[i]));
  }
  CHECK(error <= 2e-6 * largest);
}

TEST_CASE("depthwise convolutions agree with double precision on every instruction set") {
  const std::vector<std::pair<WindowAxis, WindowAxis>> windows = {
      {axis(7, 3, 1, 1, 1, 1), axis(7, 3, 1, 1, 1, 1)},
      {axis(15, 3, 2, 1, 1, 0), axis(33, 3, 2, 1, 0, 1)},
      {axis(1, 1, 1, 1, 0, 0), axis(100, 5, 1, 3, 6, 6)},
      {axis(90, 7, 1, 1, 3, 3), axis(301, 7, 1, 1, 3, 3)},  // several bands
      {axis(70, 2, 3, 2, 4, 0), axis(500, 4, 2, 3, 0, 7)},
  };
  on_every_target([&] {
    for (const auto& [h, w] : windows) {
      const ConvSizes s{2, 3, 3, 3, {axis(1, 1, 1, 1, 0, 0), h, w}};
      const DepthwiseConvolution depthwise(s);
      REQUIRE(depthwise.suits());
      const int64_t planes = 6, in = planes * s.input_points(), out = planes * s.output_points();
      const std::vector<float> x = numbers(in, 1), weights = numbers(3 * s.column_rows(), 2),
                               dy = numbers(out, 3);
      const std::vector<double> x2 = doubles(x), weights2 = doubles(weights), dy2 = doubles(dy);
      // What the memory held before does not matter.
      std::vector<float> work(static_cast<size_t>(depthwise.work_size()), NAN);
      std::vector<double> work2(static_cast<size_t>(conv_weights_scratch(s)));
      std::vector<float> y(dy.size(), NAN), dx(x.size(), NAN), dw(weights.size(), NAN);
      std::vector<double> y2(dy.size()), dx2(x.size()), dw2(weights.size());
      const int64_t workers = conv_workers(s);
      depthwise.forward(x.data(), weights.data(), nullptr, nullptr, {}, y.data(), work.data());
      conv_forward<double>(s, workers, x2.data(), weights2.data(), nullptr, y2.data(), work2.data());
      check_near(y, y2);
      depthwise.backward_data(dy.data(), weights.data(), dx.data(), work.data());
      conv_backward_data<double>(s, workers, dy2.data(), weights2.data(), dx2.data(), work2.data());
      check_near(dx, dx2);
      depthwise.backward_weights(dy.data(), x.data(), dw.data(), work.data());
      conv_backward_weights<double>(s, workers, dy2.data(), x2.data(), dw2.data(), work2.data());
      check_near(dw, dw2);
    }
  });
}

TEST_CASE("convolutions that are not depthwise, or too large, are left to others") {
  const WindowAxis none = axis(1, 1, 1, 1, 0, 0), some = axis(9, 3, 1, 1, 1, 1);
  CHECK_FALSE(DepthwiseConvolution({2, 4, 8, 4, {none, some, some}}).suits());
  CHECK_FALSE(DepthwiseConvolution({2, 4, 4, 2, {none, some, some}}).suits());
  CHECK_FALSE(DepthwiseConvolution({0, 4, 4, 4, {none, some, some}}).suits());
  CHECK_FALSE(DepthwiseConvolution({2, 4, 4, 4, {some, some, some}}).suits());
  CHECK_FALSE(DepthwiseConvolution({2, 4, 4, 4, {none, some, axis(9, 1, kMaxStep, 1, 0, 0)}}).suits());
  CHECK_FALSE(DepthwiseConvolution({2, 4, 4, 4, {none, some, axis(9, 2, 1, kMaxStep, 0, kMaxStep)}}).suits());
  CHECK_FALSE(
      DepthwiseConvolution({1, 1, 1, 1, {none, axis(999, 99, 1, 1, 0, 0), axis(1 << 19, 3, 1, 1, 0, 0)}})
          .suits());
}

}  // namespace
}  // namespace ortrain
