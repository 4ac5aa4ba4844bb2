// Convolutions of 8-bit integers with channels last, and the rounding of their sums, on every instruction
// set: against sums of 64 bits, and products in double precision.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/conv/byte_conv.h"
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

int64_t value(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : code; }

uint8_t rounded(int64_t sum, double factor, const CodeRange& range) {
  const double q = std::nearbyint(static_cast<double>(sum) * factor) + range.zero;
  return static_cast<uint8_t>(static_cast<int32_t>(
      std::clamp(q, static_cast<double>(range.lowest), static_cast<double>(range.highest))));
}

struct Case {
  ConvSizes sizes;
  bool x_signed, w_signed, with_quads;
  CodeRange range;
};

// Zero and the extremes of both types, of which 255 is also -1.
std::vector<uint8_t> codes(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  const uint8_t some[] = {0, 127, 128, 255, 1, 77};
  std::vector<uint8_t> made(static_cast<size_t>(n));
  for (uint8_t& code : made) code = some[random() % 6];
  return made;
}

// Y [N, output..., F], with the window of each point read where it is.
std::vector<uint8_t> expected(const Case& c, const std::vector<uint8_t>& x, const std::vector<uint8_t>& w,
                              int64_t x_zero, int64_t w_zero, const std::vector<double>& factors) {
  const ConvSizes& s = c.sizes;
  const WindowAxis &d = s.window[0], &h = s.window[1], &v = s.window[2];
  const int64_t per_group = s.channels / s.groups;
  std::vector<uint8_t> y;
  for (int64_t n = 0; n < s.batch; ++n)
    for (int64_t p = 0; p < s.output_points(); ++p)
      for (int64_t f = 0; f < s.filters; ++f) {
        int64_t sum = 0;
        const uint8_t* weight = w.data() + f * s.column_rows();
        for (int64_t k = 0; k < per_group; ++k)
          for (int64_t kd = 0; kd < d.kernel; ++kd)
            for (int64_t kh = 0; kh < h.kernel; ++kh)
              for (int64_t kw = 0; kw < v.kernel; ++kw, ++weight) {
                const int64_t od = p / v.output / h.output, oh = p / v.output % h.output, ow = p % v.output;
                const int64_t id = od * d.stride + kd * d.dilation - d.before,
                              ih = oh * h.stride + kh * h.dilation - h.before,
                              iw = ow * v.stride + kw * v.dilation - v.before;
                if (id < 0 || id >= d.input || ih < 0 || ih >= h.input || iw < 0 || iw >= v.input) continue;
                const int64_t channel = s.groups > 1 ? f : k;
                const int64_t at =
                    (((n * d.input + id) * h.input + ih) * v.input + iw) * s.channels + channel;
                sum += (value(x[static_cast<size_t>(at)], c.x_signed) - x_zero) *
                       (value(*weight, c.w_signed) - w_zero);
              }
        y.push_back(rounded(sum + f * 3, factors[static_cast<size_t>(f)], c.range));
      }
  return y;
}

void check(const Case& c) {
  const ConvSizes& s = c.sizes;
  const ByteConvolution convolution(s, c.x_signed, c.w_signed, c.with_quads);
  const std::vector<uint8_t> x = codes(s.batch * s.channels * s.input_points(), 1),
                             w = codes(s.filters * s.column_rows(), 2);
  const int64_t x_zero = c.x_signed ? -3 : 130, w_zero = c.w_signed ? 0 : 128;
  const std::vector<int32_t> zeros(static_cast<size_t>(s.filters), static_cast<int32_t>(w_zero));
  const auto whole = static_cast<size_t>(convolution.whole_filters());
  std::vector<uint32_t> words(static_cast<size_t>(convolution.weight_words()));
  std::vector<int32_t> offsets(whole);
  std::vector<double> factors(whole);
  std::vector<float> narrow(whole);
  REQUIRE(
      convolution.pack(w.data(), zeros.data(), static_cast<int32_t>(x_zero), words.data(), offsets.data()));
  for (size_t f = 0; f < static_cast<size_t>(s.filters); ++f) {
    offsets[f] += static_cast<int32_t>(3 * f);
    factors[f] = f % 3 == 0 ? 1.0 / 512 : 0.0017 * static_cast<double>(f + 1);  // powers of two give ties
    narrow[f] = static_cast<float>(factors[f]);
  }
  // What the memory held before does not matter.
  std::vector<uint32_t> work(static_cast<size_t>(convolution.work_words()), 0xA5A5A5A5u);
  const std::vector<uint8_t> wanted = expected(c, x, w, x_zero, w_zero, factors);
  std::vector<uint8_t> y(wanted.size(), 99);
  convolution.run(x.data(), static_cast<int32_t>(x_zero), words.data(),
                  {offsets.data(), narrow.data(), factors.data(), c.range}, y.data(), work.data());
  CHECK(y == wanted);
}

