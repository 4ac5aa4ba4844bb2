// GridSample: an image sampled at positions between its pixels, and GridSampleGrad (com.microsoft).
//
// Each element of the grid specifies a point of X by coordinates that run from -1 to 1. The value at this
// point is a weighted sum of the surrounding pixels, y = Σ_k Π_axes weight_k X[pixel_k]; the weights depend
// on the point and so carry the gradient of the grid. Coordinates that are NaN count as far outside.
#include <algorithm>
#include <array>
#include <cmath>

#include "op/operator.h"
#include "op/wide_integers.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

enum class Mode { kNearest, kLinear, kCubic };
enum class Padding { kZeros, kBorder, kReflection };

constexpr int64_t kMaxAxes = 3, kMaxTaps = 4, kMaxPixels = 64;  // of one point: 4³

// The pixels that one coordinate of a point refers to.
struct Taps {
  std::array<int64_t, kMaxTaps> index;  // -1: zero
  std::array<double, kMaxTaps> weight,
      derivative;  // the weight's derivative with respect to the coordinate of the grid
};

struct Sampler {
  Mode mode;
  Padding padding;
  bool align_corners;
  int64_t batch, channels, points, axes, taps;  // points: of the grid of one image
  Shape space;                                  // of X
  int64_t pixels;                               // of a channel of X

  Sampler(const NodeContext& c, size_t x_at, size_t grid_at)
      : align_corners(c.node().int_or("align_corners", 0) != 0) {
    const Shape &x = c.shape(x_at), &grid = c.shape(grid_at);
    c.expect(x.size() >= 3 && x.size() <= 2 + kMaxAxes,
             "its input X must have shape [N, C, D1] to [N, C, D1, D2, D3], found ", to_string(x));
    c.expect(grid.size() == x.size() && grid[0] == x[0] && grid.back() == static_cast<int64_t>(x.size()) - 2,
             "the grid must have ", counted(x.size(), "axis"), ", the first of size ", x[0],
             " and the last of size ", x.size() - 2, ", found ", to_string(grid));
    if (!is_floating(c.dtype(grid_at))) c.reject_dtype(grid_at);
    const std::string name = c.node().string_or("mode", "linear"),
                      border = c.node().string_or("padding_mode", "zeros");
    c.expect(
        name == "nearest" || name == "linear" || name == "bilinear" || name == "cubic" || name == "bicubic",
        "attribute mode must be nearest, linear (bilinear) or cubic (bicubic), found '", name, "'");
    mode = name == "nearest" ? Mode::kNearest : name.ends_with("linear") ? Mode::kLinear : Mode::kCubic;
    c.expect(border == "zeros" || border == "border" || border == "reflection",
             "attribute padding_mode must be zeros, border or reflection, found '", border, "'");
    padding = border == "zeros"    ? Padding::kZeros
              : border == "border" ? Padding::kBorder
                                   : Padding::kReflection;
    batch = x[0];
    channels = x[1];
    space.assign(x.begin() + 2, x.end());
    axes = static_cast<int64_t>(space.size());
    pixels = element_count(space);
    points = element_count(grid, 1, grid.size() - 1);
    taps = mode == Mode::kNearest ? 1 : mode == Mode::kLinear ? 2 : 4;
    c.expect(pixels > 0 || batch * channels * points == 0, "there are no elements to sample in X ",
             to_string(x));
  }

  Shape result(const Shape& grid) const {
    Shape y(grid.begin(), grid.end() - 1);
    y.insert(y.begin() + 1, channels);
    return y;
  }
  int64_t combinations() const { return axes == 1 ? taps : axes == 2 ? taps * taps : taps * taps * taps; }

