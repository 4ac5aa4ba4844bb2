// CumProd: running products along an axis; exclusive leaves the element itself out, reverse runs from the
// end. CumProdGrad (com.microsoft).
#include "backend/cpu/elementwise/integers.h"
#include "op/standard_form.h"
#include "op/wide_integers.h"
#include "ops/common/scan_body.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// Calls f(first element, step, length) for every line along the axis, in the order of the products.
template <typename F>
void for_each_line(const Shape& dims, size_t axis, bool reverse, F&& f) {
  const int64_t length = dims[axis], inner = element_count(dims, axis + 1, dims.size());
  if (length == 0) return;
  parallel_for(element_count(dims, 0, axis) * inner, 2 * length, [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t start = line / inner * length * inner + line % inner;
      f(reverse ? start + (length - 1) * inner : start, reverse ? -inner : inner, length);
    }
  });
}

struct Settings {
  bool exclusive, reverse, wide;
  std::string label;

  // The axis is input `at`.
  Settings(const NodeContext& c, size_t at)
      : exclusive(c.node().int_or("exclusive", 0) != 0),
        reverse(c.node().int_or("reverse", 0) != 0),
        wide(c.dtype(at) == DType::kInt64),
        label(c.node().label()) {
    c.expect(c.size(at) == 1 && (wide || c.dtype(at) == DType::kInt32), "the axis (input ", at,
             ") must be a single int32 or int64, found ", to_string(c.dtype(at)), to_string(c.shape(at)));
  }
  size_t axis(const Frame& f, Slot slot, const Shape& dims) const {
    const int64_t given = wide ? *f.at<int64_t>(slot) : *f.at<int32_t>(slot);
    return static_cast<size_t>(normalize_axis(given, static_cast<int64_t>(dims.size()), label));
  }
};

void shape(ShapeContext& c) {
  c.expect(c.rank(0) >= 1, "its input is a scalar and has no axis");
  Settings(c, 1);
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel kernel(KernelContext& c) {
  const Settings s(c, 1);
  const Shape dims = c.shape(0);
  const Slot in = c.in(0), axis = c.in(1), out = c.out(0);
  Kernel kernel;
  const bool known = visit_wide_numeric(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      const T* x = f.at<const T>(in);
      T* y = f.at<T>(out);
      for_each_line(dims, s.axis(f, axis, dims), s.reverse, [&](int64_t at, int64_t step, int64_t length) {
        T product(1);
        for (int64_t i = 0; i < length; ++i, at += step) {
          const T including = wrapping_product(product, x[at]);
          y[at] = s.exclusive ? product : including;
          product = including;
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// CumProdGrad(dY, X, axis)
void grad_shape(ShapeContext& c) {
  c.expect(c.dtype(0) == c.dtype(1) && c.shape(0) == c.shape(1),
           "dY must have the type and shape of X, found ", to_string(c.dtype(0)), to_string(c.shape(0)),
           " and ", to_string(c.dtype(1)), to_string(c.shape(1)));
  Settings(c, 2);
  c.output(0, c.dtype(0), c.shape(0));
}

// dx_i = (x_1 ... x_(i-1)) r_i with r_i = Σ_(j >= i) dy_j x_(i+1) ... x_j, which needs no division and so is
// correct for zeros: r_i = dy_i + x_(i+1) r_(i+1). If exclusive, dy is taken one position later.
Kernel grad_kernel(KernelContext& c) {
  const Settings s(c, 2);
  const Shape dims = c.shape(0);
  const Slot dy_slot = c.in(0), x_slot = c.in(1), axis = c.in(2), dx_slot = c.out(0);
  Kernel kernel;
  const bool known = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      const T *dy = f.at<const T>(dy_slot), *x = f.at<const T>(x_slot);
      T* dx = f.at<T>(dx_slot);
      for_each_line(dims, s.axis(f, axis, dims), s.reverse, [&](int64_t first, int64_t step, int64_t length) {
        int64_t at = first + (length - 1) * step;
        T rest = s.exclusive ? T(0) : dy[at];
        dx[at] = rest;
        for (int64_t i = length - 1; i > 0; --i, at -= step) {
          rest = x[at] * rest + (s.exclusive ? dy[at] : dy[at - step]);
          dx[at - step] = rest;
        }
        T product(1);
        for (int64_t i = 0; i < length; ++i, at += step) {
          dx[at] *= product;
          product *= x[at];
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  g.set(0, g("CumProdGrad", {g.dy(0), g.x(0), g.x(1)}, g.node().attributes, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "CumProd",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = wide_integers<kernel>}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "CumProdGrad",
                  .signature = "dY, X, axis -> dX",
                  .rules = {.shape = grad_shape},
                  .kernels = {.cpu = grad_kernel}});

// With operators of ONNX: a Scan for the products before each element, and a Scan in the other direction for
// the r_i.
void grad_form(DecompositionContext& e) {
  const Tensor* given = e.constant_value(e.x(2));
  if (!given) e.reject("the axis is not a constant");
  const int64_t axis = given->to_int64().at(0);
  const bool exclusive = e.node().int_or("exclusive", 0) != 0, reverse = e.node().int_or("reverse", 0) != 0;
  const auto scan = [&](const ScanBody& body, double initial, const Names& sequences, bool from_end) {
    const Name one_position =
        e("Shape", {e.reduce_sum(e.x(1), {axis}, false)});  // the shape without the axis
    Names inputs = {e("Expand", {e.scalar_like(e.x(1), initial), one_position})};
    inputs.insert(inputs.end(), sequences.begin(), sequences.end());
    const std::vector<int64_t> axes(sequences.size(), axis), directions(sequences.size(), from_end);
    return e.emit("Scan", inputs, 2,
                  {{"body", body.graph()},
                   {"num_scan_inputs", static_cast<int64_t>(sequences.size())},
                   {"scan_input_axes", axes},
                   {"scan_input_directions", directions},
                   {"scan_output_axes", std::vector<int64_t>{axis}},
                   {"scan_output_directions", std::vector<int64_t>{from_end}}})[1];
  };
  ScanBody products(e, concat(e.y(0), "/products"));
  const Name product = products.input(), x = products.input();
  products.output(products.mul(product, x));
  products.output(products("Identity", {product}));
  ScanBody rests(e, concat(e.y(0), "/rests"));
  const Name later = rests.input(), at = rests.input(), dy = rests.input();
  const Name rest = exclusive ? rests("Identity", {later}) : rests.add(dy, later);
  rests.output(exclusive ? rests.add(dy, rests.mul(at, rest)) : rests.mul(at, rest));
  rests.output(exclusive ? rest : rests("Identity", {rest}));
  e.set(0, e("Mul", {scan(products, 1, {e.x(1)}, reverse), scan(rests, 0, {e.x(1), e.x(0)}, !reverse)}));
}

ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "CumProdGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
