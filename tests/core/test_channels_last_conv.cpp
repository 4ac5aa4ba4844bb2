// Convolutions on values with channels last on every instruction set, against those on row-major ones in
// double precision.
#include <cmath>
#include <random>
#include <vector>

#include "backend/cpu/conv/channels_last_conv.h"
#include "backend/cpu/conv/channels_last_depthwise.h"
#include "backend/cpu/conv/separable_conv.h"
#include "catch.h"
#include "runtime/threads.h"
#include "targets.h"

namespace ortrain {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

WindowAxis axis(int64_t input, int64_t kernel, int64_t stride = 1, int64_t dilation = 1, int64_t before = 0,
                int64_t after = 0) {
  WindowAxis a{input, 1, kernel, stride, dilation, before, after};
  a.output = (input + before + after - a.span()) / stride + 1;
  return a;
}

const WindowAxis kNone = axis(1, 1);

Floats numbers(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats made(static_cast<size_t>(n));
  for (float& v : made) v = normal(random);
  return made;
}

Doubles doubles(const Floats& v) { return {v.begin(), v.end()}; }

// [outer, points, channels] of [outer, channels, points].
template <typename T>
std::vector<T> channels_last(const std::vector<T>& v, int64_t channels, int64_t points) {
  std::vector<T> made(v.size());
  const auto size = static_cast<int64_t>(v.size());
  for (int64_t i = 0; i < size; ++i) {
    const int64_t outer = i / (channels * points), c = i / points % channels, p = i % points;
    made[static_cast<size_t>((outer * points + p) * channels + c)] = v[static_cast<size_t>(i)];
  }
  return made;
}

void check_near(const Floats& found, const Doubles& expected) {
  REQUIRE(found.size() == expected.size());
  double largest = 0, error = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::isnan(found[i]) ? INFINITY : std::max(error, std::abs(found[i] - expected[i]));
  }
  CHECK(error <= 3e-6 * largest);
}

// A convolution in double precision, and its operands and results with channels last.
struct Case {
  ConvSizes s;
  int64_t in, out, taps;
  Floats x, w, bias, addend, dy;
  Doubles y, dx, dw;

  // `halves`: with values that can be stored in bfloat16, except weights and bias.
  explicit Case(const ConvSizes& sizes, bool halves = false)
      : s(sizes),
        in(s.input_points()),
        out(s.output_points()),
        taps(s.column_rows() / (s.channels / s.groups)),
        x(numbers(s.batch * s.channels * in, 1)),
        w(numbers(s.filters * s.column_rows(), 2)),
        bias(numbers(s.filters, 3)),
        addend(numbers(s.batch * s.filters * out, 4)),
        dy(numbers(s.batch * s.filters * out, 5)),
        y(dy.size()),
        dx(x.size()),
        dw(w.size()) {
    for (Floats* v : {&x, &addend, &dy})
      for (size_t i = 0; halves && i < v->size(); ++i) (*v)[i] = static_cast<float>(BFloat16((*v)[i]));
    const Doubles x2 = doubles(x), w2 = doubles(w), bias2 = doubles(bias), dy2 = doubles(dy);
    const int64_t workers = conv_workers(s);
    Doubles work(static_cast<size_t>(conv_weights_scratch(s)));
    conv_forward<double>(s, workers, x2.data(), w2.data(), bias2.data(), y.data(), work.data());
    conv_backward_data<double>(s, workers, dy2.data(), w2.data(), dx.data(), work.data());
    conv_backward_weights<double>(s, workers, dy2.data(), x2.data(), dw.data(), work.data());
    for (size_t i = 0; i < y.size(); ++i) y[i] = std::max(0.0, y[i] + static_cast<double>(addend[i]));
    x = channels_last(x, s.channels, in), dx = channels_last(dx, s.channels, in);
    w = channels_last(w, s.channels / s.groups, taps), dw = channels_last(dw, s.channels / s.groups, taps);
    y = channels_last(y, s.filters, out), dy = channels_last(dy, s.filters, out);
    addend = channels_last(addend, s.filters, out);
  }
};

