// QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear, com.microsoft FakeQuant and their gradients.
//
//   q = saturate(round(x / scale) + zero_point), rounding halves to even;  x' = (q - zero_point) scale
//
// with one scale for the tensor, one per index along an axis, or one per block along an axis. The gradient is
// the straight-through estimator: Y. Bengio et al., "Estimating or propagating gradients through stochastic
// neurons", 2013. A pair of QuantizeLinear and DequantizeLinear passes the gradient to x where x is inside
// the range of the type.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "backend/cpu/elementwise/quantization.h"
#include "backend/cpu/stored_layout.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "op/standard_form.h"
#include "ops/common/decomposed.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

// How scales apply to a tensor seen as [outer, length, inner].
struct Granularity {
  int64_t outer = 1, length = 1, inner = 1;
  int64_t block = 1;   // consecutive indices along the length that share a scale
  int64_t scales = 1;  // along the length
  enum { kTensor, kAxis, kBlocks } kind = kTensor;

  // Calls f(first element, index of its scale, step between the scales of neighbours, count) for runs of
  // [begin, end) of the outer * length rows.
  template <typename F>
  void rows(int64_t begin, int64_t end, F&& f) const {
    if (kind == kTensor) {
      f(begin, 0, 0, end - begin);
      return;
    }
    for (int64_t row = begin; row < end; ++row) {
      const int64_t place = row % length;
      if (kind == kBlocks)
        f(row * inner, (row / length * scales + place / block) * inner, 1, inner);
      else
        f(row * inner, kind == kAxis ? place : 0, 0, inner);
    }
  }
  int64_t row_count() const { return outer * length; }
};

// For input 0 with the scale in input `scale` and the zero point after it. Rejects the node if they do not
// fit.
Granularity read_granularity(const NodeContext& c, size_t x, size_t scale, int64_t version) {
  if (c.has_input(scale + 1))
    c.expect(c.shape(scale + 1) == c.shape(scale) || (c.size(scale + 1) == 1 && c.size(scale) == 1),
             "scale and zero point must have the same shape, found ", to_string(c.shape(scale)), " and ",
             to_string(c.shape(scale + 1)));
  Granularity g;
  const Shape &shape = c.shape(x), &scales = c.shape(scale);
  const int64_t block = c.node().int_or("block_size", 0);
  c.expect(block >= 0, "block_size must not be negative, found ", block);
  if (block == 0 && (scales.empty() || scales == Shape{1})) {
    g.kind = Granularity::kTensor;
    g.outer = element_count(shape);
    return g;
  }
  c.expect(version >= 13, "before version 13 the scale must be a single value, found shape ",
           to_string(scales));
  const size_t axis = static_cast<size_t>(
      normalize_axis(c.node().int_or("axis", 1), static_cast<int64_t>(shape.size()), c.node().label()));
  g.outer = element_count(shape, 0, axis);
  g.length = shape[axis];
  g.inner = element_count(shape, axis + 1, shape.size());
  if (block == 0) {
    c.expect(scales == Shape{g.length}, "the scale must be a single value or one for each of the ",
             counted(g.length, "position"), " along axis ", axis, ", found shape ", to_string(scales));
    g.kind = Granularity::kAxis;
    return g;
  }
  g.kind = Granularity::kBlocks;
  g.block = block;
  g.scales = g.length > 0 ? (g.length - 1) / block + 1 : 0;
  Shape wanted = shape;
  wanted[axis] = g.scales;
  c.expect(scales == wanted, "the scale of blocks of ", block, " along axis ", axis, " must have shape ",
           to_string(wanted), ", found ", to_string(scales));
  return g;
}

// The nearest integer, halves to even, of a value of magnitude below 2^22 (2^51): adding a large constant
// leaves no bits for the fraction.
template <typename T>
T round_small(T x) {
  constexpr T kShift = sizeof(T) == 4 ? T(0x1.8p23) : T(0x1.8p52);
  return (x + kShift) - kShift;
}

