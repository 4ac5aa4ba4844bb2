// RoiAlign and MaxRoiPool: regions of an image pooled to one size, and their gradients (com.microsoft
// RoiAlignGrad, MaxRoiPoolGrad). Only X has a gradient, not the regions.
//
// RoiAlign (K. He et al., "Mask R-CNN", 2017): a region is divided into output_height x output_width bins, a
// bin is sampled at a grid of points, and each point reads the four pixels around it with the weights of
// linear interpolation. Mode avg takes the mean of the points; mode max, as ONNX and onnxruntime define it,
// the largest weighted pixel.
//
// MaxRoiPool (R. Girshick, "Fast R-CNN", 2015): the corners are rounded to pixels, and each bin returns its
// largest pixel, or zero if it contains none.
#include <algorithm>
#include <array>
#include <cmath>

#include "op/floating_kernel.h"
#include "op/operator.h"
#include "op/opset.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// The part that RoiAlign and MaxRoiPool share: X [N, C, H, W], `count` regions, bins of the result.
struct Regions {
  int64_t batch, channels, height, width, count, rows, columns;  // rows x columns bins
  double scale;

  Regions(const NodeContext& c, size_t x_at, size_t rois_at, int64_t numbers, int64_t rows_, int64_t columns_)
      : rows(rows_), columns(columns_), scale(static_cast<double>(c.node().float_or("spatial_scale", 1))) {
    const Shape &x = c.shape(x_at), &rois = c.shape(rois_at);
    c.expect(x.size() == 4, "its input X must have shape [N, C, H, W], found ", to_string(x));
    c.expect(rois.size() == 2 && rois[1] == numbers && c.dtype(rois_at) == c.dtype(x_at),
             "the regions must be ", to_string(c.dtype(x_at)), "[number of regions, ", numbers, "], found ",
             to_string(c.dtype(rois_at)), to_string(rois));
    c.expect(rows >= 1 && columns >= 1, "the result must have at least one bin, found ", rows, " x ",
             columns);
    batch = x[0], channels = x[1], height = x[2], width = x[3], count = rois[0];
  }

  int64_t bins() const { return rows * columns; }
  int64_t pixels() const { return height * width; }
  Shape output() const { return {count, channels, rows, columns}; }
};

// The smallest share of work is a bin of all channels. If gradients of several regions may add up in one
// pixel, the channels are divided instead.
template <typename F>
void for_channels(const Regions& r, int64_t cost, F&& f) {
  parallel_for(r.channels, r.count * r.bins() * cost, std::forward<F>(f));
}

// Four pixels and their weights.
struct Point {
  std::array<int64_t, 4> pixel;
  std::array<double, 4> weight;
};

struct Align : Regions {
  bool largest;                                    // mode max
  static constexpr int64_t kMostPoints = 1 << 12;  // of a bin along an axis

  double shift;    // from coordinates to centers of pixels
  int64_t points;  // of a bin along an axis; 0: as many as it has pixels

  Align(const NodeContext& c, size_t x_at)
      : Regions(c, x_at, x_at + 1, 4, c.node().int_or("output_height", 1),
                c.node().int_or("output_width", 1)),
        points(c.node().int_or("sampling_ratio", 0)) {
    const std::string mode = c.node().string_or("mode", "avg");
    c.expect(mode == "avg" || mode == "max", "attribute mode must be avg or max, found '", mode, "'");
    largest = mode == "max";
    // Version 10 has no such attribute and no shift.
    const bool old = c.node().domain.empty() && c.opset() < since::kRoiCoordinates;
    const std::string coordinates =
        c.node().string_or("coordinate_transformation_mode", old ? "output_half_pixel" : "half_pixel");
    c.expect(coordinates == "half_pixel" || coordinates == "output_half_pixel",
             "attribute coordinate_transformation_mode must be half_pixel or output_half_pixel, found '",
             coordinates, "'");
    shift = coordinates == "half_pixel" ? 0.5 : 0;
    c.expect(points >= 0 && points <= kMostPoints, "attribute sampling_ratio must be in [0, ", kMostPoints,
             "], found ", points);
    const size_t images = x_at + 2;
    c.expect(c.dtype(images) == DType::kInt64 && c.shape(images) == Shape{count},
             "batch_indices must be int64[", count, "], found ", to_string(c.dtype(images)),
             to_string(c.shape(images)));
  }

