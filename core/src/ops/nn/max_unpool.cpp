// MaxUnpool: zeros, with each element of X at the index from which MaxPool took the element; and
// MaxUnpoolGrad (com.microsoft), which reads the gradient at these indices.
//
// The indices count the elements of the whole result [N, C, (D - 1) stride - pads + kernel ...]. A given
// output_shape only adds zeros at the end of this result, along any axis.
#include <algorithm>

#include "op/standard_form.h"
#include "ops/common/indices.h"
#include "runtime/checked.h"

namespace ortrain {
namespace {

struct Places {
  Shape inner, outer;  // the result that indices refer to, and the result with the given output_shape
  int64_t size = 0;    // of inner

  // Of an X of the given shape; output_shape is input `shape_at`.
  Places(const NodeContext& c, const Shape& x, size_t shape_at) {
    c.expect(x.size() >= 3, "its input must have shape [N, C, D1, ...], found ", to_string(x));
    const size_t axes = x.size() - 2;
    const auto read = [&](const char* name, size_t count, int64_t otherwise) {
      std::vector<int64_t> values = c.node().ints_or(name, {});
      if (values.empty()) values.assign(count, otherwise);
      c.expect(values.size() == count, "attribute ", name, " must have ", counted(count, "value"), ", found ",
               to_string(values));
      return values;
    };
    c.expect(c.node().has("kernel_shape"), "attribute kernel_shape is required but missing");
    const std::vector<int64_t> kernel = read("kernel_shape", axes, 1), strides = read("strides", axes, 1),
                               pads = read("pads", 2 * axes, 0);
    inner = x;
    for (size_t i = 0; i < axes; ++i) {
      for (const int64_t v : {kernel[i], strides[i], pads[i], pads[axes + i]})
        c.expect(v >= -INT32_MAX && v <= INT32_MAX, "attributes kernel_shape ", to_string(kernel),
                 ", strides ", to_string(strides), " and pads ", to_string(pads), " must fit in 32 bits");
      const auto stretched = checked_product({x[2 + i] - 1, strides[i]});
      inner[2 + i] =
          stretched ? checked_sum({*stretched, -pads[i], -pads[axes + i], kernel[i]}).value_or(-1) : -1;
      c.expect(inner[2 + i] >= 0, "axis ", 2 + i, " of the result would have ",
               counted(inner[2 + i], "element"));
    }
    outer = c.has_input(shape_at) ? constant_ints(c, shape_at) : inner;
    c.expect(outer.size() == inner.size() && std::equal(inner.begin(), inner.end(), outer.begin(),
                                                        [](int64_t a, int64_t b) { return a <= b; }),
             "output_shape ", to_string(outer), " must be at least ", to_string(inner), " along every axis");
    size = element_count(inner);
  }

  // The position in the outer result of element `index` of the inner result.
  int64_t place(int64_t index) const {
    int64_t at = 0, step = 1;
    for (size_t i = inner.size(); i-- > 0; index /= inner[i], step *= outer[i]) at += index % inner[i] * step;
    return at;
  }
};

void shape(ShapeContext& c) {
  const Places p(c, c.shape(0), 2);
  c.expect(c.dtype(1) == DType::kInt64 && c.shape(1) == c.shape(0), "the indices must be int64",
           to_string(c.shape(0)), ", found ", to_string(c.dtype(1)), to_string(c.shape(1)));
  c.output(0, c.dtype(0), p.outer);
}

Kernel kernel(KernelContext& c) {
  const Places p(c, c.shape(0), 2);
  const int64_t n = c.size(0), width = static_cast<int64_t>(width_of(c, 0));
  const size_t bytes = static_cast<size_t>(c.out_size(0) * width);
  const Slot x = c.in(0), indices = c.in(1), y = c.out(0);
  Kernel kernel;
  visit_width(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=, label = c.node().label()](const Frame& f) {
      const int64_t* at = f.at<int64_t>(indices);
      check_indices(label, at, n, p.size);
      zero_bytes(f.at<std::byte>(y), bytes);
      // In order: if two indices are equal, the last element is kept.
      for (int64_t i = 0; i < n; ++i) f.at<T>(y)[p.place(from_front(at[i], p.size))] = f.at<T>(x)[i];
    };
  });
  return kernel;
}

// MaxUnpoolGrad(dY, indices, output_shape?): dx[i] = dy[index i]
void grad_shape(ShapeContext& c) {
  const Places p(c, c.shape(1), 2);
  c.expect(c.shape(0) == p.outer, "dY must have shape ", to_string(p.outer), ", found ",
           to_string(c.shape(0)));
  c.output(0, c.dtype(0), c.shape(1));
}

Kernel grad_kernel(KernelContext& c) {
  const Places p(c, c.shape(1), 2);
  const int64_t n = c.size(1);
  const Slot dy = c.in(0), indices = c.in(1), dx = c.out(0);
  Kernel kernel;
  visit_width(c, 0, [&](auto zero) {
    using T = decltype(zero);
    kernel = [=, label = c.node().label()](const Frame& f) {
      const int64_t* at = f.at<int64_t>(indices);
      check_indices(label, at, n, p.size);
      parallel_for(n, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          f.at<T>(dx)[i] = f.at<T>(dy)[p.place(from_front(at[i], p.size))];
      });
    };
  });
  return kernel;
}

void gradient(GradientContext& g) {
  Names inputs = {g.dy(0), g.x(1)};
  if (g.has_x(2)) inputs.push_back(g.x(2));
  g.set(0, g("MaxUnpoolGrad", inputs, g.node().attributes, kMicrosoft));
}

// The gradient of dY: each element is written to the index from which it was read.
void grad_gradient(GradientContext& g) {
  Names inputs = {g.dy(0), g.x(1)};
  if (g.has_x(2)) inputs.push_back(g.x(2));
  g.set(0, g("MaxUnpool", inputs, g.node().attributes));
}

ORTRAIN_OPERATOR({.type = "MaxUnpool",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "MaxUnpoolGrad",
                  .signature = "dY, I, output_shape? -> dX",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = grad_kernel}});

// With operators of ONNX. The indices count the elements of the result without the zeros that output_shape
// adds.
void grad_form(DecompositionContext& e) {
  Name dy = e.x(0);
  if (e.has_x(2)) {
    const Node& node = e.node();
    const std::vector<int64_t> kernel = node.ints_or("kernel_shape", {});
    const size_t axes = kernel.size();
    const std::vector<int64_t> strides = node.ints_or("strides", std::vector<int64_t>(axes, 1)),
                               pads = node.ints_or("pads", std::vector<int64_t>(2 * axes, 0));
    std::vector<int64_t> step = {1, 1}, rest = {0, 0};  // per axis, D step + rest elements
    for (size_t i = 0; i < axes; ++i) {
      step.push_back(strides[i]);
      rest.push_back(kernel[i] - strides[i] - pads[i] - pads[axes + i]);
    }
    const Name inner = e("Add", {e("Mul", {e("Shape", {e.x(1)}), e.int64s(step)}), e.int64s(rest)});
    dy = e("Slice", {dy, e.int64s(std::vector<int64_t>(axes + 2, 0)), inner});
  }
  e.set(0, e("Gather", {e("Reshape", {dy, e.int64s({-1})}), e.x(1)}));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "MaxUnpoolGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