// The values of a quantized type: integers in a range, or floats of 8 bits or less.
struct Quantized {
  double low = 0, high = 0;
  bool floats = false;
};

// nullopt if values are not quantized to the type.
std::optional<Quantized> quantized(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
      return Quantized{0, 255};
    case DType::kInt8:
      return Quantized{-128, 127};
    case DType::kUInt16:
      return Quantized{0, 65535};
    case DType::kInt16:
      return Quantized{-32768, 32767};
    case DType::kUInt4:
      return Quantized{0, 15};
    case DType::kInt4:
      return Quantized{-8, 7};
    case DType::kUInt2:
      return Quantized{0, 3};
    case DType::kInt2:
      return Quantized{-2, 1};
    case DType::kFloat8E4M3FN:
      return Quantized{-448, 448, true};
    case DType::kFloat8E4M3FNUZ:
      return Quantized{-240, 240, true};
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
      return Quantized{-57344, 57344, true};
    case DType::kFloat6E2M3:
      return Quantized{-7.5, 7.5, true};
    case DType::kFloat6E3M2:
      return Quantized{-28, 28, true};
    case DType::kFloat4E2M1:
      return Quantized{-6, 6, true};
    default:
      return std::nullopt;
  }
}

DType quantized_type(const NodeContext& c, size_t zero_point) {
  const DType stated = static_cast<DType>(c.node().int_or("output_dtype", 0));
  if (!c.has_input(zero_point)) return stated == DType::kUndefined ? DType::kUInt8 : stated;
  c.expect(stated == DType::kUndefined || stated == c.dtype(zero_point), "output_dtype is ",
           to_string(stated), ", but the zero point has type ", to_string(c.dtype(zero_point)));
  return c.dtype(zero_point);
}

// The type of the quantized values: uint8 without a zero point and without the attribute.
DType quantized_type(const ElementTypes& types, size_t) {
  const DType stated = types.attribute("output_dtype", DType::kUndefined);
  if (types.node().has_input(2)) return types[2];
  return stated == DType::kUndefined ? DType::kUInt8 : stated;
}

DType dequantized_type(const ElementTypes& types, size_t) {
  const DType stated = types.attribute("output_dtype", DType::kUndefined);
  return stated == DType::kUndefined ? types[1] : stated;
}

void expect_floating(const NodeContext& c, size_t i) {
  if (!is_floating(c.dtype(i))) c.reject_dtype(i);
}

// The type in which x / scale is computed.
DType division_type(const NodeContext& c) {
  return static_cast<DType>(c.node().int_or("precision", static_cast<int64_t>(c.dtype(1))));
}

void quantize_shape(ShapeContext& c) {
  read_granularity(c, 0, 1, c.opset());
  const DType type = quantized_type(c, 2);
  c.expect(quantized(type).has_value(), "it cannot quantize to ", to_string(type));
  for (const size_t i : {0, 1})
    if (!is_floating(c.dtype(i)) && c.dtype(i) != DType::kInt32 && !(i == 1 && is_small_float(c.dtype(i))))
      c.reject_dtype(i);
  c.expect(c.dtype(0) == c.dtype(1) || c.dtype(0) == DType::kInt32 || c.opset() >= since::kMixedScales,
           "X and the scale must have the same type before version 23, found ", to_string(c.dtype(0)),
           " and ", to_string(c.dtype(1)));
  const DType precision = division_type(c);
  c.expect(precision == c.dtype(1) || is_floating(precision),
           "attribute precision must be a floating-point type or the type of the scale, found ",
           to_string(precision));
  c.output(0, type, c.shape(0));
}