struct Results {
  Floats y, dx, dw;
};

struct PackedWeights {
  Floats forward, backward;

  PackedWeights(const ChannelsLastConvolution& conv, const Floats& w)
      : forward(static_cast<size_t>(conv.packed_size()), NAN),
        backward(static_cast<size_t>(conv.packed_backward_size()), NAN) {
    conv.pack(w.data(), forward.data());
    conv.pack_backward(w.data(), backward.data());
  }
};

// What the memory held before does not matter.
Results compute(const Case& c) {
  const ChannelsLastConvolution conv(c.s);
  REQUIRE(conv.suits());
  const auto memory = [](int64_t n) { return Floats(static_cast<size_t>(n), NAN); };
  Results r{Floats(c.y.size(), NAN), Floats(c.dx.size(), NAN), Floats(c.dw.size(), NAN)};
  const Activation relu{Activation::Kind::kRelu, 0, 0};
  const PackedWeights w(conv, c.w);
  conv.forward(c.x.data(), w.forward.data(), c.bias.data(), c.addend.data(), relu, r.y.data(),
               memory(conv.forward_work()).data());
  conv.backward_data(c.dy.data(), w.backward.data(), nullptr, r.dx.data(),
                     memory(conv.backward_data_work()).data());
  conv.backward_weights(c.dy.data(), c.x.data(), r.dw.data(), memory(conv.backward_weights_work()).data());
  return r;
}

const std::vector<ConvSizes> kCases = {
    {2, 5, 7, 1, {kNone, axis(6, 1), axis(5, 1)}},          // single elements
    {2, 20, 70, 1, {kNone, axis(9, 1, 2), axis(8, 1, 2)}},  // every other one
    {3, 17, 33, 1, {kNone, axis(7, 3, 1, 1, 1, 1), axis(7, 3, 1, 1, 1, 1)}},
    {2, 3, 16, 1, {kNone, axis(21, 7, 2, 1, 3, 3), axis(30, 7, 2, 1, 3, 2)}},  // the first layer
    {2, 8, 12, 2, {kNone, axis(9, 3, 2, 2, 0, 3), axis(11, 2, 3, 2, 1, 0)}},   // groups
    {1, 6, 6, 3, {kNone, axis(1, 3, 1, 1, 1, 1), axis(40, 5, 1, 3, 6, 6)}},    // dilated
    {2, 4, 5, 1, {kNone, axis(3, 4, 1, 1, 3, 2), axis(2, 4, 1, 1, 2, 3)}},     // larger than X
    {2, 4, 5, 1, {axis(5, 3, 2, 1, 1, 1), axis(4, 2, 1, 1, 1, 0), axis(6, 3, 1, 1, 0, 1)}},
    {1, 3, 4, 1, {kNone, kNone, axis(60, 2, 5, 1, 0, 0)}},  // elements of X that no window reads
    {9, 70, 6, 1, {kNone, axis(4, 3, 1, 1, 1, 1), axis(4, 3, 1, 1, 1, 1)}},    // several images
    {1, 40, 8, 1, {kNone, axis(70, 3, 1, 1, 1, 1), axis(80, 3, 1, 1, 1, 1)}},  // blocks of rows
    {1, 8, 70, 1, {kNone, kNone, axis(40000, 3, 1, 1, 1, 1)}},                 // and of columns
    {2, 8, 6, 1, {kNone, kNone, axis(2101, 3, 2)}},          // long lines, of which every other element
    {2, 4, 5, 1, {kNone, axis(6, 2, 2), axis(1400, 2, 2)}},  // has a gradient that reads lines of dY in place
    {1, 150, 9, 1, {kNone, axis(30, 1), axis(100, 1)}},
    {2, 5, 600, 1, {kNone, axis(3, 1), axis(4, 1)}},
    {2, 3, 48, 1, {kNone, axis(15, 1), axis(19, 1)}},        // few channels
    {2, 64, 2, 1, {kNone, axis(15, 1), axis(19, 1)}},        // and few filters, of single elements
    {5, 40, 70, 1, {kNone, axis(13, 1), axis(17, 1)}},       // more points than the products of one block
    {3, 40, 520, 1, {kNone, axis(7, 1, 2), axis(9, 1, 2)}},  // and more filters, of every other element
    {4, 20, 40, 1, {kNone, axis(1, 3, 1, 1, 1, 1), axis(50, 1)}},  // of three elements, two are never read
    {600, 4, 5, 1, {kNone, axis(3, 3), axis(3, 3)}},               // short lines
    {3, 70, 130, 1, {kNone, axis(7, 3, 2, 1, 1, 1), axis(6, 3, 2, 1, 1, 0)}},       // many filters
    {5, 3, 140, 1, {kNone, axis(17, 2, 2, 3, 0, 4), axis(15, 3, 1, 2, 5, 1)}},      // in several parts
    {2, 10, 270, 2, {axis(5, 2, 2, 1, 0, 1), axis(4, 3, 3, 1, 1, 1), axis(6, 1)}},  // and groups
};

