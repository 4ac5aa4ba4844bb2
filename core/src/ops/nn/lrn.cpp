// LRN, local response normalization across channels, and LRNGrad (com.microsoft):
//     s = bias + alpha / size Σ x² over the `size` channels around,  y = x / s^beta.
// A. Krizhevsky et al., "ImageNet classification with deep convolutional neural networks", 2012.
#include <algorithm>
#include <cmath>

#include "backend/cpu/tuning.h"
#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "ops/common/decomposed.h"
#include "ops/common/elementwise.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kBlock = tuning::kLrnPiece;

struct Settings {
  int64_t planes, channels, points;  // X is [.., channels, points], planes in all
  int64_t before, after;             // channels of the window before and after the channel itself
  double share, beta, bias;          // share: alpha / size
  UnaryFunction square_root;

  Settings(const NodeContext& c, size_t x_at) {
    const Shape& x = c.shape(x_at);
    c.expect(x.size() >= 3, "its input X must have shape [N, C, D1, ...], found ", to_string(x));
    channels = x[1];
    planes = x[0] * x[1];
    points = element_count(x, 2, x.size());
    const int64_t size = c.node().int_or("size", 0);
    c.expect(size >= 1, "attribute size must be at least 1, found ", size);
    before = (size - 1) / 2;
    after = size / 2;
    share = static_cast<double>(c.node().float_or("alpha", 1e-4f)) / static_cast<double>(size);
    beta = c.node().float_or("beta", 0.75f);
    bias = c.node().float_or("bias", 1);
    square_root = unary::Sqrt(c.dtype(x_at));
  }

  // Calls f(points of x of a channel) for the channels [plane - back, plane + ahead] of the plane's image.
  template <typename F>
  void around(int64_t plane, int64_t back, int64_t ahead, F&& f) const {
    const int64_t image = plane / channels * channels;
    const int64_t first = std::max(image, plane - back), last = std::min(image + channels - 1, plane + ahead);
    for (int64_t other = first; other <= last; ++other) f(other * points);
  }

  // s of one plane.
  template <typename T>
  void sums(const T* x, int64_t plane, T* s) const {
    std::fill(s, s + points, T(0));
    around(plane, before, after, [&](int64_t from) {
      for (int64_t i = 0; i < points; ++i) s[i] += x[from + i] * x[from + i];
    });
    for (int64_t i = 0; i < points; ++i) s[i] = static_cast<T>(bias) + static_cast<T>(share) * s[i];
  }

  // v = v^-beta for the points of a plane; the usual beta = 3/4 is computed by roots.
  template <typename T>
  void powers(T* v) const {
    if (beta == 0.75)
      for (int64_t from = 0; from < points; from += kBlock) {
        const int64_t n = std::min(kBlock, points - from);
        T *root = v + from, fourth[kBlock];
        square_root(root, root, n);
        square_root(root, fourth, n);
        for (int64_t i = 0; i < n; ++i) root[i] = T(1) / (root[i] * fourth[i]);
      }
    else
      for (int64_t i = 0; i < points; ++i) v[i] = std::pow(v[i], static_cast<T>(-beta));
  }
};

constexpr int64_t kCost = 16;  // of one element, in additions

void shape(ShapeContext& c) {
  Settings(c, 0);
  c.output(0, c.dtype(0), c.shape(0));
}

template <typename T>
Kernel forward(KernelContext& c) {
  const Settings s(c, 0);
  const Slot x_slot = c.in(0), y_slot = c.out(0);
  return [=](const Frame& f) {
    const T* x = f.at<const T>(x_slot);
    T* y = f.at<T>(y_slot);
    parallel_for(s.planes, s.points * kCost, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T* from = x + plane * s.points;
        T* to = y + plane * s.points;
        s.sums(x, plane, to);
        s.powers(to);
        for (int64_t i = 0; i < s.points; ++i) to[i] *= from[i];
      }
    });
  };
}

Kernel kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = forward<decltype(zero)>(c); })) c.reject_dtype(0);
  return kernel;
}

void grad_shape(ShapeContext& c) {
  c.expect(c.dtype(0) == c.dtype(1) && c.shape(0) == c.shape(1),
           "dY must have the type and shape of X, found ", to_string(c.dtype(0)), to_string(c.shape(0)),
           " and ", to_string(c.dtype(1)), to_string(c.shape(1)));
  Settings(c, 1);
  c.output(0, c.dtype(0), c.shape(0));
}

