// The loops of quantization: ranges, and rounding to 8-bit integers.
#pragma once

#include <cstdint>

namespace ortrain {

// The least and the greatest of n values and zero; NaN is ignored.
struct FloatRange {
  float low = 0, high = 0;
};
FloatRange range_with_zero(const float* x, int64_t n);

// Scale and zero point with which 255 steps cover a range that includes zero.
struct DynamicQuantization {
  float scale;
  uint8_t zero;
};
DynamicQuantization dynamic_quantization(const FloatRange& range);

// Q: uint8_t or int8_t.

// y = saturate(round(x / scale) + zero), halves to even; NaN becomes the least value.
template <typename Q>
void quantize(const float* x, int64_t n, float scale, Q zero, Q* y);
// y = (x - zero) scale
template <typename Q>
void dequantize(const Q* x, int64_t n, float scale, Q zero, float* y);

// The codes that results of a requantization may have, and that of zero.
struct CodeRange {
  int32_t zero, lowest, highest;
};
// The largest factor between sums and codes whose products in float are finite.
inline constexpr double kLargestFactor = 1e28;

// How sums of products become quantized values: y = saturate(round(sum left right / divisor) + zero),
// computed in double from left to right, halves to even.
struct Requantization {
  double left;
  const float* right;  // one for each value if `each`
  bool each;
  double divisor, zero;
};
template <typename Q>
void requantize(const int32_t* sums, int64_t n, const Requantization& how, Q* y);
// That function for this processor, for callers that call it often.
template <typename Q>
using Requantizer = void (*)(const int32_t* sums, int64_t n, const Requantization& how, Q* y);
template <typename Q>
Requantizer<Q> requantizer();

}  // namespace ortrain