TEST_CASE("convolutions with channels last agree with double precision on every instruction set") {
  for (const ConvSizes& s : kCases) {
    const Case c(s);
    INFO("case " << &s - kCases.data());
    on_every_target([&] {
      const Results r = compute(c);
      check_near(r.y, c.y);
      check_near(r.dx, c.dx);
      check_near(r.dw, c.dw);
    });
  }
}

using Halves = std::vector<BFloat16>;

Halves narrow(const Floats& v) {
  Halves made;
  for (const float x : v) made.emplace_back(x);
  return made;
}

Floats wide(const Halves& v) {
  Floats made;
  for (const BFloat16 x : v) made.push_back(static_cast<float>(x));
  return made;
}

// With X, Y, their gradients and the addend in bfloat16, and weights in float.
Results compute_halves(const Case& c) {
  const ChannelsLastConvolution conv(c.s);
  const auto memory = [](int64_t n) { return Floats(static_cast<size_t>(n), NAN); };
  const Halves x = narrow(c.x), addend = narrow(c.addend), dy = narrow(c.dy);
  Halves y(c.y.size(), BFloat16(NAN)), dx(c.dx.size(), BFloat16(NAN));
  Results r{{}, {}, Floats(c.dw.size(), NAN)};
  const Activation relu{Activation::Kind::kRelu, 0, 0};
  const PackedWeights w(conv, c.w);
  conv.forward(x.data(), w.forward.data(), c.bias.data(), addend.data(), relu, y.data(),
               memory(conv.forward_work(true)).data());
  conv.backward_data(dy.data(), w.backward.data(), nullptr, dx.data(),
                     memory(conv.backward_data_work(true)).data());
  conv.backward_weights(dy.data(), x.data(), r.dw.data(), memory(conv.backward_weights_work(true)).data());
  r.y = wide(y), r.dx = wide(dx);
  return r;
}

// Off by the rounding of the result to bfloat16 in addition.
void check_rounded(const Floats& found, const Doubles& expected) {
  REQUIRE(found.size() == expected.size());
  double largest = 0, error = 0;
  for (const double v : expected) largest = std::max(largest, std::abs(v));
  for (size_t i = 0; i < found.size(); ++i) {
    const double apart = std::abs(found[i] - expected[i]) - std::abs(expected[i]) / 256;
    error = std::isnan(found[i]) ? INFINITY : std::max(error, apart);
  }
  CHECK(error <= 3e-6 * largest);
}

