// Conversion of elements of narrow types (16-bit floats, floats of 8 bits or less, integers smaller than a
// byte) to and from the types that kernels compute in.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "runtime/dtype.h"

namespace ortrain {

// Whether elements of this type are real numbers: all types of fixed size except complex ones.
inline bool is_real(DType t) {
  return bits_of(t) > 0 && t != DType::kComplex64 && t != DType::kComplex128 && t != DType::kString;
}

// Whether this is one of the floats of 8 bits or less.
bool is_small_float(DType t);

// Converts a number to another type. Floating to integer truncates toward zero; numbers out of range
// saturate, NaN becomes 0. Conversion to bool tests whether the number differs from zero.
template <typename To, typename From>
To cast_number(From x) {
  constexpr auto is_half = []<typename T>(T) {
    return std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
  };
  if constexpr (is_half(From{})) {
    return cast_number<To>(static_cast<float>(x));
  } else if constexpr (is_half(To{})) {
    return To(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // 2^width is exact in From; the largest integer may not be.
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kPast = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * 2;
    if (std::isnan(x)) return 0;
    return x >= kPast  ? std::numeric_limits<To>::max()
           : x <= kLow ? std::numeric_limits<To>::min()
                       : static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// Packed elements share bytes, but this many fill whole bytes, whatever their type.
inline constexpr int64_t kPackedGroup = 8;

// Reads the values of elements [begin, end) at `data`, which are of a real type.
void read_numbers(DType dtype, const std::byte* data, int64_t begin, int64_t end, double* values);

// How numbers are rounded to floats of 8 bits or less, as ONNX Cast specifies.
struct Rounding {
  enum Mode { kNearest, kUp, kDown };
  bool saturate = true;  // numbers out of range become the largest number, else infinity or NaN
  Mode mode = kNearest;  // for float8e8m0; the others round to nearest even
};

// Encodes numbers as floats of 8 bits or less, one byte each.
void encode_small_floats(DType dtype, const double* values, int64_t n, std::byte* bytes,
                         const Rounding& rounding);

// Converts elements [begin, end) of a packed type to and from one byte each; integers keep their values,
// floats their bits. pack() requires `begin` to be a multiple of kPackedGroup, and `end` too if elements
// follow. Excess high bits are dropped.
void unpack(DType dtype, const std::byte* packed, int64_t begin, int64_t end, std::byte* bytes);
void pack(DType dtype, const std::byte* bytes, int64_t begin, int64_t end, std::byte* packed);

// Conversion of 16-bit floats, rounding to nearest even, on the calling thread.
void widen(const Float16* from, float* to, int64_t n);
void widen(const BFloat16* from, float* to, int64_t n);
void narrow(const float* from, Float16* to, int64_t n);
void narrow(const float* from, BFloat16* to, int64_t n);

// Converts `n` elements of a type to and from its wide_of(), which must be another type. Threaded.
void to_wide(DType dtype, const std::byte* from, std::byte* wide, int64_t n);
void from_wide(DType dtype, const std::byte* wide, std::byte* to, int64_t n);

}  // namespace ortrain
