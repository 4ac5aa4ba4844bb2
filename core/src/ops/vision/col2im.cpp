// Col2Im: an image from the columns of its windows, each element the sum over all windows that contain it;
// and Col2ImGrad (com.microsoft), which takes the columns from an image. Any number of spatial axes.
#include <memory>

#include "op/gradient_expression.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "ops/common/shape_helpers.h"
#include "runtime/checked.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

struct Columns {
  Shape image;        // dimensions of the image
  int64_t block = 1;  // elements of a window
  int64_t windows = 1;
  std::vector<int64_t> kernel, strides, dilations, before, counts;

  // image_shape and block_shape are inputs 1 and 2.
  explicit Columns(const NodeContext& c) : image(constant_ints(c, 1)), kernel(constant_ints(c, 2)) {
    const size_t axes = image.size();
    c.expect(axes >= 1 && kernel.size() == axes, "image_shape ", to_string(image), " and block_shape ",
             to_string(kernel), " must have the same number of axes");
    const auto read = [&](const char* name, size_t count, int64_t otherwise, int64_t smallest) {
      std::vector<int64_t> values = c.node().ints_or(name, {});
      if (values.empty()) values.assign(count, otherwise);
      c.expect(values.size() == count, "attribute ", name, " must have ", counted(count, "value"), ", found ",
               to_string(values));
      for (const int64_t v : values) {
        c.expect(v >= smallest, "every value of attribute ", name, " must be at least ", smallest, ", found ",
                 to_string(values));
        c.expect(v <= INT32_MAX, "every value of attribute ", name, " must be at most ", INT32_MAX,
                 ", found ", to_string(values));
      }
      return values;
    };
    strides = read("strides", axes, 1, 1);
    dilations = read("dilations", axes, 1, 1);
    before = read("pads", 2 * axes, 0, 0);
    element_count(image);  // rejects negative dimensions, and dimensions whose product overflows
    block = element_count(kernel);
    for (size_t i = 0; i < axes; ++i) {
      c.expect(kernel[i] >= 1 && image[i] >= 0, "image_shape ", to_string(image), " and block_shape ",
               to_string(kernel), " must be positive");
      const auto span = checked_product({kernel[i] - 1, dilations[i]});
      const int64_t room = span ? image[i] + before[i] + before[axes + i] - *span - 1 : -1;
      c.expect(room >= 0, "a window of ", counted(kernel[i], "element"), " does not fit axis ", i,
               " of the image ", to_string(image));
      counts.push_back(room / strides[i] + 1);
    }
    windows = element_count(counts);
    c.expect(checked_product({block, windows}).has_value(),
             "its windows have too many elements: ", counted(windows, "window"), " of ",
             counted(block, "element"));
    before.resize(axes);
  }

  // The image element of every element of every window, [block, windows]; -1 in the padding.
  std::vector<int64_t> table() const {
    std::vector<int64_t> places;
    places.reserve(static_cast<size_t>(block * windows));
    for (int64_t k = 0; k < block; ++k)
      for (int64_t w = 0; w < windows; ++w) {
        int64_t place = 0, step = 1, element = k, window = w;
        for (size_t i = image.size(); i-- > 0;) {
          const int64_t at = window % counts[i] * strides[i] + element % kernel[i] * dilations[i] - before[i];
          window /= counts[i];
          element /= kernel[i];
          place = place < 0 || at < 0 || at >= image[i] ? -1 : place + at * step;
          step *= image[i];
        }
        places.push_back(place);
      }
    return places;
  }
};

void shape(ShapeContext& c) {
  const Columns columns(c);
  const Shape& x = c.shape(0);
  c.expect(x.size() == 3 && columns.block > 0 && x[1] % columns.block == 0 && x[2] == columns.windows,
           "its input must have shape [N, C x ", columns.block, ", ", columns.windows, "], found ",
           to_string(x));
  Shape y = {x[0], x[1] / columns.block};
  y.insert(y.end(), columns.image.begin(), columns.image.end());
  c.output(0, c.dtype(0), y);
}