// The values of an input (scales or zero points) for the elements of a row: one value for all elements, or
// one for each.
class Beside {
 public:
  Beside(const NodeContext& c, size_t i, Slot slot)
      : dtype_(c.has_input(i) ? c.dtype(i) : DType::kUndefined), slot_(slot) {}
  // `n` values from `index` on or, if `step` is 0, `n` times the value at `index`; zeros if the node does not
  // have the input.
  void read(const Frame& f, int64_t index, int64_t step, int64_t n, double* values) const {
    if (!slot_.defined()) return std::fill_n(values, n, 0.0), void();
    read_numbers(dtype_, f.at<std::byte>(slot_), index, index + (step ? n : 1), values);
    if (!step) std::fill_n(values, n, values[0]);
  }

 private:
  DType dtype_;
  Slot slot_;
};

constexpr int64_t kPiece = 256;  // elements per block of computation in double

// Calls f(first element, count, scales, zero points) for pieces of the rows [begin, end).
template <typename F>
void in_pieces(const Frame& frame, const Granularity& g, const Beside& scale, const Beside& zero_point,
               int64_t begin, int64_t end, F&& f) {
  g.rows(begin, end, [&](int64_t at, int64_t index, int64_t step, int64_t n) {
    double scales[kPiece], zeros[kPiece];
    for (int64_t i = 0; i < n; i += kPiece) {
      const int64_t count = std::min(kPiece, n - i);
      scale.read(frame, index + i * step, step, count, scales);
      zero_point.read(frame, index + i * step, step, count, zeros);
      f(at + i, count, scales, zeros);
    }
  });
}

// `value` rounded to a value of the type.
double round_to(DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat:
      return static_cast<double>(static_cast<float>(value));
    case DType::kFloat16:
      return static_cast<double>(static_cast<float>(Float16(static_cast<float>(value))));
    case DType::kBFloat16:
      return static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(value))));
    default:
      return value;
  }
}

// q of v = x / scale; lo and hi are the range of the type less the zero point. NaN becomes lo.
template <typename T>
T rounded(T v, T zero, T lo, T hi) {
  return round_small(v > lo ? (v < hi ? v : hi) : lo) + zero;
}

// Any types; quantized values are produced as bytes or words, and packed at the end if the type is packed.
Kernel quantize_any(KernelContext& c) {
  const Granularity g = read_granularity(c, 0, 1, c.opset());
  const DType from = c.dtype(0), to = c.out_dtype(0), precision = division_type(c);
  // Integers are divided in the type of the scale.
  const bool narrow = from == DType::kInt32 && precision == DType::kFloat && c.dtype(1) == DType::kFloat;
  const Slot x = c.in(0), y = c.out(0);
  const Beside scale(c, 1, c.in(1)), zero_point(c, 2, c.has_input(2) ? c.in(2) : Slot{});
  const int64_t n = c.out_size(0);
  const bool packed = is_packed(to);
  const Slot made = packed ? c.scratch(static_cast<size_t>(n)) : y;
  const Quantized range = *quantized(to);
  Rounding rounding;
  rounding.saturate = c.node().int_or("saturate", 1) != 0;
  return [=](const Frame& f) {
    const auto store = [&](const double* values, int64_t at, int64_t count) {
      std::byte* out = f.at<std::byte>(made);
      if (range.floats) return encode_small_floats(to, values, count, out + at, rounding);
      visit_types<int8_t, uint8_t, int16_t, uint16_t>(wide_of(to), [&](auto zero) {
        auto* q = reinterpret_cast<decltype(zero)*>(out) + at;
        for (int64_t i = 0; i < count; ++i)
          q[i] = static_cast<decltype(zero)>(static_cast<int32_t>(values[i]));
      });
    };
    parallel_for(g.row_count(), 16 * g.inner, [&](int64_t begin, int64_t end) {
      in_pieces(f, g, scale, zero_point, begin, end,
                [&](int64_t at, int64_t count, const double* scales, const double* zeros) {
                  double values[kPiece];
                  read_numbers(from, f.at<std::byte>(x), at, at + count, values);
                  for (int64_t i = 0; narrow && i < count; ++i) values[i] = round_to(precision, values[i]);
                  for (int64_t i = 0; i < count; ++i) values[i] = round_to(precision, values[i] / scales[i]);
                  for (int64_t i = 0; i < count; ++i)
                    values[i] = range.floats ? values[i] + zeros[i]
                                             : rounded(values[i], zeros[i], range.low - zeros[i],
                                                       range.high - zeros[i]);
                  store(values, at, count);
                });
    });
    if (packed) from_wide(to, f.at<std::byte>(made), f.at<std::byte>(y), n);
  };
}