  // Mirrors v at both ends until it is inside; `sign` is the derivative.
  static double reflect(double v, double low, double high, double& sign) {
    const double range = high - low;
    if (v >= low && v <= high) return v;
    if (range <= 0) {
      sign = 0;
      return low;
    }
    const double beyond = v < low ? low - v : v - high, times = std::floor(beyond / range),
                 rest = beyond - times * range;
    const bool even = std::fmod(times, 2) == 0;
    sign = even ? -1 : 1;
    return (v < low) == even ? low + rest : high - rest;
  }

  int64_t pixel(int64_t i, int64_t dim, double low, double high) const {
    if (i >= 0 && i < dim) return i;
    if (padding == Padding::kZeros) return -1;
    if (padding == Padding::kBorder) return std::clamp<int64_t>(i, 0, dim - 1);
    double sign;
    return std::clamp<int64_t>(static_cast<int64_t>(reflect(static_cast<double>(i), low, high, sign)), 0,
                               dim - 1);
  }

  Taps taps_of(double coordinate, int64_t dim) const {
    Taps t{};
    const double n = static_cast<double>(dim), low = align_corners ? 0 : -0.5,
                 high = align_corners ? n - 1 : n - 0.5;
    double derivative = align_corners ? (n - 1) / 2 : n / 2;  // of v by the coordinate
    double v = align_corners ? (coordinate + 1) / 2 * (n - 1) : ((coordinate + 1) * n - 1) / 2;
    if (!std::isfinite(v)) v = -kFar;
    if (mode == Mode::kNearest) {
      v = std::nearbyint(v);
      derivative = 0;
    }
    if (v < low || v > high) {
      if (padding == Padding::kBorder) {
        v = std::clamp(v, 0.0, n - 1);
        derivative = 0;
      } else if (padding == Padding::kReflection) {
        double sign = 1;
        v = reflect(v, low, high, sign);
        derivative *= sign;
      }
    }
    v = std::clamp(v, -kFar, n + kFar);
    const double below = std::floor(v), r = v - below;
    const int64_t first = static_cast<int64_t>(below) - (mode == Mode::kCubic ? 1 : 0);
    for (int64_t k = 0; k < taps; ++k) t.index[static_cast<size_t>(k)] = pixel(first + k, dim, low, high);
    if (mode == Mode::kNearest) {
      t.weight[0] = 1;
    } else if (mode == Mode::kLinear) {
      t.weight = {1 - r, r};
      t.derivative = {-derivative, derivative};
    } else {
      for (size_t k = 0; k < 4; ++k) {
        // Keys' cubic convolution at distance d, and its derivative.
        constexpr double a = -0.75;
        const double signed_d = r + 1 - static_cast<double>(k), d = std::abs(signed_d);
        const bool near = k == 1 || k == 2;
        t.weight[k] = near ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
        const double of_weight =
            near ? (3 * (a + 2) * d - 2 * (a + 3)) * d : (3 * a * d - 10 * a) * d + 8 * a;
        t.derivative[k] = derivative * (signed_d < 0 ? -of_weight : of_weight);
      }
    }
    return t;
  }
  static constexpr double kFar = 100;  // pixels: beyond the reach of every mode

  // Calls f(pixel of a channel, the tap of every axis) for the pixels that a point refers to.
  template <typename F>
  void each(const std::array<Taps, kMaxAxes>& t, F&& f) const {
    std::array<size_t, kMaxAxes> at{};
    for (int64_t k = 0; k < combinations(); ++k) {
      int64_t place = 0, rest = k;
      for (int64_t axis = axes; axis-- > 0;) {
        at[static_cast<size_t>(axis)] = static_cast<size_t>(rest % taps);
        rest /= taps;
      }
      for (int64_t axis = 0; axis < axes && place >= 0; ++axis) {
        const int64_t index = t[static_cast<size_t>(axis)].index[at[static_cast<size_t>(axis)]];
        place = index < 0 ? -1 : place * space[static_cast<size_t>(axis)] + index;
      }
      if (place >= 0) f(place, at);
    }
  }

