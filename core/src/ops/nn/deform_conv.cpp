// DeformConv and DeformConvGrad (com.microsoft): convolution with deformed windows. J. Dai et al.,
// "Deformable convolutional networks", 2017; with a mask: X. Zhu et al., "Deformable ConvNets v2", 2019.
//
//     Y[n, m, o] = B[m] + Σ_c Σ_k W[m, c, k] mask[n, g, k, o] X[n, c](o stride - pad + k dilation + offset[n,
//     g, k, :, o])
//
// X between its pixels is the linear interpolation, zero outside; g is the offset group of channel c. With
// the sampled and masked windows as columns of a matrix, V [C/group · K, output], this is a product Y = W V
// as in any convolution, dW = dY Vᵀ, dV = Wᵀ dY, and dV goes back through the sampling to X, offset and mask.
// One to three spatial axes.
#include <algorithm>
#include <array>
#include <cmath>

#include "backend/cpu/matmul/product.h"
#include "geometry/sliding_window.h"
#include "op/floating_kernel.h"
#include "op/operator.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr size_t kMaxAxes = 3, kCorners = 8;

// The pixels around one sampled point with their weights, and the weights' derivatives along each axis.
struct Point {
  size_t count = 0;
  std::array<int64_t, kCorners> pixel;
  std::array<double, kCorners> weight;
  std::array<std::array<double, kMaxAxes>, kCorners> derivative;
};

// Inputs X, W, offset, B and mask from `first` on.
struct Deformed {
  int64_t batch, channels, filters, groups, offset_groups, points, taps, pixels;
  size_t axes;
  Window window;
  bool masked;

  Deformed(const NodeContext& c, size_t first)
      : groups(c.node().int_or("group", 1)), offset_groups(c.node().int_or("offset_group", 1)) {
    const Shape &x = c.shape(first), &w = c.shape(first + 1);
    window = read_convolution(c, x, w);
    axes = window.size();
    batch = x[0], channels = x[1], filters = w[0];
    pixels = element_count(x, 2, x.size());
    points = taps = 1;
    points = element_count(output_shape(1, 1, window));
    for (const WindowAxis& a : window) taps *= a.kernel;
    c.expect(offset_groups >= 1 && channels % offset_groups == 0, "its ", counted(channels, "channel"),
             agreeing(channels, " is", " are"), " not divisible by attribute offset_group = ", offset_groups);
    masked = c.has_input(first + 4);
    c.expect(offset_groups <= std::max<int64_t>(channels, 1), "attribute offset_group is ", offset_groups,
             ", but it has ", counted(channels, "channel"));
    element_count(
        {channels, taps, std::max<int64_t>(points, 1), static_cast<int64_t>(axes)});  // rejects overflow
    const auto expect = [&](size_t i, const char* what, const Shape& shape) {
      c.expect(c.shape(i) == shape && c.dtype(i) == c.dtype(first), "the ", what, " must be ",
               to_string(c.dtype(first)), to_string(shape), ", found ", to_string(c.dtype(i)),
               to_string(c.shape(i)));
    };
    expect(first + 1, "weights W", w);
    expect(first + 2, "offsets",
           output_shape(batch, offset_groups * taps * static_cast<int64_t>(axes), window));
    if (c.has_input(first + 3)) expect(first + 3, "bias B", {filters});
    if (masked) expect(first + 4, "mask", output_shape(batch, offset_groups * taps, window));
  }

  Shape output() const { return output_shape(batch, filters, window); }
  int64_t rows() const { return channels / groups * taps; }  // of the columns of a group
  int64_t columns_size() const { return channels * taps * points; }
  int64_t channels_of_offset() const { return channels / offset_groups; }

  // The point that tap k of window o samples in image n, for offset group g. `offset` holds all offsets.
  template <typename T>
  Point sample(const T* offset, int64_t n, int64_t g, int64_t k, int64_t o) const {
    std::array<int64_t, kMaxAxes> low;
    std::array<double, kMaxAxes> rest;
    const T* own = offset + ((n * offset_groups + g) * taps + k) * static_cast<int64_t>(axes) * points + o;
    Point p;
    int64_t tap = k, place = o;
    for (size_t d = axes; d-- > 0;) {
      const WindowAxis& a = window[d];
      const double at =
          static_cast<double>(place % a.output * a.stride - a.before + tap % a.kernel * a.dilation) +
          static_cast<double>(own[static_cast<int64_t>(d) * points]);
      place /= a.output;
      tap /= a.kernel;
      if (!(at > -1 && at < static_cast<double>(a.input))) return p;  // all corners are outside
      low[d] = static_cast<int64_t>(std::floor(at));
      rest[d] = at - static_cast<double>(low[d]);
    }
    for (size_t corner = 0; corner < size_t{1} << axes; ++corner) {
      int64_t pixel = 0;
      double weight = 1;
      std::array<double, kMaxAxes> derivative{1, 1, 1};
      bool inside = true;
      for (size_t d = 0; d < axes; ++d) {
        const bool upper = (corner >> d & 1) != 0;
        const int64_t at = low[d] + upper;
        inside &= at >= 0 && at < window[d].input;
        pixel = pixel * window[d].input + at;
        const double along = upper ? rest[d] : 1 - rest[d];
        weight *= along;
        for (size_t other = 0; other < axes; ++other)
          derivative[other] *= other == d ? (upper ? 1 : -1) : along;
      }
      if (!inside) continue;
      p.pixel[p.count] = pixel;
      p.weight[p.count] = weight;
      p.derivative[p.count++] = derivative;
    }
    return p;
  }