// dx = dy s^-beta - 2 beta share x Σ dy x s^(-beta - 1), summed over the channels whose window contains the
// channel of x.
template <typename T>
Kernel backward(KernelContext& c) {
  const Settings s(c, 1);
  const Slot dy_slot = c.in(0), x_slot = c.in(1), dx_slot = c.out(0);
  const size_t bytes = static_cast<size_t>(c.size(1)) * sizeof(T);
  const Slot terms_slot = c.scratch(bytes);
  return [=](const Frame& f) {
    const T *dy = f.at<const T>(dy_slot), *x = f.at<const T>(x_slot);
    T *dx = f.at<T>(dx_slot), *terms = f.at<T>(terms_slot);
    parallel_for(s.planes, s.points * kCost, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t from = plane * s.points;
        T *term = terms + from, *to = dx + from;
        s.sums(x, plane, term);
        std::copy(term, term + s.points, to);
        s.powers(to);
        for (int64_t i = 0; i < s.points; ++i) {
          to[i] *= dy[from + i];
          term[i] = to[i] * x[from + i] / term[i];
        }
      }
    });
    const T factor = static_cast<T>(2 * s.beta * s.share);
    parallel_for(s.planes, s.points * kCost, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t from = plane * s.points;
        s.around(plane, s.after, s.before, [&](int64_t other) {
          for (int64_t i = 0; i < s.points; ++i) dx[from + i] -= factor * x[from + i] * terms[other + i];
        });
      }
    });
  };
}

Kernel grad_kernel(KernelContext& c) {
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) { kernel = backward<decltype(zero)>(c); }))
    c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  g.set(0, g("LRNGrad", {g.dy(0), g.x(0)}, g.node().attributes, kMicrosoft));
}

// The formula of the gradient as separate operators. The sum over neighbouring channels is a product with a
// band matrix W of ones: channel c of the result takes channel k where W[k, c] is 1.
void decompose_grad(DecompositionContext& e) {
  const int64_t rank = need_rank(e, e.x(1)), size = e.node().int_or("size", 0);
  const int64_t channels = rank < 3 ? -1 : (*e.dims(e.x(1)))[1].value;
  constexpr int64_t kMostChannels = 1 << 14;  // the matrix has as many rows and columns
  if (channels < 0 || channels > kMostChannels || size < 1)
    e.reject("its derivative needs a declared number of channels of X, at most ", kMostChannels,
             ", and attribute size of at least 1; found ",
             channels < 0 ? "an unknown number of channels" : concat(counted(channels, "channel")),
             " and size ", size);
  Tensor band(DType::kDouble, {channels, channels});
  for (int64_t k = 0; k < channels; ++k)
    for (int64_t c = 0; c < channels; ++c)
      band.data<double>()[k * channels + c] = k >= c - (size - 1) / 2 && k <= c + size / 2 ? 1 : 0;
  const Expression dy(e, e.x(0)), x(e, e.x(1));
  const Name w = cast_like(e, e.constant(band), x),
             across = e("Transpose", {w}, {{"perm", std::vector<int64_t>{1, 0}}});
  const auto around = [&](const Expression& v, const std::string& matrix) {
    return Expression(e, channels_first(e, e("MatMul", {channels_last(e, v, rank), matrix})));
  };
  const double share = static_cast<double>(e.node().float_or("alpha", 1e-4f)) / static_cast<double>(size),
               beta = static_cast<double>(e.node().float_or("beta", 0.75f));
  const Expression s = share * around(x * x, w) + static_cast<double>(e.node().float_or("bias", 1));
  const auto power = [&](double exponent) { return s.call("Pow", s.number(exponent)); };
  e.set(0, dy * power(-beta) - 2 * beta * share * x * around(dy * x * power(-beta - 1), across));
}

ORTRAIN_OPERATOR({.type = "LRN",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "LRNGrad",
                  .signature = "dY, X -> dX",
                  .rules = {.shape = grad_shape, .decompose = decompose_grad},
                  .kernels = {.cpu = grad_kernel}});

}  // namespace
}  // namespace ortrain
