// Cast and CastLike, which convert between all real types, bool and strings; and BitCast.

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backend/cpu/strided_copy.h"
#include "op/decomposition.h"
#include "ops/common/elementwise.h"
#include "runtime/convert.h"
#include "runtime/text_tensor.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

template <typename F>
bool visit_castable(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16:
      f(Float16{});
      return true;
    case DType::kBFloat16:
      f(BFloat16{});
      return true;
    default:
      return visit_numeric_or_bool(dtype, f);
  }
}

// The type that the attribute names; none if it is missing, which the shape rule rejects.
DType stated_type(const ElementTypes& types, size_t) { return types.attribute("to", DType::kUndefined); }

DType stated_target(const NodeContext& c) {
  c.expect(c.node().has("to"), "the attribute 'to' is missing");
  return static_cast<DType>(c.node().int_or("to", 0));
}

void shape_of(ShapeContext& c, DType to) {
  if (!is_real(c.dtype(0)) && c.dtype(0) != DType::kString) c.reject_dtype(0);
  c.expect(is_real(to) || to == DType::kString, "it cannot cast to ", to_string(to));
  c.output(0, to, c.shape(0));
}

void shape(ShapeContext& c) { shape_of(c, stated_target(c)); }

void shape_like_second(ShapeContext& c) { shape_of(c, c.dtype(1)); }

Rounding rounding_of(const NodeContext& c) {
  Rounding rounding;
  rounding.saturate = c.node().int_or("saturate", 1) != 0;
  const std::string mode = c.node().string_or("round_mode", "up");
  c.expect(mode == "up" || mode == "down" || mode == "nearest",
           "round_mode must be 'up', 'down' or 'nearest', found '", mode, "'");
  rounding.mode = mode == "up" ? Rounding::kUp : mode == "down" ? Rounding::kDown : Rounding::kNearest;
  return rounding;
}

// Converts n elements.
using Convert = void (*)(const void* x, void* y, int64_t n);

template <typename From, typename To>
void convert(const void* x, void* y, int64_t n) {
  // Compilers vectorize loops over bytes, but not over bool.
  using Stored = std::conditional_t<std::is_same_v<From, bool> && !std::is_same_v<To, bool>, uint8_t, From>;
  const Stored* from = static_cast<const Stored*>(x);
  To* to = static_cast<To*>(y);
  for (int64_t i = 0; i < n; ++i) to[i] = cast_number<To>(from[i]);
}

// A conversion in one step, for the pairs of types that models use most; null for other pairs.
Convert direct(DType source, DType target) {
  Convert found = nullptr;
  const auto to = [&](auto zero) { found = convert<decltype(zero), float>; };
  if (target == DType::kFloat) visit_types<double, int32_t, int64_t, uint8_t, bool>(source, to);
  const auto from = [&](auto zero) { found = convert<float, decltype(zero)>; };
  if (source == DType::kFloat) visit_types<double, int32_t, int64_t, uint8_t, bool>(target, from);
  const auto to_index = [&](auto zero) { found = convert<decltype(zero), int64_t>; };
  if (target == DType::kInt64) visit_types<int32_t, bool>(source, to_index);
  if (source == DType::kInt64 && target == DType::kInt32) found = convert<int64_t, int32_t>;
  return found;
}

// A type that holds every value of T. A conversion without a direct function goes through the wide type of
// the source.
template <typename T>
using Wide = std::conditional_t<!std::is_integral_v<T>, double,
                                std::conditional_t<std::is_same_v<T, uint64_t>, uint64_t, int64_t>>;

struct Steps {
  Convert widen = nullptr, narrow = nullptr;  // null if kernels do not compute in one of the types
};
Steps steps(DType source, DType target) {
  Steps found;
  visit_castable(source, [&](auto from) {
    using Middle = Wide<decltype(from)>;
    found.widen = convert<decltype(from), Middle>;
    visit_castable(target, [&](auto to) { found.narrow = convert<Middle, decltype(to)>; });
  });
  return found;
}

// The text of a number, and the number of a text; throws if the text is not a number. The texts are those of
// onnxruntime.
std::string text_of(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x > 0 ? "INF" : "-INF";
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.8g", x);
  return digits;
}
std::string text_of(int64_t x) { return std::to_string(x); }
std::string text_of(uint64_t x) { return std::to_string(x); }

