// 16-bit floats as bits: conversion from and to float, rounding to nearest even.
#pragma once

#include <bit>
#include <cstdint>

namespace ortrain {

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits.
struct Float16 {
  uint16_t bits;

  Float16() = default;
  explicit Float16(float value) {
    const uint32_t x = std::bit_cast<uint32_t>(value);
    const uint32_t sign = x >> 16 & 0x8000, magnitude = x & 0x7fffffff;
    uint32_t result;
    if (magnitude > 0x7f800000) {
      result = 0x7e00;  // NaN
    } else if (magnitude >= 0x47800000) {
      result = 0x7c00;  // 65536 and more, and infinity
    } else if (magnitude < 0x38800000) {
      // Below 2^-14 the result counts units of 2^-24: adding 1/2 makes the processor shift and round.
      result = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
    } else {
      // Shift the fraction by 13 and rebias the exponent; a carry propagates into the exponent, as it should.
      result = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    }
    bits = static_cast<uint16_t>(sign | result);
  }

  explicit operator float() const {
    const uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    // Scaling by 2^112 rebiases the exponent, subnormal numbers included.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    const uint32_t value =
        magnitude >= 0x7c00 ? (magnitude << 13 | 0x7f800000) : std::bit_cast<uint32_t>(scaled);
    return std::bit_cast<float>(sign | value);
  }
};

// bfloat16: the upper half of a float.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    const uint32_t x = std::bit_cast<uint32_t>(value);
    const bool nan = (x & 0x7fffffff) > 0x7f800000;
    bits = static_cast<uint16_t>(nan ? 0x7fc0 | x >> 16 : (x + 0x7fff + (x >> 16 & 1)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

}  // namespace ortrain