TEST_CASE("convolutions of bytes with channels last are exact on every instruction set") {
  const WindowAxis one = axis(1, 1, 1, 1, 0, 0);
  const std::vector<ConvSizes> all = {
      {2, 8, 12, 1, {one, axis(7, 3, 1, 1, 1, 1), axis(9, 3, 1, 1, 1, 1)}},
      {1, 8, 70, 1, {one, axis(6, 1, 1, 1, 0, 0), axis(11, 1, 1, 1, 0, 0)}},   // read in place
      {1, 4, 130, 1, {one, axis(9, 1, 2, 1, 0, 0), axis(11, 1, 2, 1, 0, 0)}},  // with strides
      {3, 3, 33, 1, {one, axis(13, 3, 2, 1, 0, 1), axis(14, 5, 2, 1, 2, 2)}},
      {1, 5, 17, 1, {axis(5, 2, 1, 2, 1, 0), axis(8, 3, 1, 1, 2, 0), axis(9, 2, 1, 3, 0, 4)}},
      {1, 16, 40, 1, {one, one, axis(60, 4, 3, 1, 0, 0)}},
      {2, 19, 19, 19, {one, axis(9, 3, 1, 1, 1, 1), axis(37, 3, 1, 1, 1, 1)}},  // depthwise from here on
      {1, 32, 32, 32, {one, axis(12, 5, 2, 1, 2, 1), axis(12, 5, 2, 1, 1, 2)}},
      {1, 70, 70, 70, {axis(4, 3, 1, 1, 1, 1), axis(7, 2, 3, 2, 1, 0), axis(8, 4, 1, 2, 3, 3)}},
  };
  on_every_target([&] {
    for (const ConvSizes& sizes : all)
      for (const bool x_signed : {false, true})
        for (const bool w_signed : {false, true})
          for (const bool with_quads : {false, true}) {
            INFO(sizes.channels << " channels, " << sizes.filters << " filters");
            check({sizes, x_signed, w_signed, with_quads, {100, 0, 255}});
            check({sizes, x_signed, w_signed, with_quads, {-5, -5, 90}});
          }
  });
}

template <typename Q>
void check_rounding(double left, float right, int32_t zero, unsigned seed) {
  std::mt19937 random(seed);
  const double factor = left * static_cast<double>(right);
  std::vector<int32_t> sums = {0, 1, -1, std::numeric_limits<int32_t>::max(),
                               std::numeric_limits<int32_t>::min()};
  // Halves between two codes, their neighbors, and anything.
  for (int i = -300; i <= 300; ++i)
    for (int j = -1; j <= 1; ++j) {
      const double middle = (i + 0.5) / factor;
      if (std::abs(middle) < 2e9) sums.push_back(static_cast<int32_t>(std::nearbyint(middle)) + j);
    }
  for (int i = 0; i < 20000; ++i) sums.push_back(static_cast<int32_t>(random()) >> (random() % 24));
  const CodeRange range = {zero, std::numeric_limits<Q>::min(), std::numeric_limits<Q>::max()};
  std::vector<Q> y(sums.size());
  requantize<Q>(sums.data(), static_cast<int64_t>(sums.size()),
                {left, &right, false, 1, static_cast<double>(zero)}, y.data());
  size_t different = 0;
  for (size_t i = 0; i < sums.size(); ++i)
    different += static_cast<uint8_t>(y[i]) != rounded(sums[i], factor, range);
  CHECK(different == 0);
}

TEST_CASE("sums are rounded as in double precision on every instruction set") {
  on_every_target([] {
    std::mt19937 random(5);
    std::uniform_real_distribution<double> exponent(-22, 3);
    for (unsigned seed = 0; seed < 60; ++seed) {
      // Powers of two and of ten have many ties.
      const double left = seed % 3 == 0   ? std::exp2(-static_cast<double>(seed % 20))
                          : seed % 3 == 1 ? std::exp2(exponent(random))
                                          : static_cast<double>(0.005f) / static_cast<double>(0.02f);
      const float right = seed % 2 ? 1.0f : 0.37f;
      check_rounding<uint8_t>(left, right, static_cast<int32_t>(random() % 256), seed);
      check_rounding<int8_t>(left, right, static_cast<int32_t>(random() % 256) - 128, seed);
    }
    check_rounding<uint8_t>(1e30, 1.0f, 3, 1);  // too large for products in float
    check_rounding<int8_t>(-0.01, 1.0f, 3, 1);
  });
}

}  // namespace
}  // namespace ortrain