  template <typename T>
  T mask_at(const T* mask, int64_t n, int64_t g, int64_t k, int64_t o) const {
    return mask ? mask[((n * offset_groups + g) * taps + k) * points + o] : T(1);
  }

  // The columns [C K, output] of image n.
  template <typename T>
  void to_columns(int64_t n, const T* x, const T* offset, const T* mask, T* columns) const {
    const int64_t own = channels_of_offset();
    parallel_for(offset_groups * taps, points * (own + 4) * 8, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t g = item / taps, k = item % taps;
        for (int64_t o = 0; o < points; ++o) {
          const Point p = sample(offset, n, g, k, o);
          const T m = mask_at(mask, n, g, k, o);
          for (int64_t c = g * own; c < (g + 1) * own; ++c) {
            const T* image = x + (n * channels + c) * pixels;
            T sum = 0;
            for (size_t i = 0; i < p.count; ++i) sum += static_cast<T>(p.weight[i]) * image[p.pixel[i]];
            columns[(c * taps + k) * points + o] = m * sum;
          }
        }
      }
    });
  }

  // The gradients of image n from the gradients of its columns. A gradient that is not requested is null.
  template <typename T>
  void from_columns(int64_t n, const T* columns, const T* x, const T* offset, const T* mask, T* dx,
                    T* doffset, T* dmask) const {
    const int64_t own = channels_of_offset();
    // Channels of one offset group write to their own images; several taps may write to the same pixel.
    parallel_for(offset_groups, taps * points * (own + 4) * 16, [&](int64_t begin, int64_t end) {
      if (dx)
        std::fill(dx + (n * channels + begin * own) * pixels, dx + (n * channels + end * own) * pixels, T(0));
      for (int64_t item = begin * taps; item < end * taps; ++item) {
        const int64_t g = item / taps, k = item % taps, row = (n * offset_groups + g) * taps + k;
        for (int64_t o = 0; o < points; ++o) {
          const Point p = sample(offset, n, g, k, o);
          const T m = mask_at(mask, n, g, k, o);
          std::array<double, kMaxAxes> derivatives{};
          double masked_sum = 0;
          for (int64_t c = g * own; c < (g + 1) * own; ++c) {
            const int64_t plane = (n * channels + c) * pixels;
            const T dv = columns[(c * taps + k) * points + o];
            for (size_t i = 0; i < p.count; ++i) {
              const int64_t at = plane + p.pixel[i];
              if (dx) dx[at] += dv * m * static_cast<T>(p.weight[i]);
              const double part = static_cast<double>(dv) * static_cast<double>(x[at]);
              masked_sum += part * p.weight[i];
              for (size_t d = 0; d < axes; ++d) derivatives[d] += part * p.derivative[i][d];
            }
          }
          for (size_t d = 0; doffset && d < axes; ++d)
            doffset[(row * static_cast<int64_t>(axes) + static_cast<int64_t>(d)) * points + o] =
                static_cast<T>(derivatives[d] * static_cast<double>(m));
          if (dmask) dmask[row * points + o] = static_cast<T>(masked_sum);
        }
      }
    });
  }
};

void shape(ShapeContext& c) {
  check_window_attributes(c);
  c.output(0, c.dtype(0), Deformed(c, 0).output());
}

Slot optional_input(KernelContext& c, size_t i) { return c.has_input(i) ? c.in(i) : Slot{}; }