  // A region, placed in the image.
  struct Placed {
    double y, x, bin_height, bin_width;
    int64_t rows, columns;  // points of a bin
    double size() const { return static_cast<double>(std::max<int64_t>(1, rows * columns)); }
  };
  template <typename T>
  Placed placed(const T* roi) const {
    Placed p;
    p.x = static_cast<double>(roi[0]) * scale - shift;
    p.y = static_cast<double>(roi[1]) * scale - shift;
    double w = static_cast<double>(roi[2]) * scale - shift - p.x,
           h = static_cast<double>(roi[3]) * scale - shift - p.y;
    if (shift == 0) w = std::max(w, 1.0), h = std::max(h, 1.0);
    p.bin_height = h / static_cast<double>(rows);
    p.bin_width = w / static_cast<double>(columns);
    p.rows = points > 0 ? points : std::max<int64_t>(0, static_cast<int64_t>(std::ceil(p.bin_height)));
    p.columns = points > 0 ? points : std::max<int64_t>(0, static_cast<int64_t>(std::ceil(p.bin_width)));
    return p;
  }

  template <typename T>
  void check(const std::string& label, const T* rois, const int64_t* images) const {
    constexpr double kLargest = 1e6;  // pixels: for larger regions, sampling would take too long
    for (int64_t r = 0; r < count; ++r) {
      require(images[r] >= 0 && images[r] < batch, ErrorCode::kInvalidArgument, label, ": batch_indices[", r,
              "] must be in [0, ", batch, "), found ", images[r]);
      for (int64_t k = 0; k < 4; ++k)
        require(std::abs(static_cast<double>(rois[4 * r + k]) * scale) <= kLargest,
                ErrorCode::kInvalidArgument, label, ": rois[", r, "] reaches ", rois[4 * r + k],
                ", beyond any image");
      const Placed p = placed(rois + 4 * r);
      require(p.rows <= kMostPoints && p.columns <= kMostPoints, ErrorCode::kInvalidArgument, label,
              ": rois[", r, "] has bins of ", p.bin_height, " x ", p.bin_width,
              " pixels, the largest that are supported have ", kMostPoints, " along an axis");
    }
  }

  // Calls f(point) for the points of a bin.
  template <typename F>
  void each_point(const Placed& p, int64_t bin, F&& f) const {
    const auto along = [](double at, int64_t dim, int64_t& low, int64_t& high) {
      at = std::max(at, 0.0);
      low = std::min(static_cast<int64_t>(at), dim - 1);
      high = std::min(low + 1, dim - 1);
      return low == high ? 0.0 : at - static_cast<double>(low);
    };
    for (int64_t i = 0; i < p.rows; ++i)
      for (int64_t j = 0; j < p.columns; ++j) {
        const auto place = [](double start, double size, int64_t index, int64_t k, int64_t n) {
          return start + size * (static_cast<double>(index) +
                                 (static_cast<double>(k) + 0.5) / static_cast<double>(n));
        };
        const double y = place(p.y, p.bin_height, bin / columns, i, p.rows),
                     x = place(p.x, p.bin_width, bin % columns, j, p.columns);
        Point point{{0, 0, 0, 0}, {0, 0, 0, 0}};
        if (y >= -1 && y <= static_cast<double>(height) && x >= -1 && x <= static_cast<double>(width)) {
          int64_t top, bottom, left, right;
          const double down = along(y, height, top, bottom), over = along(x, width, left, right);
          point.pixel = {top * width + left, top * width + right, bottom * width + left,
                         bottom * width + right};
          point.weight = {(1 - down) * (1 - over), (1 - down) * over, down * (1 - over), down * over};
        }
        f(point);
      }
  }

  // The largest weighted pixel of a bin; returns its value and position.
  template <typename T>
  double find_largest(const Placed& p, int64_t bin, const T* image, int64_t& pixel, double& weight) const {
    double best = 0;
    pixel = -1;
    each_point(p, bin, [&](const Point& point) {
      for (size_t k = 0; k < 4; ++k) {
        const double value = point.weight[k] * static_cast<double>(image[point.pixel[k]]);
        if (pixel >= 0 && !(value > best)) continue;
        best = value;
        pixel = point.pixel[k];
        weight = point.weight[k];
      }
    });
    return best;
  }

