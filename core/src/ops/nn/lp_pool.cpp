// LpPool, GlobalLpPool and LpPoolGrad (com.microsoft): the norm of each window, y = (Σ |x|^p)^(1/p), to which
// padding adds nothing.
#include <algorithm>
#include <cmath>

#include "geometry/sliding_window.h"
#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "runtime/checked.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

int64_t power_of(const NodeContext& c) {
  const int64_t p = c.node().int_or("p", 2);
  c.expect(p >= 1, "attribute p must be at least 1, found ", p);
  return p;
}

struct Pool {
  int64_t planes, input, output;  // planes, and elements per plane
  double p;
  Window window;  // three axes

  // For X of the given shape. The attributes of the node give the windows; if `global`, one window is all of
  // X.
  Pool(const NodeContext& c, const Shape& x, bool global)
      : p(static_cast<double>(power_of(c))), window(three_axes(read(c, x, global))) {
    planes = x[0] * x[1];
    input = window[0].input * window[1].input * window[2].input;
    output = window[0].output * window[1].output * window[2].output;
  }

  static Window read(const NodeContext& c, const Shape& x, bool global) {
    if (!global) return read_window(c, x);
    WindowAxis all;
    all.input = all.kernel = element_count(x, 2, x.size());
    return {all};
  }

  // Calls f(input element) for the elements of window `o` of a plane.
  template <typename F>
  void elements(int64_t o, F&& f) const {
    const WindowAxis &d = window[0], &h = window[1], &w = window[2];
    const int64_t ow = o % w.output, oh = o / w.output % h.output, od = o / w.output / h.output;
    for (int64_t id = first(d, od); id < end(d, od); id += d.dilation)
      for (int64_t ih = first(h, oh); ih < end(h, oh); ih += h.dilation)
        for (int64_t iw = first(w, ow); iw < end(w, ow); iw += w.dilation)
          f((id * h.input + ih) * w.input + iw);
  }
  // The first element of window `o` within the input, and the end of the window.
  static int64_t first(const WindowAxis& a, int64_t o) {
    const int64_t start = o * a.stride - a.before;
    return start >= 0 ? start : start + (a.dilation - 1 - start) / a.dilation * a.dilation;
  }
  static int64_t end(const WindowAxis& a, int64_t o) {
    return std::min(a.input, o * a.stride - a.before + a.span());
  }
  int64_t cost() const {
    int64_t points = 2;
    for (const WindowAxis& a : window) points *= std::min(a.kernel, a.input);
    return capped_product({output, points});
  }

  template <typename T>
  void forward(const T* x, T* y) const {
    parallel_for(planes, cost(), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane)
        for (int64_t o = 0; o < output; ++o) {
          const T* from = x + plane * input;
          double sum = 0;
          elements(o, [&](int64_t i) {
            const double v = std::abs(static_cast<double>(from[i]));
            sum += p == 1 ? v : p == 2 ? v * v : std::pow(v, p);
          });
          y[plane * output + o] = static_cast<T>(p == 1   ? sum
                                                 : p == 2 ? std::sqrt(sum)
                                                          : std::pow(sum, 1 / p));
        }
    });
  }

  // dx = dy sign(x) (|x| / y)^(p - 1), summed over the windows that hold x.
  template <typename T>
  void backward(const T* dy, const T* x, const T* y, T* dx) const {
    parallel_for(planes, cost(), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T* from = x + plane * input;
        T* to = dx + plane * input;
        std::fill(to, to + input, T(0));
        for (int64_t o = 0; o < output; ++o) {
          const T norm = y[plane * output + o], incoming = dy[plane * output + o];
          if (norm == T(0)) continue;  // the whole window is 0
          elements(o, [&](int64_t i) {
            const T ratio = from[i] / norm;
            if (p == 1)
              to[i] += from[i] > T(0) ? incoming : from[i] < T(0) ? -incoming : T(0);
            else if (p == 2)
              to[i] += incoming * ratio;
            else
              to[i] += incoming * std::copysign(std::pow(std::abs(ratio), static_cast<T>(p - 1)), ratio);
          });
        }
      }
    });
  }
};

// Global: one window over the whole plane.
template <bool Global>
Shape result_shape(const NodeContext& c, const Shape& x) {
  c.expect(x.size() >= 3, "its input X must have shape [N, C, D1, ...], found ", to_string(x));
  if (!Global) return output_shape(x[0], x[1], read_window(c, x));
  Shape y(x.size(), 1);
  y[0] = x[0];
  y[1] = x[1];
  return y;
}