TEST_CASE("convolutions of values stored in bfloat16 sum in float on every instruction set") {
  for (const ConvSizes& s : kCases) {
    const Case c(s, true);
    INFO("case " << &s - kCases.data());
    on_every_target([&] {
      const Results r = compute_halves(c);
      check_rounded(r.y, c.y);
      check_rounded(r.dx, c.dx);
      check_near(r.dw, c.dw);
    });
    const auto with = [&](int threads) {
      const ThreadScope scope(threads);
      return compute_halves(c);
    };
    const Results one = with(1), three = with(3);
    CHECK(one.y == three.y);
    CHECK(one.dx == three.dx);
    CHECK(one.dw == three.dw);
  }
}

Results compute_depthwise(const Case& c) {
  const ChannelsLastDepthwise conv(c.s);
  REQUIRE(conv.suits());
  const auto memory = [](int64_t n) { return Floats(static_cast<size_t>(n), NAN); };
  Results r{Floats(c.y.size(), NAN), Floats(c.dx.size(), NAN), Floats(c.dw.size(), NAN)};
  const Activation relu{Activation::Kind::kRelu, 0, 0};
  Floats turned = memory(conv.turned_size());
  conv.turn_weights(c.w.data(), turned.data());
  conv.forward(c.x.data(), turned.data(), c.bias.data(), c.addend.data(), relu, r.y.data());
  conv.backward_data(c.dy.data(), turned.data(), r.dx.data());
  conv.backward_weights(c.dy.data(), c.x.data(), r.dw.data(), memory(conv.weights_work_size()).data());
  return r;
}

// With `n` channels, each of which has a filter.
std::vector<ConvSizes> depthwise_cases(int64_t n) {
  return {
      {2, n, n, n, {kNone, axis(7, 3, 1, 1, 1, 1), axis(7, 3, 1, 1, 1, 1)}},
      {2, n, n, n, {kNone, axis(15, 3, 2, 1, 1, 0), axis(33, 3, 2, 1, 0, 1)}},
      {1, n, n, n, {kNone, kNone, axis(700, 5, 1, 3, 6, 6)}},  // several parts of a line
      {2, n, n, n, {kNone, axis(12, 7, 1, 1, 3, 3), axis(13, 7, 1, 1, 3, 3)}},
      {1, n, n, n, {kNone, axis(9, 2, 3, 2, 4, 0), axis(20, 4, 2, 3, 0, 7)}},
      {2, n, n, n, {kNone, axis(2, 4, 1, 1, 3, 2), axis(3, 5, 1, 1, 2, 3)}},  // larger than X
      {1, n, n, n, {axis(4, 3, 2, 1, 1, 1), axis(5, 2), axis(6, 3, 1, 1, 1, 1)}},
      {1, n, n, n, {kNone, kNone, axis(30, 2, 5)}},  // elements of X that no window reads
      {2, n, n, n, {kNone, axis(6, 3, 1, 1, 1, 1), axis(70, 3, 1, 1, 1, 1)}},  // long lines
      {3, n, n, n, {kNone, axis(8, 3, 2, 1, 1, 1), axis(149, 3, 2, 1, 1, 1)}},
      {1, n, n, n, {kNone, axis(9, 2, 2), axis(1101, 3, 3, 1, 1, 1)}},
      {2, n, n, n, {kNone, axis(40, 3, 1, 1, 1, 1), axis(90, 3, 1, 1, 1, 1)}},  // work for several threads
      {2, n, n, n, {kNone, axis(13, 5, 2, 1, 2, 2), axis(21, 5, 2, 1, 2, 2)}},  // dX: also 3 x 3 elements
      {2, n, n, n, {kNone, axis(12, 3, 1, 2, 2, 2), axis(37, 3, 1, 1, 2, 0)}},
      {2, n, n, n, {kNone, axis(7, 5, 1, 1, 2, 2), axis(7, 5, 1, 1, 2, 2)}},  // fewer than eight results
      {2, n, n, n, {kNone, axis(11, 5, 1, 1, 4, 0), axis(24, 5, 1, 1, 0, 4)}},
      {2, n, n, n, {kNone, axis(9, 5, 2, 1, 0, 3), axis(48, 5, 2, 1, 4, 1)}},
      {2, n, n, n, {kNone, axis(7, 7, 1, 1, 3, 3), axis(28, 7, 1, 1, 3, 3)}},
  };
}