Kernel kernel(KernelContext& c) {
  const Deformed s(c, 0);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot x = c.in(0), w = c.in(1), offset = c.in(2), bias = optional_input(c, 3),
               mask = optional_input(c, 4), y = c.out(0);
    const Slot columns = c.scratch(static_cast<size_t>(s.columns_size()) * sizeof(T));
    return Kernel([=](const Frame& f) {
      const int64_t filters = s.filters / s.groups;
      for (int64_t n = 0; n < s.batch; ++n) {
        T* v = f.at<T>(columns);
        s.to_columns<T>(n, f.at<T>(x), f.at<T>(offset), f.at_or_null<T>(mask), v);
        T* to = f.at<T>(y) + n * s.filters * s.points;
        for (int64_t m = 0; m < s.filters; ++m)
          std::fill(to + m * s.points, to + (m + 1) * s.points, bias.defined() ? f.at<T>(bias)[m] : T(0));
        for (int64_t g = 0; g < s.groups; ++g)
          threaded_product<T>(filters, s.points, s.rows(), {f.at<T>(w) + g * filters * s.rows(), s.rows(), 1},
                              {v + g * s.rows() * s.points, s.points, 1}, T(1), to + g * filters * s.points,
                              s.points);
      }
    });
  });
}

// DeformConvGrad(dY, X, W, offset, B?, mask?) → dX, dW, doffset, dmask
void grad_shape(ShapeContext& c) {
  const Deformed s(c, 1);
  c.expect(c.shape(0) == s.output() && c.dtype(0) == c.dtype(1), "dY must be ", to_string(c.dtype(1)),
           to_string(s.output()), ", found ", to_string(c.dtype(0)), to_string(c.shape(0)));
  for (size_t o = 0; o < 3; ++o)
    if (c.has_output(o)) c.output(o, c.dtype(1), c.shape(1 + o));
  if (c.has_output(3)) c.output(3, c.dtype(1), c.shape(5));
}

Kernel grad_kernel(KernelContext& c) {
  const Deformed s(c, 1);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot dy = c.in(0), x = c.in(1), w = c.in(2), offset = c.in(3), mask = optional_input(c, 5);
    const auto wanted = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
    const Slot dx = wanted(0), dw = wanted(1), doffset = wanted(2), dmask = wanted(3);
    const Slot columns = c.scratch(static_cast<size_t>(s.columns_size()) * sizeof(T));
    return Kernel([=](const Frame& f) {
      const int64_t filters = s.filters / s.groups, rows = s.rows();
      T* v = f.at<T>(columns);
      if (dw.defined()) std::fill_n(f.at<T>(dw), s.filters * rows, T(0));
      for (int64_t n = 0; n < s.batch; ++n) {
        const T* incoming = f.at<T>(dy) + n * s.filters * s.points;
        if (dw.defined()) {
          s.to_columns<T>(n, f.at<T>(x), f.at<T>(offset), f.at_or_null<T>(mask), v);
          for (int64_t g = 0; g < s.groups; ++g)
            threaded_product<T>(filters, rows, s.points, {incoming + g * filters * s.points, s.points, 1},
                                {v + g * rows * s.points, 1, s.points}, T(1),
                                f.at<T>(dw) + g * filters * rows, rows);
        }
        if (!dx.defined() && !doffset.defined() && !dmask.defined()) continue;
        for (int64_t g = 0; g < s.groups; ++g)
          threaded_product<T>(rows, s.points, filters, {f.at<T>(w) + g * filters * rows, 1, rows},
                              {incoming + g * filters * s.points, s.points, 1}, T(0), v + g * rows * s.points,
                              s.points);
        s.from_columns<T>(n, v, f.at<T>(x), f.at<T>(offset), f.at_or_null<T>(mask), f.at_or_null<T>(dx),
                          f.at_or_null<T>(doffset), f.at_or_null<T>(dmask));
      }
    });
  });
}

// dB sums dY over batch and space.
void gradient(GradientContext& g) {
  Names inputs = {g.dy(0)};
  for (size_t i = 0; i < g.node().inputs.size(); ++i) inputs.push_back(g.x(i));
  const bool mask = g.has_x(4) && g.needs(4);
  if (g.needs(0) || g.needs(1) || g.needs(2) || mask) {
    const auto d = g.emit("DeformConvGrad", inputs, mask ? 4 : 3, g.node().attributes, kMicrosoft);
    for (size_t i = 0; i < 3; ++i)
      if (g.needs(i)) g.set(i, d[i]);
    if (mask) g.set(4, d[3]);
  }
  if (g.has_x(3) && g.needs(3)) {
    const auto rank = g.rank(g.x(0));
    if (!rank) g.reject("the gradient of its bias needs an input of known rank");
    std::vector<int64_t> axes = {0};
    for (int64_t axis = 2; axis < *rank; ++axis) axes.push_back(axis);
    g.set(3, g.reduce_sum(g.dy(0), axes, false));
  }
}

ORTRAIN_OPERATOR({.type = "DeformConv",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "DeformConvGrad",
                  .signature = "dY, X, W, offset, B?, mask? -> dX, dW, doffset, dmask?",
                  .rules = {.shape = grad_shape},
                  .kernels = {.cpu = grad_kernel}});

}  // namespace
}  // namespace ortrain
