// Pooling: MaxPool, AveragePool, GlobalAveragePool, GlobalMaxPool and the gradients MaxPoolGrad and
// AveragePoolGrad. Their kernels are listed in backend/cpu/implementations.cpp.
#include <algorithm>

#include "geometry/pooling.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/nn/window_form.h"

namespace ortrain {

namespace {

void max_pool_shape(ShapeContext& c) {
  check_window_attributes(c);
  const Window window = read_pool(c, c.shape(0));
  const Shape y = output_shape(c.shape(0)[0], c.shape(0)[1], window);
  c.output(0, c.dtype(0), y);
  c.output(1, DType::kInt64, y);
}

void average_pool_shape(ShapeContext& c) {
  check_window_attributes(c);
  const Window window = read_pool(c, c.shape(0));
  c.output(0, c.dtype(0), output_shape(c.shape(0)[0], c.shape(0)[1], window));
}

// The shape of dX is the value of the last input. onnxruntime's operators do not have that input, and it may
// be left out: the shape is then the shape that the model states for dX, or else is derived from dY.
void pool_grad_shape(ShapeContext& c, size_t shape_input) {
  const Shape& dy = c.shape(0);
  c.expect(dy.size() >= 3, "dY must have shape [N, C, D1, ...], found ", to_string(dy));
  std::vector<int64_t> stated = c.stated_shape(0);
  if (c.has_input(shape_input)) {
    stated = c.need_constant(shape_input).to_int64();
    c.expect(stated.size() == dy.size() && stated[0] == dy[0] && stated[1] == dy[1], "the shape ",
             to_string(stated), " of its result does not match dY, which has shape ", to_string(dy));
  }
  if (stated.size() == dy.size())
    stated.erase(stated.begin(), stated.begin() + 2);
  else
    stated.clear();
  const Window window = read_window_from_output(c, dy, stated);
  Shape dx = {dy[0], dy[1]};
  for (const WindowAxis& a : window) dx.push_back(a.input);
  c.output(0, c.dtype(0), std::move(dx));
}

void max_pool_grad_shape(ShapeContext& c) {
  c.expect(c.shape(1) == c.shape(0), "the indices must have the shape of dY ", to_string(c.shape(0)),
           ", found ", to_string(c.shape(1)));
  c.expect(c.dtype(1) == DType::kInt64, "the indices must have type int64, found ", to_string(c.dtype(1)));
  pool_grad_shape(c, 2);
}

void average_pool_grad_shape(ShapeContext& c) { pool_grad_shape(c, 1); }

void global_pool_shape(ShapeContext& c) {
  const Shape& x = c.shape(0);
  c.expect(x.size() >= 3, "its input must have shape [N, C, D1, ...], found ", to_string(x));
  c.expect(element_count(x, 2, x.size()) > 0, "its input ", to_string(x), " has channels without elements");
  Shape y(x.size(), 1);
  y[0] = x[0], y[1] = x[1];
  c.output(0, c.dtype(0), std::move(y));
}

// -----------------------------------------------------------------------------------------------------------
// Gradients.

// onnxruntime's MaxPoolGrad and AveragePoolGrad do not take the shape of X, so the model must state the
// dimensions of X as numbers. If it does not, the gradient passes the shape of X as one more input, which
// only this library reads.
bool knows_space(GradientContext& g) {
  const auto dims = g.dims(g.x(0));
  return dims && std::all_of(dims->begin() + std::min<size_t>(2, dims->size()), dims->end(),
                             [](const Dim& d) { return d.known(); });
}

void max_pool_gradient(GradientContext& g) {
  if (g.node().int_or("storage_order", 0) != 0) g.reject("the gradient for storage_order 1 is not supported");
  const Name indices = g.want_y(1);
  if (knows_space(g)) {
    g.set(0, g("MaxPoolGrad", {g.dy(0), indices}, g.node().attributes));
    return;
  }
  const Name shape = g("Shape", {g.x(0)});
  if (g.opset() < since::kScatterReduction) {
    g.set(0, g("MaxPoolGrad", {g.dy(0), indices, shape}, g.node().attributes));
    return;
  }
  // From this opset on, the gradient can be written with operators that onnxruntime also has.
  const Name line = g.int64s({-1});
  Tensor zero(g.dtype(g.x(0)), {1});
  zero.copy_from(Tensor::scalar(zero.dtype(), 0).reshaped({1}));
  const Name zeros = g("Reshape", {g("ConstantOfShape", {shape}, {{"value", zero}}), line});
  const Name sums =
      g("ScatterElements", {zeros, g("Reshape", {indices, line}), g("Reshape", {g.dy(0), line})},
        {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  g.set(0, g("Reshape", {sums, shape}));
}

void average_pool_gradient(GradientContext& g) {
  Names inputs = {g.dy(0)};
  if (!knows_space(g)) inputs.push_back(g("Shape", {g.x(0)}));
  g.set(0, g("AveragePoolGrad", inputs, g.node().attributes));
}

// dX = dY / (elements of a channel), repeated.
void global_average_gradient(GradientContext& g) {
  const Name shape = g("Shape", {g.x(0)});
  const Expression dy(g, g.dy(0));
  if (knows_space(g)) {
    double points = 1;
    const std::vector<Dim> dims = *g.dims(g.x(0));
    for (size_t i = 2; i < dims.size(); ++i) points *= static_cast<double>(dims[i].value);
    g.set(0, g("Expand", {dy * (1 / points), shape}));
  } else {
    const Name space = g("Slice", {shape, g.int64s({2}), g.int64s({INT64_MAX})});
    const Expression points(g, g("ReduceProd", {space}, {{"keepdims", int64_t{0}}}));
    g.set(0, g("Expand", {dy / points.as(dy), shape}));
  }
}

// The gradient goes to the largest element; if several are equal, they share it.
void global_max_gradient(GradientContext& g) {
  const auto rank = g.rank(g.x(0));
  if (!rank) g.reject("the rank of its input is not known; run ONNX shape inference on the model first");
  std::vector<int64_t> axes;
  for (int64_t i = 2; i < *rank; ++i) axes.push_back(i);
  const Expression x(g, g.x(0)), y(g, g.y(0)), dy(g, g.dy(0));
  const Expression largest = x.call("Equal", y).as(x);
  g.set(0, largest * (dy / Expression(g, g.reduce_sum(largest, axes, true))));
}

// dX is dY scattered to the indices, so with u the gradient of dX, the gradient of dY is u at the indices.
void max_pool_grad_gradient(GradientContext& g) {
  const Name line = g("Reshape", {g.dy(0), g.int64s({-1})});
  g.set(0, g("Gather", {line, g.x(1)}, {{"axis", int64_t{0}}}));
}

void average_pool_grad_gradient(GradientContext& g) {
  g.set(0, g("AveragePool", {g.dy(0)}, g.node().attributes));
}

ORTRAIN_OPERATOR({.type = "MaxPool",
                  .rules = {.shape = max_pool_shape,
                            .gradient = max_pool_gradient,
                            .element_type = first_like_input<DType::kInt64>},
                  .traits = {.takes_bf16 = true}});
ORTRAIN_OPERATOR({.type = "MaxPoolGrad",
                  .signature = "dY, Indices, shape? -> dX",
                  .rules = {.shape = max_pool_grad_shape, .gradient = max_pool_grad_gradient},
                  .traits = {.takes_bf16 = true}});
ORTRAIN_OPERATOR({.type = "AveragePool",
                  .rules = {.shape = average_pool_shape, .gradient = average_pool_gradient},
                  .traits = {.takes_bf16 = true}});
ORTRAIN_OPERATOR({.type = "AveragePoolGrad",
                  .signature = "dY, shape? -> dX",
                  .rules = {.shape = average_pool_grad_shape, .gradient = average_pool_grad_gradient},
                  .traits = {.takes_bf16 = true}});
ORTRAIN_OPERATOR({.type = "GlobalAveragePool",
                  .rules = {.shape = global_pool_shape, .gradient = global_average_gradient},
                  .traits = {.takes_bf16 = true}});
ORTRAIN_OPERATOR({.type = "GlobalMaxPool",
                  .rules = {.shape = global_pool_shape, .gradient = global_max_gradient}});

// -----------------------------------------------------------------------------------------------------------
// With operators of ONNX.

// The dimensions of dX: the dimensions that the model states, or the value of the last input if it is known.
Dims input_dims(DecompositionContext& e, size_t shape_input) {
  Dims dims = e.dims(e.y(0));
  const Tensor* given = e.has_x(shape_input) ? e.constant_value(e.x(shape_input)) : nullptr;
  if (!dims && given) {
    dims.emplace();
    for (const int64_t size : given->to_int64()) dims->push_back({size, ""});
  }
  return dims;
}

// The shape of dX: the last input, or the dimensions that the model states, with the batch and the channels
// of dY.
Name input_shape(DecompositionContext& e, size_t shape_input) {
  if (e.has_x(shape_input)) return e.x(shape_input);
  const Dims stated = input_dims(e, shape_input);
  std::vector<int64_t> space;
  for (size_t i = 2; stated && i < stated->size(); ++i)
    if ((*stated)[i].known()) space.push_back((*stated)[i].value);
  if (!stated || space.size() + 2 != stated->size())
    e.reject("the size of the pooled value is not known; run ONNX shape inference on the model first");
  return e("Concat", {dims_of(e, e.x(0), 0, 2), e.int64s(space)}, {{"axis", int64_t{0}}});
}

// dY is added to zeros at the indices, which count the elements of the whole tensor.
void max_pool_grad_form(DecompositionContext& e) {
  const Expression dy(e, e.x(0));
  const Name line = e.int64s({-1}), shape = input_shape(e, 2);
  const Name size = e("ReduceProd", {shape}, {{"keepdims", int64_t{1}}});
  const Name sums =
      e("ScatterElements",
        {e("Expand", {dy.number(0), size}), e("Reshape", {e.x(1), line}), e("Reshape", {dy, line})},
        {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  e.set(0, reshape_to(e, sums, shape));
}

// Each element of dY, divided by the number of elements of its window, is added to all elements of the
// window. Here each channel is treated as a sample with one channel.
void average_pool_grad_form(DecompositionContext& e) {
  const Node& node = e.node();
  const Name shape = input_shape(e, 1);
  const std::vector<WindowForm> windows = windows_of(e, input_dims(e, 1), e.dims(e.x(0)), {});
  std::vector<int64_t> kernel = {1, 1}, apart = {-1, 1};
  int64_t elements = 1;
  bool all_inside = true;   // no window holds padding
  bool all_counted = true;  // none reaches beyond the padding
  for (const WindowForm& w : windows) {
    kernel.push_back(w.kernel);
    elements *= w.kernel;
    all_inside &= w.before == 0 && w.after == 0;
  }
  const bool counts_padding = node.int_or("count_include_pad", 0) != 0;
  if (node.int_or("ceil_mode", 0) != 0) {
    for (const WindowForm& w : windows) {
      if (!w.input || !w.output)
        e.reject("with ceil_mode, its gradient needs the size of the pooled value, which is not known");
      const bool reaches_beyond = (*w.output - 1) * w.stride + w.span() - w.before - *w.input > w.after;
      all_inside &= !reaches_beyond;
      all_counted &= !reaches_beyond;
    }
  }
  const auto each_alone = [&](Name value) {
    return e("Reshape", {value, with_dims_after(e, apart, value, 2)});
  };
  const Tensor ones = Tensor::of(std::vector<double>(static_cast<size_t>(elements), 1), kernel);
  const Name weights = cast_like(e, e.constant(ones), e.x(0));
  Expression dy(e, each_alone(e.x(0)));
  if (all_inside || (counts_padding && all_counted)) {
    dy = dy * (1 / static_cast<double>(elements));
  } else {
    // The number of elements in each window, as a convolution of an image of ones, which may include the
    // padding.
    std::vector<int64_t> pads, strides, dilations, after, padding;
    for (const WindowForm& w : windows) {
      const int64_t counted_after = counts_padding ? w.after : 0;
      padding.push_back(counts_padding ? w.before + w.after : 0);
      pads.push_back(counts_padding ? 0 : w.before);
      const bool known = w.input && w.output;
      const int64_t beyond = known ? (*w.output - 1) * w.stride + w.span() - w.before - *w.input : w.after;
      after.push_back(std::max<int64_t>(0, beyond - counted_after));
      strides.push_back(w.stride);
      dilations.push_back(w.dilation);
    }
    pads.insert(pads.end(), after.begin(), after.end());
    Name space = e("Slice", {shape, e.int64s({2}), e.int64s({INT64_MAX})});
    if (counts_padding) space = e("Add", {space, e.int64s(padding)});
    const Name image =
        e("Expand", {dy.number(1), e("Concat", {e.int64s({1, 1}), space}, {{"axis", int64_t{0}}})});
    const Expression count(
        e, e("Conv", {image, weights}, {{"pads", pads}, {"strides", strides}, {"dilations", dilations}}));
    dy = dy / count;
  }
  // The spatial shape of `like` is that of dX.
  const Name like = e("Expand", {dy.number(0), shape});
  e.state_like(like, e.y(0));
  e.set(0, reshape_to(e, spread_windows(e, windows, dy, weights, 1, like), shape));
}

ORTRAIN_OPERATOR_FACT(StandardForm, "", "MaxPoolGrad", {cold<max_pool_grad_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, "", "AveragePoolGrad", {cold<average_pool_grad_form>});

}  // namespace

}  // namespace ortrain