TEST_CASE("depthwise convolutions with channels last agree with double precision on every instruction set") {
  for (const int64_t channels : {1, 3, 17, 64, 70})
    for (const ConvSizes& s : depthwise_cases(channels)) {
      const Case c(s);
      INFO(channels << " channels, " << s.window[2].input << " columns");
      on_every_target([&] {
        const Results r = compute_depthwise(c);
        check_near(r.y, c.y);
        check_near(r.dx, c.dx);
        check_near(r.dw, c.dw);
      });
    }
}

TEST_CASE("a depthwise convolution can be added to the values in its target on every instruction set") {
  for (const int64_t channels : {3, 70})
    for (const ConvSizes& s : depthwise_cases(channels)) {
      const Case c(s);
      on_every_target([&] {
        const ChannelsLastDepthwise conv(c.s);
        Floats turned(static_cast<size_t>(conv.turned_size())), y = c.addend;
        conv.turn_weights(c.w.data(), turned.data());
        conv.forward(c.x.data(), turned.data(), c.bias.data(), y.data(), {Activation::Kind::kRelu, 0, 0},
                     y.data());
        check_near(y, c.y);
      });
    }
}

TEST_CASE("results at the border of a line do not read the weights of elements outside") {
  for (const int64_t taps : {5, 7}) {
    const int64_t n = 16, columns = 18, before = taps / 2;
    const Case c({1, n, n, n, {kNone, axis(1, 1), axis(columns, taps, 1, 1, before, before)}});
    const ChannelsLastDepthwise conv(c.s);
    Floats x(c.x.size(), 1), w(c.w.size(), 1), turned(static_cast<size_t>(conv.turned_size())), y(c.y.size());
    for (size_t i = 0; i < w.size(); i += static_cast<size_t>(taps)) w[i] = INFINITY;  // the first tap
    conv.turn_weights(w.data(), turned.data());
    on_every_target([&] {
      conv.forward(x.data(), turned.data(), nullptr, nullptr, {}, y.data());
      for (int64_t i = 0; i < columns * n; ++i) {
        const int64_t column = i / n;
        const float expected = column < before ? static_cast<float>(column + before + 1) : INFINITY;
        INFO(taps << " taps, column " << column);
        CHECK(y[static_cast<size_t>(i)] == expected);
      }
    });
  }
}

TEST_CASE("depthwise convolutions with channels last do not depend on the number of threads") {
  for (const ConvSizes& s : depthwise_cases(70)) {
    const Case c(s);
    const auto with = [&](int threads) {
      const ThreadScope scope(threads);
      return compute_depthwise(c);
    };
    const Results one = with(1), three = with(3);
    CHECK(one.y == three.y);
    CHECK(one.dx == three.dx);
    CHECK(one.dw == three.dw);
  }
}

TEST_CASE("convolutions with channels last do not depend on the number of threads") {
  for (const ConvSizes& s : kCases) {
    const Case c(s);
    INFO("case " << &s - kCases.data());
    const auto with = [&](int threads) {
      const ThreadScope scope(threads);
      return compute(c);
    };
    const Results one = with(1), three = with(3);
    CHECK(one.y == three.y);
    CHECK(one.dx == three.dx);
    CHECK(one.dw == three.dw);
  }
}