  template <typename T>
  void forward(const T* x, const T* rois, const int64_t* images, T* y) const {
    parallel_for(count * bins(), channels * 16, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t r = item / bins(), bin = item % bins();
        const Placed p = placed(rois + 4 * r);
        const T* image = x + images[r] * channels * pixels();
        T* to = y + r * channels * bins() + bin;
        if (largest) {
          int64_t pixel;
          double weight;
          for (int64_t c = 0; c < channels; ++c)
            to[c * bins()] = static_cast<T>(find_largest(p, bin, image + c * pixels(), pixel, weight));
          continue;
        }
        for (int64_t c = 0; c < channels; ++c) to[c * bins()] = T(0);
        each_point(p, bin, [&](const Point& point) {
          for (int64_t c = 0; c < channels; ++c)
            for (size_t k = 0; k < 4; ++k)
              to[c * bins()] +=
                  static_cast<T>(point.weight[k] / p.size()) * image[c * pixels() + point.pixel[k]];
        });
      }
    });
  }

  template <typename T>
  void backward(const T* dy, const T* x, const T* rois, const int64_t* images, T* dx) const {
    for_channels(*this, 16, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < batch; ++n)
        std::fill(dx + (n * channels + begin) * pixels(), dx + (n * channels + end) * pixels(), T(0));
      for (int64_t r = 0; r < count; ++r) {
        const Placed p = placed(rois + 4 * r);
        for (int64_t bin = 0; bin < bins(); ++bin) {
          const T* from = dy + r * channels * bins() + bin;
          const int64_t image = images[r] * channels;
          if (largest) {
            for (int64_t c = begin; c < end; ++c) {
              int64_t pixel;
              double weight;
              find_largest(p, bin, x + (image + c) * pixels(), pixel, weight);
              if (pixel >= 0) dx[(image + c) * pixels() + pixel] += static_cast<T>(weight) * from[c * bins()];
            }
            continue;
          }
          each_point(p, bin, [&](const Point& point) {
            for (int64_t c = begin; c < end; ++c)
              for (size_t k = 0; k < 4; ++k)
                dx[(image + c) * pixels() + point.pixel[k]] +=
                    static_cast<T>(point.weight[k] / p.size()) * from[c * bins()];
          });
        }
      }
    });
  }
};

struct MaxPool : Regions {
  MaxPool(const NodeContext& c, size_t x_at) : Regions(c, x_at, x_at + 1, 5, bin(c, 0), bin(c, 1)) {}
  static int64_t bin(const NodeContext& c, size_t i) {
    const std::vector<int64_t> shape = c.node().ints_or("pooled_shape", {});
    c.expect(shape.size() == 2, "attribute pooled_shape must have 2 values, found ", shape.size());
    return shape[i];
  }

  template <typename T>
  void check(const std::string& label, const T* rois) const {
    for (int64_t r = 0; r < count; ++r) {
      const double image = static_cast<double>(rois[5 * r]);
      require(image >= 0 && image < static_cast<double>(batch) && image == std::floor(image),
              ErrorCode::kInvalidArgument, label, ": rois[", r,
              "] must begin with the index of an image, in [0, ", batch, "), found ", image);
      for (int64_t k = 1; k < 5; ++k)
        require(std::abs(static_cast<double>(rois[5 * r + k]) * scale) <= 1e9, ErrorCode::kInvalidArgument,
                label, ": rois[", r, "] reaches ", rois[5 * r + k], ", beyond any image");
    }
  }

  // Calls f(region, bin, image of the region, range of rows, range of columns). A range is its first index
  // and the index past its last.
  template <typename T, typename F>
  void each_bin(const T* rois, int64_t begin, int64_t end, F&& f) const {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t r = item / bins(), bin = item % bins();
      const T* roi = rois + 5 * r;
      const auto span = [&](int64_t first, int64_t index, int64_t parts, int64_t dim) {
        const double start = std::round(static_cast<double>(roi[first]) * scale),
                     size =
                         std::max(std::round(static_cast<double>(roi[first + 2]) * scale) - start + 1, 1.0) /
                         static_cast<double>(parts);
        const auto inside = [&](double v) {
          return static_cast<int64_t>(std::clamp(start + v, 0.0, static_cast<double>(dim)));
        };
        return std::pair{inside(std::floor(static_cast<double>(index) * size)),
                         inside(std::ceil(static_cast<double>(index + 1) * size))};
      };
      f(r, bin, static_cast<int64_t>(roi[0]), span(2, bin / columns, rows, height),
        span(1, bin % columns, columns, width));
    }
  }

  // The position of the largest pixel; -1 if there is none.
  template <typename T>
  int64_t find_largest(const T* image, std::pair<int64_t, int64_t> y, std::pair<int64_t, int64_t> x) const {
    int64_t best = -1;
    for (int64_t i = y.first; i < y.second; ++i)
      for (int64_t j = x.first; j < x.second; ++j)
        if (best < 0 || image[i * width + j] > image[best]) best = i * width + j;
    return best;
  }

  template <typename T>
  void forward(const T* x, const T* rois, T* y) const {
    parallel_for(count * bins(), channels * 16, [&](int64_t begin, int64_t end) {
      each_bin(rois, begin, end, [&](int64_t r, int64_t bin, int64_t n, auto high, auto wide) {
        for (int64_t c = 0; c < channels; ++c) {
          const T* image = x + (n * channels + c) * pixels();
          const int64_t best = find_largest(image, high, wide);
          y[(r * channels + c) * bins() + bin] = best < 0 ? T(0) : image[best];
        }
      });
    });
  }

  template <typename T>
  void backward(const T* dy, const T* x, const T* rois, T* dx) const {
    for_channels(*this, 16, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < batch; ++n)
        std::fill(dx + (n * channels + begin) * pixels(), dx + (n * channels + end) * pixels(), T(0));
      each_bin(rois, 0, count * bins(), [&](int64_t r, int64_t bin, int64_t n, auto high, auto wide) {
        for (int64_t c = begin; c < end; ++c) {
          const int64_t plane = (n * channels + c) * pixels(), best = find_largest(x + plane, high, wide);
          if (best >= 0) dx[plane + best] += dy[(r * channels + c) * bins() + bin];
        }
      });
    });
  }
};

