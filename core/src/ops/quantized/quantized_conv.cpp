// ConvInteger and QLinearConv: convolution of 8-bit integers, summed in 32 bits.
//
//   Y = (X - x_zero_point) * (W - w_zero_point)
//   y = saturate(round((Y + B) x_scale w_scale / y_scale) + y_zero_point)
//
// W may have a scale and zero point for each filter. Padding represents zero, so its code is the zero point
// of X. QLinearConv of the domain ortrain.session also clamps y to its attributes lowest and highest.
//
// Compiled for speed: loops over sums (CMakeLists.txt).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/conv/byte_conv.h"
#include "backend/cpu/conv/integer_conv.h"
#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/stored_layout.h"
#include "op/operator.h"
#include "op/session_domain.h"

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

// Rejects an input that does not have a single value or, if the number of filters is given, a value per
// filter.
void expect_count(const NodeContext& c, size_t i, std::optional<int64_t> filters) {
  c.expect(c.size(i) == 1 || (filters && c.shape(i) == Shape{*filters}), "input ", i, " ('",
           c.node().inputs[i], "') must be a single value",
           filters ? concat(" or one for each of the ", counted(*filters, "filter")) : std::string(),
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

// The smallest and the largest code that a result may have, and the code of zero.
template <typename Q>
CodeRange code_range(const NodeContext& c, int32_t zero) {
  const auto bound = [&](const char* name, int64_t otherwise) {
    return static_cast<int32_t>(c.node().int_or(name, otherwise));
  };
  return {zero, bound("lowest", std::numeric_limits<Q>::min()),
          bound("highest", std::numeric_limits<Q>::max())};
}

template <typename Q>
Kernel linear_kernel_of(KernelContext& c) {
  const int64_t filters = c.out_shape(0)[1], points = points_of_plane(c.out_shape(0));
  const Slot bias = c.has_input(8) ? c.in(8) : Slot{};
  const Slot x_scale = c.in(1), w_scale = c.in(4), y_scale = c.in(6), y_zero = c.in(7), y = c.out(0);
  const int64_t step = c.size(4) > 1 ? 1 : 0;
  const Requantizer<Q> to_codes = requantizer<Q>();
  const CodeRange range = code_range<Q>(c, 0);
  const Q lowest = static_cast<Q>(range.lowest), highest = static_cast<Q>(range.highest);
  const bool clamped = c.node().has("lowest");
  return integer_convolution(c, kLinear, bias, [=](const Frame& f) {
    const double scale =
        static_cast<double>(*f.at<float>(x_scale)) / static_cast<double>(*f.at<float>(y_scale));
    return [=, zero = static_cast<double>(*f.at<Q>(y_zero)), of_w = f.at<float>(w_scale), y = f.at<Q>(y)](
               int64_t plane, int64_t first, int64_t count, const int32_t* sums) {
      Q* to = y + plane * points + first;
      to_codes(sums, count, {scale, of_w + plane % filters * step, false, 1, zero}, to);
      for (int64_t i = 0; clamped && i < count; ++i) to[i] = std::clamp(to[i], lowest, highest);
    };
  });
}

template <typename T>
T constant_at(const KernelContext& c, size_t i, int64_t place) {
  const Tensor& values = *c.constant(i);
  return values.data<T>()[values.size() > 1 ? place : 0];
}

int32_t code_at(const KernelContext& c, size_t i, int64_t place) {
  return c.dtype(i) == DType::kInt8 ? constant_at<int8_t>(c, i, place) : constant_at<uint8_t>(c, i, place);
}

// The factors, also as floats, and the offsets of all filters.
struct FilterTables {
  std::vector<double> factors;
  std::vector<float> narrow;
  std::vector<int32_t> offsets;
  bool in_range = true;  // whether the factors are small enough to compute the products in float
};

FilterTables filter_tables(const KernelContext& c, int64_t filters, std::vector<int32_t> offsets) {
  FilterTables t;
  t.offsets = std::move(offsets);
  t.factors.resize(t.offsets.size()), t.narrow.resize(t.offsets.size());
  const double scale = static_cast<double>(constant_at<float>(c, 1, 0)) / double{constant_at<float>(c, 6, 0)};
  for (int64_t f = 0; f < filters; ++f) {
    const size_t at = static_cast<size_t>(f);
    t.factors[at] = scale * static_cast<double>(constant_at<float>(c, 4, f));
    t.narrow[at] = static_cast<float>(t.factors[at]);
    t.in_range = t.in_range && std::abs(t.factors[at]) <= kLargestFactor;
    if (c.has_input(8))
      t.offsets[at] = static_cast<int32_t>(static_cast<uint32_t>(t.offsets[at]) +
                                           static_cast<uint32_t>(c.constant(8)->data<int32_t>()[f]));
  }
  return t;
}

// A kernel that keeps channels last, for nodes whose inputs except X are constants; nothing for other nodes.
template <typename Q>
std::optional<Kernel> byte_kernel_of(KernelContext& c) {
  const ConvSizes sizes = sizes_of(c, kLinear);
  if (!ByteConvolution::suits(sizes) || c.constant(kLinear.x)) return std::nullopt;
  for (size_t i = 1; i < 9; ++i)
    if (c.has_input(i) && !c.constant(i)) return std::nullopt;
  const ByteConvolution convolution(sizes, c.dtype(0) == DType::kInt8, c.dtype(3) == DType::kInt8);
  std::vector<int32_t> zeros(static_cast<size_t>(sizes.filters)),
      offsets(static_cast<size_t>(convolution.whole_filters()));
  for (int64_t f = 0; f < sizes.filters; ++f) zeros[static_cast<size_t>(f)] = code_at(c, kLinear.w_zero, f);
  const int32_t x_zero = code_at(c, kLinear.x_zero, 0);
  Tensor packed(DType::kUInt8, {convolution.weight_words() * 4});
  if (!convolution.pack(reinterpret_cast<const uint8_t*>(c.constant(kLinear.w)->raw()), zeros.data(), x_zero,
                        reinterpret_cast<uint32_t*>(packed.raw()), offsets.data()))
    return std::nullopt;
  FilterTables tables = filter_tables(c, sizes.filters, std::move(offsets));
  if (!tables.in_range) return std::nullopt;
  const CodeRange range = code_range<Q>(c, code_at(c, 7, 0));
  const Slot words = c.fixed(std::move(packed)),
             x = c.in(kLinear.x, byte_layout(c.shape(kLinear.x), Order::kChannelsLast)),
             work = c.scratch(static_cast<size_t>(convolution.work_words()) * 4),
             y = c.out(0, byte_layout(c.out_shape(0), Order::kChannelsLast));
  return [=, tables = std::move(tables)](const Frame& f) {
    convolution.run(f.at<const uint8_t>(x), x_zero, f.at<const uint32_t>(words),
                    {tables.offsets.data(), tables.narrow.data(), tables.factors.data(), range},
                    f.at<uint8_t>(y), f.at<uint32_t>(work));
  };
}

Kernel linear_kernel(KernelContext& c) {
  Kernel kernel;
  visit_types<uint8_t, int8_t>(c.out_dtype(0), [&](auto type) {
    using Q = decltype(type);
    auto made = byte_kernel_of<Q>(c);
    kernel = made ? std::move(*made) : linear_kernel_of<Q>(c);
  });
  return kernel;
}

ORTRAIN_OPERATOR({.type = "ConvInteger",
                  .rules = {.shape = integer_shape, .element_type = always<DType::kInt32>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = integer_kernel}});
ORTRAIN_OPERATOR({.type = "QLinearConv",
                  .rules = {.shape = linear_shape, .element_type = type_of_input<7>},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = linear_kernel}});
ORTRAIN_OPERATOR(
    {.domain = kSessionDomain,
     .type = "QLinearConv",
     .signature = "x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B? -> y",
     .rules = {.shape = linear_shape, .element_type = type_of_input<7>},
     .traits = {.stops_gradient = true},
     .kernels = {.cpu = linear_kernel},
     .made_from = {"QuantizeLinear", "Conv"}});

}  // namespace
}  // namespace ortrain