// From float to Q, which has 8 bits.
template <typename Q>
Kernel quantize_kernel_of(KernelContext& c) {
  const Granularity g = read_granularity(c, 0, 1, c.opset());
  // With a single scale, the elements may stay in any storage order.
  const Order order = g.kind == Granularity::kTensor ? order_of(c.in_layout(0)) : Order::kRowMajor;
  const Slot x = c.in(0, stored_layout(c.shape(0), order, false)), scale = c.in(1),
             zero_point = c.has_input(2) ? c.in(2) : Slot{}, y = c.out(0, byte_layout(c.out_shape(0), order));
  return [=](const Frame& f) {
    const float *from = f.at<float>(x), *scales = f.at<float>(scale);
    const Q* zeros = f.at_or_null<Q>(zero_point);
    Q* to = f.at<Q>(y);
    parallel_for(g.row_count(), 4 * g.inner, [&](int64_t begin, int64_t end) {
      g.rows(begin, end, [&](int64_t at, int64_t index, int64_t step, int64_t n) {
        if (step == 0) return quantize<Q>(from + at, n, scales[index], zeros ? zeros[index] : Q(0), to + at);
        constexpr float kLow = std::numeric_limits<Q>::min(), kHigh = std::numeric_limits<Q>::max();
        for (int64_t i = 0; i < n; ++i) {
          const float zero = zeros ? static_cast<float>(zeros[index + i]) : 0;
          const float q = rounded(from[at + i] / scales[index + i], zero, kLow - zero, kHigh - zero);
          to[at + i] = static_cast<Q>(static_cast<int32_t>(q));
        }
      });
    });
  };
}

Kernel quantize_kernel(KernelContext& c) {
  Kernel kernel;
  if (c.dtype(0) == DType::kFloat && c.dtype(1) == DType::kFloat && division_type(c) == DType::kFloat)
    visit_types<uint8_t, int8_t>(c.out_dtype(0),
                                 [&](auto q) { kernel = quantize_kernel_of<decltype(q)>(c); });
  return kernel ? std::move(kernel) : quantize_any(c);
}

// q carries the gradient of the dequantized value, as if q were x.
void quantize_gradient(GradientContext& g) {
  if (g.needs(1)) g.reject("the gradient of its scale is not supported");
  Names inputs = {g.dy(0), g.x(0), g.x(1)};
  if (g.has_x(2)) inputs.push_back(g.x(2));
  Attributes attributes = {{"axis", g.node().int_or("axis", 1)},
                           {"block_size", g.node().int_or("block_size", 0)}};
  attributes["output_dtype"] = static_cast<int64_t>(g.dtype(g.y(0)));
  g.set(0, g("QuantizeLinearGrad", inputs, attributes, kMicrosoft));
}