template <class Pooling>
void shape(ShapeContext& c) {
  c.output(0, c.dtype(0), Pooling(c, 0).output());
}

// dY, and then the inputs of the operator
template <class Pooling>
void grad_shape(ShapeContext& c) {
  const Pooling p(c, 1);
  c.expect(c.shape(0) == p.output() && c.dtype(0) == c.dtype(1), "dY must be ", to_string(c.dtype(1)),
           to_string(p.output()), ", found ", to_string(c.dtype(0)), to_string(c.shape(0)));
  c.output(0, c.dtype(1), c.shape(1));
}

template <bool kBackward>
Kernel align_kernel(KernelContext& c) {
  constexpr size_t kX = kBackward ? 1 : 0;
  const Align a(c, kX);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot dy = c.in(0), x = c.in(kX), rois = c.in(kX + 1), images = c.in(kX + 2), out = c.out(0);
    return Kernel([=, label = c.node().label()](const Frame& f) {
      const T* regions = f.at<const T>(rois);
      a.check(label, regions, f.at<const int64_t>(images));
      if constexpr (kBackward)
        a.backward(f.at<const T>(dy), f.at<const T>(x), regions, f.at<const int64_t>(images), f.at<T>(out));
      else
        a.forward(f.at<const T>(x), regions, f.at<const int64_t>(images), f.at<T>(out));
    });
  });
}

template <bool kBackward>
Kernel pool_kernel(KernelContext& c) {
  constexpr size_t kX = kBackward ? 1 : 0;
  const MaxPool p(c, kX);
  return floating_kernel(c, 0, [&](auto zero) {
    using T = decltype(zero);
    const Slot dy = c.in(0), x = c.in(kX), rois = c.in(kX + 1), out = c.out(0);
    return Kernel([=, label = c.node().label()](const Frame& f) {
      const T* regions = f.at<const T>(rois);
      p.check(label, regions);
      if constexpr (kBackward)
        p.backward(f.at<const T>(dy), f.at<const T>(x), regions, f.at<T>(out));
      else
        p.forward(f.at<const T>(x), regions, f.at<T>(out));
    });
  });
}

void align_gradient(GradientContext& g) {
  Attributes attributes = g.node().attributes;
  if (g.opset() < since::kRoiCoordinates)
    attributes["coordinate_transformation_mode"] = std::string("output_half_pixel");
  if (g.needs(0)) g.set(0, g("RoiAlignGrad", {g.dy(0), g.x(0), g.x(1), g.x(2)}, attributes, kMicrosoft));
}

void pool_gradient(GradientContext& g) {
  if (g.needs(0)) g.set(0, g("MaxRoiPoolGrad", {g.dy(0), g.x(0), g.x(1)}, g.node().attributes, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "RoiAlign",
                  .rules = {.shape = shape<Align>, .gradient = align_gradient},
                  .kernels = {.cpu = align_kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "RoiAlignGrad",
                  .signature = "dY, X, rois, batch_indices -> dX",
                  .rules = {.shape = grad_shape<Align>},
                  .kernels = {.cpu = align_kernel<true>}});
ORTRAIN_OPERATOR({.type = "MaxRoiPool",
                  .rules = {.shape = shape<MaxPool>, .gradient = pool_gradient},
                  .kernels = {.cpu = pool_kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "MaxRoiPoolGrad",
                  .signature = "dY, X, rois -> dX",
                  .rules = {.shape = grad_shape<MaxPool>},
                  .kernels = {.cpu = pool_kernel<true>}});

}  // namespace
}  // namespace ortrain