// A number of a type as its wide type T.
template <typename T>
T number_of(const std::string& digits, DType type) {
  size_t used = 0;
  T number{};
  try {
    if (type == DType::kDouble)
      number = static_cast<T>(std::stod(digits, &used));
    else if (std::is_same_v<T, double>)
      number = static_cast<T>(std::stof(digits, &used));
    else if (type == DType::kUInt8 || type == DType::kUInt16 || type == DType::kUInt32 ||
             type == DType::kUInt64 || type == DType::kBool)
      number = static_cast<T>(std::stoull(digits, &used));
    else
      number = static_cast<T>(std::stoll(digits, &used));
  } catch (const std::exception&) {
    used = 0;
  }
  require(used > 0, ErrorCode::kInvalidArgument, "\"", digits, "\" is not a number that can be cast");
  return number;
}

// The kernel for numbers of a type whose wide type is T.
template <typename T>
Kernel text_kernel_of(KernelContext& c, DType type) {
  const Slot x = c.in(0), y = c.out(0);
  const int64_t n = c.out_size(0);
  const auto width = static_cast<int64_t>(size_of(type));
  const Steps step = steps(type, type);
  if (c.dtype(0) == DType::kString)
    return [=](const Frame& f) {
      for (int64_t i = 0; i < n; ++i) {
        const T number = number_of<T>(text(f.at<Text>(x)[i]), type);
        step.narrow(&number, f.at<std::byte>(y) + i * width, 1);
      }
    };
  return [=](const Frame& f) {
    for (int64_t i = 0; i < n; ++i) {
      T number{};
      step.widen(f.at<std::byte>(x) + i * width, &number, 1);
      f.at<Text>(y)[i] = keep_text(text_of(number));
    }
  };
}

Kernel text_kernel(KernelContext& c) {
  const DType type = c.dtype(0) == DType::kString ? c.out_dtype(0) : c.dtype(0);
  Kernel kernel;
  visit_castable(type, [&](auto zero) { kernel = text_kernel_of<Wide<decltype(zero)>>(c, type); });
  if (!kernel) c.reject_dtype(0);
  return kernel;
}

constexpr int64_t kPiece = 512;  // elements converted through double at a time

// Elements [begin, end) from or to a narrow type, through double, which holds every value of narrow types.
void convert_piece(DType from, const std::byte* source, DType to, std::byte* target, int64_t begin,
                   int64_t end, const Rounding& rounding) {
  double values[kPiece];
  std::byte bytes[kPiece];
  const int64_t n = end - begin;
  read_numbers(from, source, begin, end, values);
  if (const Convert narrow = steps(DType::kDouble, to).narrow)
    return narrow(values, target + begin * static_cast<int64_t>(size_of(to)), n);
  std::byte* out = is_packed(to) ? bytes : target + begin;
  if (is_small_float(to)) {
    encode_small_floats(to, values, n, out, rounding);
  } else {
    // An integer smaller than a byte keeps the lowest bits, which a double does not have for large integers.
    const bool integers = visit_types<int64_t, uint64_t>(from, [&](auto zero) {
      const auto* in = reinterpret_cast<const decltype(zero)*>(source) + begin;
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(in[i]);
    });
    if (!integers)
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(cast_number<int64_t>(values[i]));
  }
  if (is_packed(to)) pack(to, bytes, begin, end, target);
}