  // The taps of every axis for one point; the coordinates of the point begin with the last axis.
  template <typename T>
  std::array<Taps, kMaxAxes> read(const T* place) const {
    std::array<Taps, kMaxAxes> t;
    for (int64_t axis = 0; axis < axes; ++axis)
      t[static_cast<size_t>(axis)] =
          taps_of(static_cast<double>(place[axes - 1 - axis]), space[static_cast<size_t>(axis)]);
    return t;
  }
  double weight(const std::array<Taps, kMaxAxes>& t, const std::array<size_t, kMaxAxes>& at) const {
    double product = 1;
    for (size_t axis = 0; axis < static_cast<size_t>(axes); ++axis) product *= t[axis].weight[at[axis]];
    return product;
  }

  // The pixels of a point with their weights; returns their number.
  template <typename G, typename T>
  int64_t gather(const G* place, std::array<int64_t, kMaxPixels>& where,
                 std::array<T, kMaxPixels>& weights) const {
    const auto t = read(place);
    int64_t count = 0;
    each(t, [&](int64_t at_pixel, const std::array<size_t, kMaxAxes>& at) {
      where[static_cast<size_t>(count)] = at_pixel;
      weights[static_cast<size_t>(count++)] = static_cast<T>(weight(t, at));
    });
    return count;
  }
  int64_t cost() const { return combinations() * (channels + 8); }

  // Integers are truncated toward zero, as by a cast.
  template <typename T, typename G>
  void forward(const T* x, const G* grid, T* y) const {
    using Sum = std::conditional_t<std::is_floating_point_v<T>, T, double>;
    parallel_for(batch * points, cost(), [&](int64_t begin, int64_t end) {
      std::array<int64_t, kMaxPixels> where;
      std::array<Sum, kMaxPixels> weights;
      for (int64_t p = begin; p < end; ++p) {
        const int64_t count = gather(grid + p * axes, where, weights);
        const T* from = x + p / points * channels * pixels;
        T* to = y + p / points * channels * points + p % points;
        for (int64_t c = 0; c < channels; ++c) {
          Sum sum = 0;
          for (size_t k = 0; k < static_cast<size_t>(count); ++k)
            sum += weights[k] * static_cast<Sum>(from[c * pixels + where[k]]);
          to[c * points] = cast_number<T>(sum);
        }
      }
    });
  }

  // Several points may read one pixel: an image's channels are divided among threads, its points are not.
  template <typename T>
  void backward_image(const T* dy, const T* grid, T* dx) const {
    const int64_t parts =
        std::clamp<int64_t>(max_threads() / std::max<int64_t>(1, batch), 1, std::max<int64_t>(1, channels));
    parallel_for(batch * parts, points * cost() / parts, [&](int64_t begin, int64_t end) {
      std::array<int64_t, kMaxPixels> where;
      std::array<T, kMaxPixels> weights;
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = task / parts, part = task % parts;
        const int64_t first = channels * part / parts, last = channels * (part + 1) / parts;
        T* to = dx + image * channels * pixels;
        const T* from = dy + image * channels * points;
        std::fill(to + first * pixels, to + last * pixels, T(0));
        for (int64_t p = 0; p < points; ++p) {
          const int64_t count = gather(grid + (image * points + p) * axes, where, weights);
          for (int64_t c = first; c < last; ++c)
            for (size_t k = 0; k < static_cast<size_t>(count); ++k)
              to[c * pixels + where[k]] += weights[k] * from[c * points + p];
        }
      }
    });
  }

  template <typename T>
  void backward_grid(const T* dy, const T* x, const T* grid, T* dgrid) const {
    parallel_for(batch * points, 2 * cost(), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const auto t = read(grid + p * axes);
        const T* from = x + p / points * channels * pixels;
        const T* incoming = dy + p / points * channels * points + p % points;
        std::array<double, kMaxAxes> sums{};
        each(t, [&](int64_t at_pixel, const std::array<size_t, kMaxAxes>& at) {
          double product = 0;
          for (int64_t c = 0; c < channels; ++c)
            product +=
                static_cast<double>(incoming[c * points]) * static_cast<double>(from[c * pixels + at_pixel]);
          for (size_t axis = 0; axis < static_cast<size_t>(axes); ++axis) {
            double gradient = product * t[axis].derivative[at[axis]];
            for (size_t other = 0; other < static_cast<size_t>(axes); ++other)
              if (other != axis) gradient *= t[other].weight[at[other]];
            sums[axis] += gradient;
          }
        });
        for (int64_t axis = 0; axis < axes; ++axis)
          dgrid[p * axes + axes - 1 - axis] = static_cast<T>(sums[static_cast<size_t>(axis)]);
      }
    });
  }
};