template <bool Global>
void shape(ShapeContext& c) {
  power_of(c);
  check_window_attributes(c);
  c.output(0, c.dtype(0), result_shape<Global>(c, c.shape(0)));
}

template <bool Global>
Kernel kernel(KernelContext& c) {
  const Pool pool(c, c.shape(0), Global);
  const Slot x = c.in(0), y = c.out(0);
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) {
        using T = decltype(zero);
        kernel = [=](const Frame& f) { pool.forward(f.at<const T>(x), f.at<T>(y)); };
      }))
    c.reject_dtype(0);
  return kernel;
}

// LpPoolGrad(dY, X, Y), GlobalLpPoolGrad(dY, X, Y)
template <bool Global>
void grad_shape(ShapeContext& c) {
  power_of(c);
  const Shape y = result_shape<Global>(c, c.shape(1));
  c.expect(c.shape(0) == y && c.shape(2) == y, "dY and Y must have shape ", to_string(y), ", found ",
           to_string(c.shape(0)), " and ", to_string(c.shape(2)));
  c.expect(c.dtype(0) == c.dtype(1) && c.dtype(1) == c.dtype(2),
           "dY, X and Y must have the same type, found ", to_string(c.dtype(0)), ", ", to_string(c.dtype(1)),
           " and ", to_string(c.dtype(2)));
  c.output(0, c.dtype(1), c.shape(1));
}

template <bool Global>
Kernel grad_kernel(KernelContext& c) {
  const Pool pool(c, c.shape(1), Global);
  const Slot dy = c.in(0), x = c.in(1), y = c.in(2), dx = c.out(0);
  Kernel kernel;
  if (!visit_floating(c.dtype(0), [&](auto zero) {
        using T = decltype(zero);
        kernel = [=](const Frame& f) {
          pool.backward(f.at<const T>(dy), f.at<const T>(x), f.at<const T>(y), f.at<T>(dx));
        };
      }))
    c.reject_dtype(0);
  return kernel;
}

template <bool Global>
void gradient(GradientContext& g) {
  g.set(0, g(Global ? "GlobalLpPoolGrad" : "LpPoolGrad", {g.dy(0), g.x(0), g.y(0)}, g.node().attributes,
             kMicrosoft));
}

// dx = sign(x) |x|^(p - 1) Σ dy / y^(p - 1), summed over the windows that hold x; 0 where y is 0. That sum is
// the gradient of an average times the number of averaged elements, which is the norm of ones for p = 1.
template <bool Global>
void decompose_grad(DecompositionContext& e) {
  const double p = static_cast<double>(e.node().int_or("p", 2));
  const Expression dy(e, e.x(0)), x(e, e.x(1)), y(e, e.x(2));
  const Expression empty = y.call("Equal", y.number(0));
  const Expression ratio = p == 1 ? dy : dy / empty.choose(y.number(1), y).call("Pow", y.number(p - 1));
  Expression sums = empty.choose(y.number(0), ratio);
  if (!Global) {
    Attributes windows = e.node().attributes;
    windows.erase("p");
    Attributes counting = windows;
    counting["p"] = int64_t{1};
    const Name shape = e("Shape", {x});
    const Expression ones(e, e("Expand", {x.number(1), shape}));
    e.state_like(ones, x);
    sums = sums * ones.call("LpPool", counting);
    sums = Expression(e, e("AveragePoolGrad", {sums, shape}, windows));
    e.state_like(sums, x);
  }
  if (p == 1)
    e.set(0, x.call("Sign") * sums);
  else if (p == 2)
    e.set(0, x * sums);
  else
    e.set(0, x.call("Sign") * x.call("Abs").call("Pow", x.number(p - 1)) * sums);
}

ORTRAIN_OPERATOR({.type = "LpPool",
                  .rules = {.shape = shape<false>, .gradient = gradient<false>},
                  .traits = {.since = 2},
                  .kernels = {.cpu = kernel<false>}});
ORTRAIN_OPERATOR({.type = "GlobalLpPool",
                  .rules = {.shape = shape<true>, .gradient = gradient<true>},
                  .traits = {.since = 2},
                  .kernels = {.cpu = kernel<true>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "LpPoolGrad",
                  .signature = "dY, X, Y -> dX",
                  .rules = {.shape = grad_shape<false>, .decompose = decompose_grad<false>},
                  .kernels = {.cpu = grad_kernel<false>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GlobalLpPoolGrad",
                  .signature = "dY, X, Y -> dX",
                  .rules = {.shape = grad_shape<true>, .decompose = decompose_grad<true>},
                  .kernels = {.cpu = grad_kernel<true>}});

}  // namespace
}  // namespace ortrain