// Col2ImGrad(dY, image_shape, block_shape)
void grad_shape(ShapeContext& c) {
  const Columns columns(c);
  const Shape& dy = c.shape(0);
  c.expect(dy.size() == 2 + columns.image.size() && Shape(dy.begin() + 2, dy.end()) == columns.image,
           "dY must have shape [N, C] and then ", to_string(columns.image), ", found ", to_string(dy));
  c.output(0, c.dtype(0), {dy[0], dy[1] * columns.block, columns.windows});
}

template <bool kToImage>
Kernel kernel(KernelContext& c) {
  const Columns columns(c);
  const Shape& image = kToImage ? c.out_shape(0) : c.shape(0);
  const int64_t planes = image[0] * image[1], points = element_count(columns.image);
  const Slot in = c.in(0), out = c.out(0);
  if (planes == 0) return nothing_to_do();  // the table could still be large
  const auto table = std::make_shared<const std::vector<int64_t>>(columns.table());
  const int64_t elements = static_cast<int64_t>(table->size());
  Kernel kernel;
  const bool known = visit_numeric_or_bool(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      parallel_for(planes, elements * 2, [&](int64_t begin, int64_t end) {
        for (int64_t plane = begin; plane < end; ++plane) {
          const int64_t* place = table->data();
          if constexpr (kToImage) {
            const T* from = f.at<const T>(in) + plane * elements;
            T* to = f.at<T>(out) + plane * points;
            std::fill(to, to + points, T(0));
            for (int64_t i = 0; i < elements; ++i)
              if (place[i] >= 0) to[place[i]] = static_cast<T>(to[place[i]] + from[i]);
          } else {
            const T* from = f.at<const T>(in) + plane * points;
            T* to = f.at<T>(out) + plane * elements;
            for (int64_t i = 0; i < elements; ++i) to[i] = place[i] >= 0 ? from[place[i]] : T(0);
          }
        }
      });
    };
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

void gradient(GradientContext& g) {
  g.set(0, g("Col2ImGrad", {g.dy(0), g.x(1), g.x(2)}, g.node().attributes, kMicrosoft));
}

ORTRAIN_OPERATOR({.type = "Col2Im",
                  .rules = {.shape = shape, .gradient = gradient},
                  .kernels = {.cpu = kernel<true>}});
void grad_gradient(GradientContext& g) {
  g.set(0, g("Col2Im", {g.dy(0), g.x(1), g.x(2)}, g.node().attributes));
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "Col2ImGrad",
                  .signature = "dY, image_shape, block_shape -> dX",
                  .rules = {.shape = grad_shape, .gradient = grad_gradient},
                  .kernels = {.cpu = kernel<false>}});

// Col2ImGrad with operators of ONNX: each element of a block is a convolution with a filter that is 1 there.
// Each channel is a sample of one channel.
void grad_form(DecompositionContext& e) {
  const Tensor* given = e.constant_value(e.x(2));
  if (!given) e.reject("its gradient has a standard form only if block_shape is a constant");
  const std::vector<int64_t> block = given->to_int64();
  int64_t elements = 1;
  for (const int64_t dim : block) elements *= dim;
  std::vector<int64_t> kernel = {elements, 1};
  kernel.insert(kernel.end(), block.begin(), block.end());
  Tensor ones(DType::kDouble, kernel);
  std::fill_n(ones.data<double>(), elements * elements, 0.0);
  for (int64_t i = 0; i < elements; ++i) ones.data<double>()[i * (elements + 1)] = 1;
  Attributes attributes;
  for (const char* name : {"dilations", "pads", "strides"})
    if (e.node().has(name)) attributes[name] = e.node().attributes.at(name);
  const Name images = e("Reshape", {e.x(0), with_dims_after(e, {-1, 1}, e.x(0), 2)});
  const Name columns = e("Conv", {images, cast_like(e, e.constant(ones), e.x(0))}, attributes);
  const Name channels = e("Mul", {dims_of(e, e.x(0), 1, 2), e.int64s({elements})});
  e.set(0, e("Reshape", {columns, e("Concat", {dims_of(e, e.x(0), 0, 1), channels, e.int64s({-1})},
                                    {{"axis", int64_t{0}}})}));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "Col2ImGrad", {cold<grad_form>});

}  // namespace
}  // namespace ortrain
