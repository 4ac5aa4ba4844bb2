// AffineGrid: the point from which an affine map takes each pixel of an image, grid = theta [x, y, (z,) 1]ᵀ
// over the pixels' coordinates, which run from -1 to 1; and AffineGridGrad (com.microsoft).
//
// Compiled for size: sampling at these points takes much longer (CMakeLists.txt).
#include <memory>

#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

struct Grid {
  int64_t batch, axes, points;
  Shape space;
  bool align_corners;

  // The dimensions [N, C, (D,) H, W] are input 1.
  explicit Grid(const NodeContext& c) : align_corners(c.node().int_or("align_corners", 0) != 0) {
    const std::vector<int64_t> size = constant_ints(c, 1);
    c.expect(size.size() == 4 || size.size() == 5, "size must be [N, C, H, W] or [N, C, D, H, W], found ",
             to_string(size));
    for (const int64_t dim : size) c.expect(dim >= 0, "size ", to_string(size), " has a negative dimension");
    batch = size[0];
    space.assign(size.begin() + 2, size.end());
    axes = static_cast<int64_t>(space.size());
    points = element_count(space);
  }
  Shape theta() const { return {batch, axes, axes + 1}; }
  Shape grid() const {
    Shape shape = {batch};
    shape.insert(shape.end(), space.begin(), space.end());
    shape.push_back(axes);
    return shape;
  }

  // The homogeneous coordinates of every pixel, x first: [points, axes + 1].
  template <typename T>
  std::shared_ptr<const std::vector<T>> coordinates() const {
    auto values = std::make_shared<std::vector<T>>();
    for (int64_t p = 0; batch > 0 && p < points; ++p) {
      int64_t rest = p;
      for (size_t i = space.size(); i-- > 0;) {
        const double at = static_cast<double>(rest % space[i]), n = static_cast<double>(space[i]);
        rest /= space[i];
        // A single pixel is at the center.
        const double place = !align_corners ? (2 * at + 1) / n - 1 : space[i] == 1 ? 0 : 2 * at / (n - 1) - 1;
        values->push_back(static_cast<T>(place));
      }
      values->push_back(T(1));
    }
    return values;
  }
};

void shape(ShapeContext& c) {
  const Grid g(c);
  c.expect(c.shape(0) == g.theta(), "theta must have shape ", to_string(g.theta()), ", found ",
           to_string(c.shape(0)));
  c.output(0, c.dtype(0), g.grid());
}

Kernel kernel(KernelContext& c) {
  const Grid g(c);
  const Slot theta_slot = c.in(0), out = c.out(0);
  Kernel kernel;
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=, places = g.coordinates<T>()](const Frame& f) {
      parallel_for(g.batch * g.points, g.axes * g.axes * 2, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T* theta = f.at<const T>(theta_slot) + i / g.points * g.axes * (g.axes + 1);
          const T* place = places->data() + i % g.points * (g.axes + 1);
          T* to = f.at<T>(out) + i * g.axes;
          for (int64_t r = 0; r < g.axes; ++r) {
            T sum = 0;
            for (int64_t k = 0; k <= g.axes; ++k) sum += theta[r * (g.axes + 1) + k] * place[k];
            to[r] = sum;
          }
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// AffineGridGrad(dGrid, size) → dtheta
void grad_shape(ShapeContext& c) {
  const Grid g(c);
  c.expect(c.shape(0) == g.grid(), "the gradient of the grid must have shape ", to_string(g.grid()),
           ", found ", to_string(c.shape(0)));
  c.output(0, c.dtype(0), g.theta());
}

Kernel grad_kernel(KernelContext& c) {
  const Grid g(c);
  const Slot in = c.in(0), out = c.out(0);
  Kernel kernel;
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=, places = g.coordinates<T>()](const Frame& f) {
      parallel_for(g.batch * g.axes, g.points * g.axes * 2, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const T* from = f.at<const T>(in) + row / g.axes * g.points * g.axes + row % g.axes;
          double sums[4] = {};
          for (int64_t p = 0; p < g.points; ++p)
            for (int64_t k = 0; k <= g.axes; ++k)
              sums[k] += static_cast<double>(from[p * g.axes]) *
                         static_cast<double>((*places)[static_cast<size_t>(p * (g.axes + 1) + k)]);
          for (int64_t k = 0; k <= g.axes; ++k)
            f.at<T>(out)[row * (g.axes + 1) + k] = static_cast<T>(sums[k]);
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  g.set(0, g("AffineGridGrad", {g.dy(0), g.x(1)}, g.node().attributes, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "AffineGrid",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel}});
void grad_gradient(GradientContext& g) { g.set(0, g("AffineGrid", {g.dy(0), g.x(1)}, g.node().attributes)); }

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "AffineGridGrad",
                  .signature = "dY, size -> dtheta",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient},
                  .kernels = {.cpu = grad_kernel}});

// With operators of ONNX: dtheta = dYᵀ [places, 1], where `places` is the grid of the identity.
void grad_form(DecompositionContext& e) {
  const int64_t axes = need_rank(e, e.x(0)) - 2;
  if (axes != 2 && axes != 3) e.reject("the gradient of a grid must have rank 4 or 5, found ", axes + 2);
  Tensor identity(DType::kDouble, {1, axes, axes + 1});
  std::fill_n(identity.data<double>(), axes * (axes + 1), 0.0);
  for (int64_t i = 0; i < axes; ++i) identity.data<double>()[i * (axes + 2)] = 1;
  const Name size = e("Concat", {e.int64s({1}), e("Slice", {e.x(1), e.int64s({1}), e.int64s({INT64_MAX})})},
                      {{"axis", int64_t{0}}});
  const Name grid = e("AffineGrid", {cast_like(e, e.constant(identity), e.x(0)), size}, e.node().attributes);
  const Name places = e("Reshape", {grid, e.int64s({1, -1, axes})});
  const Name ones =
      e("Expand",
        {e.scalar_like(e.x(0), 1),
         e("Concat", {e("Slice", {e("Shape", {places}), e.int64s({0}), e.int64s({2})}), e.int64s({1})},
           {{"axis", int64_t{0}}})});
  const Name dy = e("Reshape", {e.x(0), e.int64s({0, -1, axes})});
  e.set(0, e("MatMul", {e("Transpose", {dy}, {{"perm", std::vector<int64_t>{0, 2, 1}}}),
                        e("Concat", {places, ones}, {{"axis", int64_t{2}}})}));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "AffineGridGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
