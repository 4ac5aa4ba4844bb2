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

// The operands of a convolution, also in float.
struct Operands {
  std::vector<BFloat16> x, w, dy, addend, bias;
  std::vector<float> wide_x, wide_w, wide_dy, wide_addend, wide_bias;

  explicit Operands(const ConvSizes& s)
      : x(some(s.batch * s.channels * s.input_points(), 1)),
        w(some(s.filters * s.column_rows(), 2)),
        dy(some(s.batch * s.filters * s.output_points(), 3)),
        addend(some(s.batch * s.filters * s.output_points(), 4)),
        bias(some(s.filters, 5)),
        wide_x(widened(x)),
        wide_w(widened(w)),
        wide_dy(widened(dy)),
        wide_addend(widened(addend)),
        wide_bias(widened(bias)) {}
};

std::vector<float> room(int64_t n) { return std::vector<float>(static_cast<size_t>(n) + 16, NAN); }

// Y and dX. `ends`: with a bias, an addend and Relu. `halves`: X, dY, the addend and the results are stored
// in bfloat16.
struct Results {
  std::vector<float> y, dx;

  Results(const ConvSizes& sizes, const Operands& o, bool ends, bool pairs, bool halves) {
    const ChannelsLastConvolution conv(sizes, pairs);
    REQUIRE(conv.suits());
    REQUIRE(conv.in_pairs() == pairs);
    const auto input = [&](const std::vector<BFloat16>& narrow, const std::vector<float>& wide) {
      return halves ? StoredInput(narrow.data()) : StoredInput(wide.data());
    };
    std::vector<BFloat16> narrow_y(o.dy.size()), narrow_dx(o.x.size());
    y.resize(o.dy.size()), dx.resize(o.x.size());
    std::vector<float> packed = room(conv.packed_size()), back = room(conv.packed_backward_size()),
                       work = room(std::max(conv.forward_work(halves), conv.backward_data_work(halves)));
    conv.pack(o.wide_w.data(), packed.data());
    conv.pack_backward(o.wide_w.data(), back.data());
    Activation activation;
    if (ends) activation.kind = Activation::Kind::kRelu;
    conv.forward(input(o.x, o.wide_x), packed.data(), ends ? o.wide_bias.data() : nullptr,
                 ends ? input(o.addend, o.wide_addend) : StoredInput{}, activation,
                 halves ? StoredOutput(narrow_y.data()) : StoredOutput(y.data()), work.data());
    conv.backward_data(input(o.dy, o.wide_dy), back.data(), nullptr,
                       halves ? StoredOutput(narrow_dx.data()) : StoredOutput(dx.data()), work.data());
    if (halves) y = widened(narrow_y), dx = widened(narrow_dx);
  }
};

WindowAxis axis(int64_t input, int64_t kernel, int64_t stride, int64_t dilation, int64_t before) {
  WindowAxis a{input, 0, kernel, stride, dilation, before, before};
  a.output = (input + 2 * before - a.span()) / stride + 1;
  return a;
}

void check(const ConvSizes& s) {
  const Operands operands(s);
  for (const bool ends : {false, true}) {
    const Results expected(s, operands, ends, false, false);
    for (const bool bf16 : {false, true}) {
      INFO(s.channels << " to " << s.filters << " channels, groups " << s.groups << ", kernel "
                      << s.window[1].kernel << ", stride " << s.window[1].stride << ", bf16 " << bf16
                      << ", ends " << ends);
      const Results found(s, operands, ends, true, bf16);
      // Sums in float; results in bfloat16 are rounded once more.
      const double allowed = bf16 ? 0.02 : 2e-6;
      CHECK(difference(found.y, expected.y, s.column_rows()) < allowed);
      CHECK(difference(found.dx, expected.dx, s.column_rows() / s.channels * s.groups * s.filters) < allowed);
    }
  }
}

}  // namespace

TEST_CASE("convolutions in pairs agree with those in float of the same operands on every instruction set") {
  const ThreadScope threads(2);
  on_every_target([] {
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
      check({2, channels, filters, groups, {WindowAxis{1, 1, 1, 1, 1, 0, 0}, h, w}});
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