void shape(ShapeContext& c) { c.output(0, c.dtype(0), Sampler(c, 0, 1).result(c.shape(1))); }

Kernel kernel(KernelContext& c) {
  const Sampler s(c, 0, 1);
  const Slot x = c.in(0), grid = c.in(1), y = c.out(0);
  Kernel kernel;
  const auto make = [&](auto zero) {
    visit_floating(c.dtype(1), [&](auto of_grid) {
      using T = decltype(zero);
      using G = decltype(of_grid);
      kernel = [=](const Frame& f) { s.forward(f.at<const T>(x), f.at<const G>(grid), f.at<T>(y)); };
    });
  };
  if (!visit_types<bool>(c.dtype(0), make) && !visit_wide_numeric(c.dtype(0), make)) c.reject_dtype(0);
  return kernel;
}

// GridSampleGrad(dY, X, grid) → dX, dgrid
void grad_shape(ShapeContext& c) {
  const Shape y = Sampler(c, 1, 2).result(c.shape(2));
  c.expect(wide_of(c.dtype(1)) == wide_of(c.dtype(2)), "X and the grid must have the same type, found ",
           to_string(c.dtype(1)), " and ", to_string(c.dtype(2)));
  c.expect(c.shape(0) == y && c.dtype(0) == c.dtype(1), "the gradient dY must be ", to_string(c.dtype(1)),
           to_string(y), ", found ", to_string(c.dtype(0)), to_string(c.shape(0)));
  c.output(0, c.dtype(1), c.shape(1));
  c.output(1, c.dtype(2), c.shape(2));
}

Kernel grad_kernel(KernelContext& c) {
  const Sampler s(c, 1, 2);
  const Slot dy = c.in(0), x = c.in(1), grid = c.in(2);
  const Slot dx = c.has_output(0) ? c.out(0) : Slot{}, dgrid = c.has_output(1) ? c.out(1) : Slot{};
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) {
        using T = decltype(zero);
        kernel = [=](const Frame& f) {
          if (dx.defined()) s.backward_image(f.at<const T>(dy), f.at<const T>(grid), f.at<T>(dx));
          if (dgrid.defined())
            s.backward_grid(f.at<const T>(dy), f.at<const T>(x), f.at<const T>(grid), f.at<T>(dgrid));
        };
      }))
    c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  const size_t outputs = g.needs(1) ? 2 : 1;
  const auto d =
      g.emit("GridSampleGrad", {g.dy(0), g.x(0), g.x(1)}, outputs, g.node().attributes, kMicrosoft);
  for (size_t i = 0; i < outputs; ++i)
    if (g.needs(i)) g.set(i, d[i]);
}

DType grad_types(const ElementTypes& types, size_t o) { return types[o == 0 ? 1 : 2]; }

ORTRAIN_OPERATOR({.type = "GridSample",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = wide_integers<kernel, Overflow::kSaturates>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GridSampleGrad",
                  .signature = "dY, X, grid -> dX, dgrid?",
                  .rules = {.shape = grad_shape, .element_type = grad_types},
                  .kernels = {.cpu = grad_kernel}});

}  // namespace
}  // namespace ortrain
