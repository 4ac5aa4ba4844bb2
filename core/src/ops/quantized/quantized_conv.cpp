// ConvInteger and QLinearConv: convolution of 8-bit integers, summed in 32 bits.
//
//   Y = (X - x_zero_point) * (W - w_zero_point)
//   y = saturate(round((Y + B) x_scale w_scale / y_scale) + y_zero_point)
//
// W may have a scale and zero point for each filter. Padding represents zero, so it is the zero point of X.
//
// Compiled for speed: loops over sums (CMakeLists.txt).
#include <algorithm>
#include <functional>
#include <optional>

#include "backend/cpu/conv/integer_conv.h"
#include "backend/cpu/elementwise/quantization.h"
#include "op/operator.h"

namespace ortrain {
namespace {

// The indices of a node's inputs.
struct Places {
  size_t x, x_zero, w, w_zero;
};
constexpr Places kInteger = {0, 2, 1, 3}, kLinear = {0, 2, 3, 5};

ConvSizes sizes_of(const NodeContext& c, const Places& at) {
  const Shape &x = c.shape(at.x), &w = c.shape(at.w);
  return {x[0], x[1], w[0], c.node().int_or("group", 1), three_axes(read_convolution(c, x, w))};
}

// Inputs with a single value, or, where the number of filters is given, one per filter.
void expect_count(const NodeContext& c, size_t i, std::optional<int64_t> filters) {
  c.expect(c.size(i) == 1 || (filters && c.shape(i) == Shape{*filters}), "input ", i, " ('",
           c.node().inputs[i], "') must be a single value",
           filters ? concat(" or one for each of the ", *filters, " filters") : std::string(),
           ", found shape ", to_string(c.shape(i)));
}

Shape result_shape(const NodeContext& c, const Places& at) {
  const Window window = read_convolution(c, c.shape(at.x), c.shape(at.w));
  const std::optional<int64_t> filters = c.shape(at.w)[0];
  for (const auto& [operand, zero] : {std::pair{at.x, at.x_zero}, std::pair{at.w, at.w_zero}}) {
    if (!visit_types<uint8_t, int8_t>(c.dtype(operand), [](auto) {})) c.reject_dtype(operand);
    if (!c.has_input(zero)) continue;
    c.expect(c.dtype(zero) == c.dtype(operand), "input ", zero, " must have the type of input ", operand,
             ", ", to_string(c.dtype(operand)), ", found ", to_string(c.dtype(zero)));
    expect_count(c, zero, operand == at.w ? filters : std::nullopt);
  }
  const Shape &x = c.shape(at.x), &w = c.shape(at.w);
  return output_shape(x[0], w[0], window);
}

void integer_shape(ShapeContext& c) {
  check_window_attributes(c);
  c.output(0, DType::kInt32, result_shape(c, kInteger));
}

void linear_shape(ShapeContext& c) {
  check_window_attributes(c);
  for (size_t i = 0; i < 8; ++i) c.expect(c.has_input(i), "input ", i, " is missing");
  const Shape y = result_shape(c, kLinear);
  for (const size_t i : {1, 4, 6}) {
    c.expect(c.dtype(i) == DType::kFloat, "input ", i, " must be float32, found ", to_string(c.dtype(i)));
    expect_count(c, i, i == 4 ? std::optional(c.shape(kLinear.w)[0]) : std::nullopt);
  }
  expect_count(c, 7, std::nullopt);
  if (!visit_types<uint8_t, int8_t>(c.dtype(7), [](auto) {})) c.reject_dtype(7);
  if (c.has_input(8))
    c.expect(c.dtype(8) == DType::kInt32 && c.shape(8) == Shape{y[1]}, "the bias B must be int32[", y[1],
             "], found ", to_string(c.dtype(8)), to_string(c.shape(8)));
  c.output(0, c.dtype(7), y);
}

// The integer convolution, whose sums `sink_of(frame)` takes; `bias` may be undefined. Constant weights are
// packed here.
template <typename SinkOf>
Kernel integer_convolution(KernelContext& c, const Places& at, Slot bias, SinkOf sink_of) {
  const ConvSizes sizes = sizes_of(c, at);
  const IntegerConvolution convolution(sizes, c.dtype(at.x) == DType::kInt8, c.dtype(at.w) == DType::kInt8);
  const bool each = c.has_input(at.w_zero) && c.size(at.w_zero) > 1;
  const int64_t filters = sizes.filters;
  // The packed weights, then the sums and zero points of the filters.
  const int64_t packed_words = convolution.weight_words() + 2 * filters;
  const auto pack = [=](const uint8_t* w, const uint8_t* zeros, uint32_t* packed) {
    int32_t* sums = reinterpret_cast<int32_t*>(packed + convolution.weight_words());
    convolution.pack(w, zeros, each, packed, sums, sums + filters);
  };
  const Tensor* w_zeros = c.has_input(at.w_zero) ? c.constant(at.w_zero) : nullptr;
  Slot packed, w, w_zero;
  if (c.constant(at.w) && (w_zeros || !c.has_input(at.w_zero))) {
    Tensor once(DType::kUInt8, {packed_words * 4});
    const auto codes = [](const Tensor* t) {
      return t ? reinterpret_cast<const uint8_t*>(t->raw()) : nullptr;
    };
    pack(codes(c.constant(at.w)), codes(w_zeros), reinterpret_cast<uint32_t*>(once.raw()));
    packed = c.fixed(std::move(once));
  } else {
    w = c.in(at.w);
    if (c.has_input(at.w_zero)) w_zero = c.in(at.w_zero);
    packed = c.scratch(static_cast<size_t>(packed_words) * 4);
  }
  const Slot x = c.in(at.x), x_zero = c.has_input(at.x_zero) ? c.in(at.x_zero) : Slot{},
             work = c.scratch(static_cast<size_t>(convolution.work_words()) * 4);
  return [=](const Frame& f) {
    uint32_t* words = f.at<uint32_t>(packed);
    if (w.defined()) pack(f.at<const uint8_t>(w), f.at_or_null<const uint8_t>(w_zero), words);
    const int32_t* sums = reinterpret_cast<const int32_t*>(words + convolution.weight_words());
    const auto sink = sink_of(f);
    convolution.run(f.at<const uint8_t>(x), x_zero.defined() ? *f.at<const uint8_t>(x_zero) : 0, words, sums,
                    sums + filters, f.at_or_null<const int32_t>(bias), std::cref(sink), f.at<uint32_t>(work));
  };
}

int64_t points_of_plane(const Shape& y) { return element_count(y, 2, y.size()); }

Kernel integer_kernel(KernelContext& c) {
  const int64_t points = points_of_plane(c.out_shape(0));
  const Slot y = c.out(0);
  return integer_convolution(c, kInteger, {}, [=](const Frame& f) {
    return [=, y = f.at<int32_t>(y)](int64_t plane, int64_t first, int64_t count, const int32_t* sums) {
      std::copy_n(sums, count, y + plane * points + first);
    };
  });
}

template <typename Q>
Kernel linear_kernel_of(KernelContext& c) {
  const int64_t filters = c.out_shape(0)[1], points = points_of_plane(c.out_shape(0));
  const Slot bias = c.has_input(8) ? c.in(8) : Slot{};
  const Slot x_scale = c.in(1), w_scale = c.in(4), y_scale = c.in(6), y_zero = c.in(7), y = c.out(0);
  const int64_t step = c.size(4) > 1 ? 1 : 0;
  const Requantizer<Q> to_codes = requantizer<Q>();
  return integer_convolution(c, kLinear, bias, [=](const Frame& f) {
    const double scale =
        static_cast<double>(*f.at<float>(x_scale)) / static_cast<double>(*f.at<float>(y_scale));
    return [=, zero = static_cast<double>(*f.at<Q>(y_zero)), of_w = f.at<float>(w_scale), y = f.at<Q>(y)](
               int64_t plane, int64_t first, int64_t count, const int32_t* sums) {
      to_codes(sums, count, {scale, of_w + plane % filters * step, false, 1, zero},
               y + plane * points + first);
    };
  });
}

Kernel linear_kernel(KernelContext& c) {
  return c.out_dtype(0) == DType::kInt8 ? linear_kernel_of<int8_t>(c) : linear_kernel_of<uint8_t>(c);
}

ORTRAIN_OPERATOR({.type = "ConvInteger",
                  .rules = {.shape = integer_shape, .element_type = always<DType::kInt32>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = integer_kernel}});
ORTRAIN_OPERATOR({.type = "QLinearConv",
                  .rules = {.shape = linear_shape, .element_type = type_of_input<7>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = linear_kernel}});

}  // namespace
}  // namespace ortrain