Kernel kernel(KernelContext& c) {
  const DType source = c.dtype(0), target = c.out_dtype(0);
  if (source == target) {
    c.alias(0, 0);
    return nullptr;
  }
  if (source == DType::kString || target == DType::kString) return text_kernel(c);
  const bool masks = source == DType::kBool && target == DType::kFloat;
  const LayoutPtr layout = masks ? flat_layout(c, 0) : nullptr;
  const Slot x = c.in(0, layout), y = c.out(0, layout_like(layout, target, c.out_shape(0)));
  const int64_t n = c.out_size(0);
  if (source == DType::kFloat && is_half(target))
    return [=](const Frame& f) { from_wide(target, f.at<std::byte>(x), f.at<std::byte>(y), n); };
  if (target == DType::kFloat && is_half(source))
    return [=](const Frame& f) { to_wide(source, f.at<std::byte>(x), f.at<std::byte>(y), n); };
  const auto width_x = static_cast<int64_t>(size_of(source)), width_y = static_cast<int64_t>(size_of(target));
  if (const Convert convert = direct(source, target))
    return [=](const Frame& f) {
      parallel_for(n, 1, [&](int64_t begin, int64_t end) {
        convert(f.at<std::byte>(x) + begin * width_x, f.at<std::byte>(y) + begin * width_y, end - begin);
      });
    };
  if (const Steps step = steps(source, target); step.narrow)
    return [=](const Frame& f) {
      parallel_for(n, 2, [&](int64_t begin, int64_t end) {
        alignas(int64_t) std::byte wide[kPiece * sizeof(int64_t)];
        for (int64_t i = begin; i < end; i += kPiece) {
          const int64_t count = std::min(kPiece, end - i);
          step.widen(f.at<std::byte>(x) + i * width_x, wide, count);
          step.narrow(wide, f.at<std::byte>(y) + i * width_y, count);
        }
      });
    };
  return [=, rounding = rounding_of(c)](const Frame& f) {
    parallel_for((n + kPiece - 1) / kPiece, 8 * kPiece, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece)
        convert_piece(source, f.at<std::byte>(x), target, f.at<std::byte>(y), piece * kPiece,
                      std::min((piece + 1) * kPiece, n), rounding);
    });
  };
}

// The gradient is cast back to the input's type; integers have none.
void gradient(GradientContext& g) {
  const DType from = g.dtype(g.x(0));
  if (g.needs(0) && is_floating(from)) g.set(0, g("Cast", {g.dy(0)}, {{"to", static_cast<int64_t>(from)}}));
}

// A cast that does not read the second input: the input need not be computed, and the result is a constant if
// the first input is one.
void cast_to_second(DecompositionContext& e) {
  const DType to = e.dtype(e.x(1));
  if (to == DType::kUndefined) e.reject("the type of input 1 is not known");
  Attributes attributes = e.node().attributes;
  attributes["to"] = static_cast<int64_t>(to);
  e.set(0, e("Cast", {e.x(0)}, attributes));
}

ORTRAIN_OPERATOR(
    {.type = "Cast",
     .rules = {.shape = shape, .gradient = gradient, .element_type = stated_type},
     .traits = {.since = 6, .narrow_types = NarrowTypes::kNative, .positions = elementwise_positions},
     .kernels = {.cpu = kernel}});
ORTRAIN_OPERATOR({.type = "CastLike",
                  .rules = {.shape = shape_like_second,
                            .gradient = gradient,
                            .decompose = cast_to_second,
                            .element_type = type_of_input<1>},
                  .traits = {.decomposed_to_run = true, .narrow_types = NarrowTypes::kNative},
                  .kernels = {.cpu = kernel}});

// BitCast: the same bits as elements of another type of the same width.
void bit_cast_shape(ShapeContext& c) {
  const DType from = c.dtype(0), to = stated_target(c);
  for (const DType type : {from, to})
    c.expect(type != DType::kString, "strings have no bits that could be reinterpreted");
  c.expect(bits_of(to) > 0 && bits_of(to) == bits_of(from), "it cannot reinterpret ", to_string(from), " of ",
           bits_of(from), " bits as ", to_string(to), " of ", bits_of(to), " bits: the widths must be equal");
  c.output(0, to, c.shape(0));
}

Kernel bit_cast_kernel(KernelContext& c) {
  const Slot x = c.in(0), y = c.out_inplace(0, {0});
  const size_t bytes = bytes_of(c.out_dtype(0), c.out_size(0));
  const bool truth = c.out_dtype(0) == DType::kBool;
  return [=](const Frame& f) {
    const std::byte* from = f.at<std::byte>(x);
    std::byte* to = f.at<std::byte>(y);
    if (from != to) copy_bytes(to, from, bytes);
    // Bytes other than 0 and 1 are not valid values of a C++ bool.
    if (truth)
      for (size_t i = 0; i < bytes; ++i) to[i] = std::byte{to[i] != std::byte{0}};
  };
}

ORTRAIN_OPERATOR({.type = "BitCast",
                  .rules = {.shape = bit_cast_shape, .element_type = stated_type},
                  .traits = {.stops_gradient = true, .narrow_types = NarrowTypes::kNative},
                  .kernels = {.cpu = bit_cast_kernel}});

}  // namespace
}  // namespace ortrain