// QuantizeLinearGrad(dY, x, scale, zero_point?): dx = dy if round(x / scale) + zero_point is in the range of
// the type, else 0.
void quantize_gradient_shape(ShapeContext& c) {
  c.expect(c.shape(0) == c.shape(1) && c.dtype(0) == c.dtype(1),
           "dY must have the type and shape of X, found ", to_string(c.dtype(0)), " ", to_string(c.shape(0)),
           " and ", to_string(c.dtype(1)), " ", to_string(c.shape(1)));
  read_granularity(c, 1, 2, 13);
  const DType type = quantized_type(c, 3);
  c.expect(quantized(type).has_value(), "it cannot quantize to ", to_string(type));
  for (const size_t i : {0, 2})
    if (!is_floating(c.dtype(i)) && !(i == 2 && is_small_float(c.dtype(i)))) c.reject_dtype(i);
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel quantize_gradient_kernel(KernelContext& c) {
  if (!visit_floating(c.dtype(0), [](auto) {})) c.reject_dtype(0);
  const Granularity g = read_granularity(c, 1, 2, 13);  // already checked in the forward pass
  const Quantized range = *quantized(quantized_type(c, 3));
  const DType type = c.dtype(0);
  const Slot dy = c.in(0), x = c.in(1);
  const Beside scale(c, 2, c.in(2)), zero_point(c, 3, c.has_input(3) ? c.in(3) : Slot{});
  const Slot dx = c.out_inplace(0, {0});
  return [=](const Frame& f) {
    parallel_for(g.row_count(), 4 * g.inner, [&](int64_t begin, int64_t end) {
      in_pieces(f, g, scale, zero_point, begin, end,
                [&](int64_t at, int64_t count, const double* scales, const double* zeros) {
                  double values[kPiece];
                  read_numbers(type, f.at<std::byte>(x), at, at + count, values);
                  for (int64_t i = 0; i < count; ++i) {
                    const double v = values[i] / scales[i];
                    values[i] = (range.floats ? v : std::nearbyint(v)) + zeros[i];
                  }
                  visit_floating(type, [&](auto zero) {
                    using T = decltype(zero);
                    const T* from = f.at<T>(dy) + at;
                    T* to = f.at<T>(dx) + at;
                    for (int64_t i = 0; i < count; ++i)
                      to[i] = values[i] >= range.low && values[i] <= range.high ? from[i] : T(0);
                  });
                });
    });
  };
}

void dequantize_shape(ShapeContext& c) {
  read_granularity(c, 0, 1, c.opset());
  if (!quantized(c.dtype(0)) && c.dtype(0) != DType::kInt32) c.reject_dtype(0);
  if (c.has_input(2))
    c.expect(c.dtype(2) == c.dtype(0), "x and the zero point must have the same type, found ",
             to_string(c.dtype(0)), " and ", to_string(c.dtype(2)));
  if (!is_floating(c.dtype(1)) && !is_small_float(c.dtype(1))) c.reject_dtype(1);
  DType type = static_cast<DType>(c.node().int_or("output_dtype", 0));
  if (type == DType::kUndefined) type = c.dtype(1);
  c.expect(is_floating(type), "it cannot produce values of type ", to_string(type));
  c.output(0, type, c.shape(0));
}

// Any types. The product is computed in double and rounded once, to the type of the output.
Kernel dequantize_any(KernelContext& c) {
  const Granularity g = read_granularity(c, 0, 1, c.opset());
  const DType from = c.dtype(0);
  const Slot x = c.in(0), y = c.out(0);
  const Beside scale(c, 1, c.in(1)), zero_point(c, 2, c.has_input(2) ? c.in(2) : Slot{});
  const DType to = c.out_dtype(0);
  return [=](const Frame& f) {
    parallel_for(g.row_count(), 16 * g.inner, [&](int64_t begin, int64_t end) {
      in_pieces(f, g, scale, zero_point, begin, end,
                [&](int64_t at, int64_t count, const double* scales, const double* zeros) {
                  double values[kPiece];
                  read_numbers(from, f.at<std::byte>(x), at, at + count, values);
                  for (int64_t i = 0; i < count; ++i) values[i] = (values[i] - zeros[i]) * scales[i];
                  visit_types<float, double, Float16, BFloat16>(to, [&](auto zero) {
                    using T = decltype(zero);
                    std::transform(values, values + count, f.at<T>(y) + at, cast_number<T, double>);
                  });
                });
    });
  };
}

// To float, from integers of 8 bits and the int32 of biases.
template <typename Q>
Kernel dequantize_kernel_of(KernelContext& c) {
  const Granularity g = read_granularity(c, 0, 1, c.opset());
  const Slot x = c.in(0), scale = c.in(1), zero_point = c.has_input(2) ? c.in(2) : Slot{}, y = c.out(0);
  return [=](const Frame& f) {
    const Q *from = f.at<Q>(x), *zeros = f.at_or_null<Q>(zero_point);
    const float* scales = f.at<float>(scale);
    float* to = f.at<float>(y);
    parallel_for(g.row_count(), 2 * g.inner, [&](int64_t begin, int64_t end) {
      g.rows(begin, end, [&](int64_t at, int64_t index, int64_t step, int64_t n) {
        if constexpr (sizeof(Q) == 1)
          if (step == 0)
            return dequantize<Q>(from + at, n, scales[index], zeros ? zeros[index] : Q(0), to + at);
        for (int64_t i = 0; i < n; ++i) {
          const int64_t zero = zeros ? zeros[index + i * step] : Q(0);
          to[at + i] = static_cast<float>(from[at + i] - zero) * scales[index + i * step];
        }
      });
    });
  };
}

Kernel dequantize_kernel(KernelContext& c) {
  Kernel kernel;
  if (c.out_dtype(0) == DType::kFloat && c.dtype(1) == DType::kFloat)
    visit_types<uint8_t, int8_t, int32_t>(c.dtype(0),
                                          [&](auto q) { kernel = dequantize_kernel_of<decltype(q)>(c); });
  return kernel ? std::move(kernel) : dequantize_any(c);
}

void dequantize_gradient(GradientContext& g) {
  if (g.needs(1)) g.reject("the gradient of its scale is not supported");
  g.set(0, g.dy(0));
}

// The scale is float; values and zero point are uint8.
DType dynamic_types(const ElementTypes&, size_t o) { return o == 1 ? DType::kFloat : DType::kUInt8; }

// The range of x extended to include zero, the scale for its 255 steps, the zero point, and q as uint8.
void dynamic_shape(ShapeContext& c) {
  if (c.dtype(0) != DType::kFloat) c.reject_dtype(0);
  for (size_t o = 0; o < c.output_count(); ++o)
    if (c.has_output(o)) c.output(o, o == 1 ? DType::kFloat : DType::kUInt8, o == 0 ? c.shape(0) : Shape{});
}

Kernel dynamic_kernel(KernelContext& c) {
  const Slot x = c.in(0);
  const auto wanted = [&](size_t o) { return c.has_output(o) ? c.out(o) : Slot{}; };
  const Slot y = wanted(0), scale = wanted(1), zero_point = wanted(2);
  const int64_t n = c.size(0);
  return [=](const Frame& f) {
    const float* from = f.at<float>(x);
    const auto [s, zero] = dynamic_quantization(range_with_zero(from, n));
    if (scale.defined()) *f.at<float>(scale) = s;
    if (zero_point.defined()) *f.at<uint8_t>(zero_point) = zero;
    if (!y.defined()) return;
    uint8_t* to = f.at<uint8_t>(y);
    parallel_for(n, 1, [=, s = s, zero = zero](int64_t begin, int64_t end) {
      quantize<uint8_t>(from + begin, end - begin, s, zero, to + begin);
    });
  };
}

// FakeQuant(x, scale, zero_point): quantized to [quant_min, quant_max] and back, and whether x was in that
// range.
void fake_shape(ShapeContext& c) {
  expect_floating(c, 0);
  for (const size_t i : {1, 2})
    c.expect(c.has_input(i) && c.size(i) == 1 && c.dtype(i) == c.dtype(0),
             i == 1 ? "the scale" : "the zero point", " must be a single value of the type of X, ",
             to_string(c.dtype(0)), ", found ",
             c.has_input(i) ? concat(to_string(c.dtype(i)), to_string(c.shape(i))) : "none");
  c.expect(c.node().int_or("quant_min", 0) <= c.node().int_or("quant_max", 255),
           "quant_min must not be greater than quant_max, found ", c.node().int_or("quant_min", 0), " and ",
           c.node().int_or("quant_max", 255));
  c.output(0, c.dtype(0), c.shape(0));
  if (c.has_output(1)) c.output(1, DType::kBool, c.shape(0));
}

Kernel fake_kernel(KernelContext& c) {
  Kernel kernel;
  visit_floating(c.dtype(0), [&](auto type) {
    using T = decltype(type);
    const Slot x = c.in(0), scale = c.in(1), zero_point = c.in(2), y = c.out_inplace(0, {0});
    const Slot mask = c.has_output(1) ? c.out(1) : Slot{};
    const T low = static_cast<T>(c.node().int_or("quant_min", 0)),
            high = static_cast<T>(c.node().int_or("quant_max", 255));
    const int64_t n = c.size(0);
    kernel = [=](const Frame& f) {
      const T *from = f.at<T>(x), s = *f.at<T>(scale), zero = *f.at<T>(zero_point);
      T* to = f.at<T>(y);
      bool* inside = f.at_or_null<bool>(mask);
      parallel_for(n, 6, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const T q = std::nearbyint(from[i] / s + zero);
          if (inside) inside[i] = q >= low && q <= high;
          to[i] = (std::clamp(q, low, high) - zero) * s;
        }
      });
    };
  });
  return kernel;
}