TEST_CASE("convolutions that are empty or too large are left to others") {
  const WindowAxis some = axis(9, 3, 1, 1, 1, 1);
  CHECK_FALSE(ChannelsLastDepthwise({2, 4, 8, 4, {kNone, some, some}}).suits());  // two filters for a channel
  CHECK_FALSE(ChannelsLastDepthwise({0, 4, 4, 4, {kNone, some, some}}).suits());
  CHECK_FALSE(ChannelsLastConvolution({0, 4, 4, 1, {kNone, some, some}}).suits());
  CHECK_FALSE(ChannelsLastConvolution({1, 4, 4, 1, {kNone, some, axis(int64_t{1} << 40, 3)}}).suits());
  // Windows that are far apart: a block would have to hold all that is between their elements.
  CHECK_FALSE(ChannelsLastConvolution({1, 64, 4, 1, {kNone, kNone, axis(1 << 25, 2, 1, 1 << 24)}}).suits());
}

TEST_CASE("separable convolutions give on every instruction set what their parts give one after the other") {
  constexpr int64_t kChannels = 19, kFilters = 21;
  const Activation clip{Activation::Kind::kClip, -1, 1};
  for (const int64_t expanded : {1, 24, 70})
    for (const ConvSizes& s :
         {ConvSizes{
              3, expanded, expanded, expanded, {kNone, axis(30, 3, 1, 1, 1, 1), axis(40, 3, 1, 1, 1, 1)}},
          ConvSizes{
              2, expanded, expanded, expanded, {kNone, axis(23, 5, 2, 1, 2, 2), axis(9, 3, 2, 1, 0, 1)}},
          ConvSizes{5, expanded, expanded, expanded, {kNone, axis(4, 2, 3), axis(5, 3, 1, 1, 1, 1)}},
          ConvSizes{5, expanded, expanded, expanded, {kNone, axis(7, 3, 1, 1, 1, 1), axis(7, 3, 1, 1, 1, 1)}},
          ConvSizes{
              4, expanded, expanded, expanded, {kNone, axis(28, 3, 2, 1, 0, 1), axis(31, 3, 2, 1, 1, 1)}}}) {
      INFO(expanded << " expanded channels, " << s.window[1].input << " lines");
      on_every_target([&] {
        const ThreadScope threads(2);
        const SeparableConvolution conv(s, kChannels, kFilters);
        REQUIRE(conv.suits());
        const int64_t from = s.batch * s.input_points(), to = s.batch * s.output_points();
        const Floats x = numbers(from * kChannels, 1), bias = numbers(expanded + kFilters, 2);
        const auto packed = [&](const ChannelsLastConvolution& c, int64_t n) {
          Floats weights(static_cast<size_t>(c.packed_size()) + 64);
          c.pack(numbers(n, 3).data(), weights.data());
          return weights;
        };
        const Floats first = packed(*conv.first(), kChannels * expanded),
                     last = packed(*conv.last(), kFilters * expanded);
        Floats middle(static_cast<size_t>(conv.middle().turned_size()));
        conv.middle().turn_weights(numbers(s.column_rows() * expanded, 4).data(), middle.data());

        Floats wide(static_cast<size_t>(from * expanded)), narrow(static_cast<size_t>(to * expanded)),
            expected(static_cast<size_t>(to * kFilters)), found(expected.size(), NAN),
            work(static_cast<size_t>(conv.work_size()), NAN);
        conv.first()->forward_points(from, x.data(), first.data(), bias.data(), clip, 0, expanded,
                                     wide.data());
        conv.middle().forward(wide.data(), middle.data(), nullptr, nullptr, clip, narrow.data());
        conv.last()->forward_points(to, narrow.data(), last.data(), bias.data() + expanded, {}, 0, kFilters,
                                    expected.data());
        conv.forward(x.data(), {first.data(), bias.data(), clip}, {middle.data(), nullptr, clip},
                     {last.data(), bias.data() + expanded, {}}, found.data(), work.data());
        CHECK(found == expected);
      });
    }
}
}  // namespace
}  // namespace ortrain
