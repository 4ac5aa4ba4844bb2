// Pooling with channels last on every instruction set, against row-major planes in double precision.
#include "backend/cpu/pool/channels_last_pool.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "catch.h"
#include "runtime/threads.h"
#include "targets.h"

namespace ortrain {
namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

WindowAxis axis(int64_t input, int64_t kernel, int64_t stride = 1, int64_t before = 0, int64_t after = 0,
                int64_t dilation = 1, int64_t more = 0) {
  WindowAxis a{input, 1, kernel, stride, dilation, before, after};
  a.output = (input + before + after - a.span()) / stride + 1 + more;  // `more`: ceil_mode
  return a;
}

const WindowAxis kNone = axis(1, 1);

const std::vector<Window> kWindows = {
    {kNone, axis(6, 2, 2), axis(8, 2, 2)},
    {kNone, axis(9, 3, 2, 1, 1), axis(8, 3, 2, 1, 1)},        // windows overlap
    {kNone, axis(7, 3, 1, 2, 2), axis(5, 2, 3, 1, 0)},        // elements between windows
    {kNone, axis(9, 2, 2, 1, 1, 3), axis(7, 3, 1, 0, 2, 2)},  // dilated
    {kNone, kNone, axis(30, 5, 4, 2, 2, 1, 1)},               // the last window reaches further
    {axis(4, 2, 2), axis(5, 3, 1, 1, 1), axis(6, 2)},
    {kNone, axis(3, 2, 2, 3, 3), axis(3, 2, 2, 3, 3)},  // windows in the padding
};

// Few different values, so that there are ties.
Floats numbers(int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> some(-4, 4);
  Floats made(static_cast<size_t>(n));
  for (float& v : made) v = static_cast<float>(some(random)) / 3;
  return made;
}

// [images, points, channels] of [images, channels, points].
template <typename T>
std::vector<T> channels_last(const std::vector<T>& v, int64_t channels, int64_t points) {
  std::vector<T> made(v.size());
  for (size_t i = 0; i < v.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t image = at / (channels * points), c = at / points % channels, p = at % points;
    made[static_cast<size_t>((image * points + p) * channels + c)] = v[i];
  }
  return made;
}

template <typename T>
std::vector<T> stored(const Floats& v) {
  std::vector<T> made;
  for (const float x : v) made.emplace_back(x);
  return made;
}

// Results in bfloat16 are rounded once.
template <typename T>
void check_same(const std::vector<T>& values, const Doubles& expected) {
  Floats found;
  for (const T v : values) found.push_back(static_cast<float>(v));
  constexpr double kRounding = sizeof(T) == 2 ? 1.0 / 256 : 0;
  REQUIRE(found.size() == expected.size());
  size_t wrong = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double error = std::abs(found[i] - expected[i]);
    if (std::isnan(expected[i]) ? !std::isnan(found[i])
                                : found[i] != static_cast<float>(expected[i]) &&
                                      !(error <= 1e-5 + kRounding * std::abs(expected[i])))
      ++wrong;
  }
  CHECK(wrong == 0);
}

// Pooling of values with infinities and NaN, and its gradient, by the functions for rows and planes.
template <typename T>
void check(const Window& window, int64_t channels, bool count_padding) {
  constexpr int64_t kImages = 2;
  const PoolSizes planes{kImages * channels, window, count_padding, false};
  const ChannelsLastPool pool{{kImages, window, count_padding, false}, channels};
  REQUIRE(pool.suits());
  const int64_t in = planes.input_points(), out = planes.output_points();
  const auto values = [](int64_t n, unsigned seed) {
    Floats made = numbers(n, seed);
    for (float& v : made) v = static_cast<float>(T(v));
    return made;
  };
  Floats x = values(planes.planes * in, 1), dy = values(planes.planes * out, 2);
  const Floats finite = x;
  x[x.size() / 2] = NAN, x[x.size() / 3] = INFINITY, x[0] = -INFINITY;
  const auto doubles = [](const Floats& v) { return Doubles(v.begin(), v.end()); };
  const Doubles x2 = doubles(x), finite2 = doubles(finite), dy2 = doubles(dy);
  Doubles y2(dy.size()), dx2(x.size()), mean2(dy.size()), mean_dx2(x.size());
  std::vector<int64_t> indices(dy.size());
  max_pool<double>(planes, x2.data(), y2.data(), indices.data());
  max_pool_backward<double>(planes, dy2.data(), indices.data(), dx2.data());
  average_pool<double>(planes, finite2.data(), mean2.data());
  average_pool_backward<double>(planes, dy2.data(), mean_dx2.data());
  // A window in the padding has the lowest value of its type.
  constexpr double kLowest = sizeof(T) == 2 ? -0x1.fep127 : std::numeric_limits<float>::lowest();
  for (double& v : y2)
    if (v == std::numeric_limits<double>::lowest()) v = kLowest;
  const std::vector<T> x_last = stored<T>(channels_last(x, channels, in)),
                       finite_last = stored<T>(channels_last(finite, channels, in)),
                       dy_last = stored<T>(channels_last(dy, channels, out));
  std::vector<T> y(dy.size(), T(NAN)), dx(x.size(), T(NAN));
  Floats taps(dy.size(), NAN);
  channels_last_max_pool(pool, x_last.data(), y.data(), taps.data());
  check_same(y, channels_last(y2, channels, out));
  channels_last_max_pool_backward(pool, dy_last.data(), taps.data(), dx.data());
  check_same(dx, channels_last(dx2, channels, in));
  channels_last_average_pool(pool, finite_last.data(), y.data());
  check_same(y, channels_last(mean2, channels, out));
  channels_last_average_pool_backward(pool, dy_last.data(), dx.data());
  check_same(dx, channels_last(mean_dx2, channels, in));
}

TEST_CASE("pooling with channels last is that of planes on every instruction set") {
  on_every_target([&] {
    for (const Window& window : kWindows)
      for (const int64_t channels : {1, 3, 17, 64})
        for (const bool count_padding : {false, true}) {
          INFO("window " << &window - kWindows.data() << ", " << channels << " channels");
          check<float>(window, channels, count_padding);
          check<BFloat16>(window, channels, count_padding);
        }
  });
  const ThreadScope threads(3);
  for (const Window& window : kWindows) check<float>(window, 70, false);
}

template <typename T>
void check_global() {
  const int64_t channels = 70, points = 33;
  Floats x = numbers(2 * channels * points, 1);
  for (float& v : x) v = static_cast<float>(T(v));
  const ChannelsLastPool pool{{2, {kNone, axis(3, 1), axis(11, 1)}}, channels};
  const auto doubles = [](const Floats& v) { return Doubles(v.begin(), v.end()); };
  const auto last = [&] { return stored<T>(channels_last(x, channels, points)); };
  Floats y(static_cast<size_t>(2 * channels), NAN);
  Doubles y2(y.size());
  x[50] = NAN, x[3000] = INFINITY, x[100] = -INFINITY;
  channels_last_global_max(pool, last().data(), y.data());
  global_max<double>(2 * channels, points, doubles(x).data(), y2.data());
  check_same(y, y2);
}

TEST_CASE("the largest elements of images with channels last are those of planes") {
  check_global<float>();
  check_global<BFloat16>();
}

TEST_CASE("windows of many elements are left to other kernels") {
  CHECK_FALSE(ChannelsLastPool{{1, {kNone, axis(500, 300), axis(9, 3)}}, 4}.suits());
  CHECK_FALSE(ChannelsLastPool{{1, {kNone, axis(9, 3), axis(500, 300)}}, 4}.suits());
}

}  // namespace
}  // namespace ortrain