void fake_gradient(GradientContext& g) {
  if (g.needs(1) || g.needs(2)) g.reject("the gradient of its scale and zero point is not supported");
  g.set(0, g("FakeQuantGrad", {g.dy(0), g.want_y(1)}, {}, kMicrosoft));
}

void fake_gradient_shape(ShapeContext& c) {
  expect_floating(c, 0);
  c.expect(c.dtype(1) == DType::kBool && c.shape(1) == c.shape(0),
           "the mask must be bool and of the shape of dY, ", to_string(c.shape(0)), ", found ",
           to_string(c.dtype(1)), " ", to_string(c.shape(1)));
  shape_like_first(c);
}

Kernel fake_gradient_kernel(KernelContext& c) {
  Kernel kernel;
  visit_floating(c.dtype(0), [&](auto type) {
    using T = decltype(type);
    const Slot dy = c.in(0), mask = c.in(1), dx = c.out_inplace(0, {0});
    const int64_t n = c.size(0);
    kernel = [=](const Frame& f) {
      const T* from = f.at<T>(dy);
      const bool* inside = f.at<bool>(mask);
      T* to = f.at<T>(dx);
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) to[i] = inside[i] ? from[i] : T(0);
      });
    };
  });
  return kernel;
}

ORTRAIN_OPERATOR(
    {.type = "QuantizeLinear",
     .rules = {.shape = quantize_shape, .gradient = quantize_gradient, .element_type = quantized_type},
     .traits = {.quantized = true, .narrow_types = NarrowTypes::kNative},
     .kernels = {.cpu = quantize_kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "QuantizeLinearGrad",
                  .signature = "dY, x, scale, zero_point? -> dx",
                  .rules = {.shape = quantize_gradient_shape},
                  .kernels = {.cpu = quantize_gradient_kernel}});
ORTRAIN_OPERATOR(
    {.type = "DequantizeLinear",
     .rules = {.shape = dequantize_shape, .gradient = dequantize_gradient, .element_type = dequantized_type},
     .traits = {.quantized = true, .narrow_types = NarrowTypes::kNative},
     .kernels = {.cpu = dequantize_kernel}});
ORTRAIN_OPERATOR({.type = "DynamicQuantizeLinear",
                  .rules = {.shape = dynamic_shape, .element_type = dynamic_types},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = dynamic_kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FakeQuant",
                  .signature = "input, scale, zero_point -> output, mask",
                  .rules = {.shape = fake_shape,
                            .gradient = fake_gradient,
                            .element_type = first_like_input<DType::kBool>},
                  .kernels = {.cpu = fake_kernel}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "FakeQuantGrad",
                  .signature = "dY, gradient_mask -> dX",
                  .rules = {.shape = fake_gradient_shape},
                  .kernels = {.cpu = fake_gradient_kernel}});

// -----------------------------------------------------------------------------------------------------------
// With operators of ONNX.

void fake_gradient_form(DecompositionContext& e) {
  const Expression dy(e, e.x(0));
  e.set(0, Expression(e, e.x(1)).choose(dy, dy.number(0)));
}

// The value is computed as in the kernel, in the type of X.
void fake_form(DecompositionContext& e) {
  const Expression x(e, e.x(0)), scale(e, as_scalar(e, e.x(1))), zero(e, as_scalar(e, e.x(2)));
  const Expression low = x.number(static_cast<double>(e.node().int_or("quant_min", 0))),
                   high = x.number(static_cast<double>(e.node().int_or("quant_max", 255)));
  const Expression q = (x / scale + zero).call("Round");
  e.set(0, (Expression(e, e("Clip", {q, low, high})) - zero) * scale);
  if (e.has_y(1)) e.set(1, q.call("GreaterOrEqual", low).call("And", q.call("LessOrEqual", high)));
}

// The scale or zero point (input `i`) for each element of X: one for all, one per index of an axis, or one
// per block of an axis.
Expression granular_form(DecompositionContext& e, size_t i) {
  const Name value = cast_like(e, e.x(i), e.x(1));
  const auto dims = e.dims(e.x(2));
  if (!dims) e.reject("the rank of its scale is not known");
  if (dims->empty()) return {e, value};
  const int64_t rank = need_rank(e, e.x(1));
  const int64_t axis = normalize_axis(e.node().int_or("axis", 1), rank, e.node().label());
  if (const int64_t block = e.node().int_or("block_size", 0); block != 0) {
    const auto integer = [&](int64_t number) { return e.constant(Tensor::scalar(number)); };
    const Name size = e("Gather", {e("Shape", {e.x(1)}), integer(axis)});
    const Name places = e("Div", {e("Range", {integer(0), size, integer(1)}), integer(block)});
    return {e, e("Gather", {value, places}, {{"axis", axis}})};
  }
  std::vector<int64_t> shape(static_cast<size_t>(rank), 1);
  shape[static_cast<size_t>(axis)] = -1;
  return {e, e("Reshape", {value, e.int64s(shape)})};
}

// dY where X / scale, rounded if the type is an integer type, plus zero_point is in the range of the type.
void quantize_gradient_form(DecompositionContext& e) {
  const Expression dy(e, e.x(0));
  const auto type = static_cast<DType>(e.node().int_or("output_dtype", static_cast<int64_t>(DType::kUInt8)));
  const std::optional<Quantized> range = quantized(type);
  if (!range) e.reject("it cannot quantize to ", to_string(type));
  const Expression ratio = Expression(e, e.x(1)) / granular_form(e, 2),
                   q = range->floats ? ratio : ratio.call("Round");
  const Expression placed = e.has_x(3) ? q + granular_form(e, 3) : q;
  const Expression inside = placed.call("GreaterOrEqual", placed.number(range->low))
                                .call("And", placed.call("LessOrEqual", placed.number(range->high)));
  e.set(0, inside.choose(dy, dy.number(0)));
}
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "FakeQuant", {cold<fake_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "FakeQuantGrad", {cold<fake_gradient_form>});
ORTRAIN_OPERATOR_FACT(StandardForm, kMicrosoft, "QuantizeLinearGrad", {cold<quantize_gradient_form>});

}  // namespace
}  // namespace ortrain
