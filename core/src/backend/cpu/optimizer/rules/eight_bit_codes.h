// The codes of the authors' dynamic tree quantization, which moments of 8 bits have.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace ortrain {

// 256 numbers, sorted: seven decades with ever more steps, 0 and 1; with a sign, half of them are negative.
// The code of a number is the place of the nearest one; in the middle of two, of that with the smaller
// magnitude.
struct EightBitCodes {
  // The upper halves of the bits of floats: every magnitude up to the smaller one has the code of zero.
  static constexpr uint32_t kLeast = std::bit_cast<uint32_t>(0x1p-23f) >> 16,
                            kMost = std::bit_cast<uint32_t>(1.0f) >> 16;

  explicit EightBitCodes(bool is_signed);

  // Of a number from -1 to 1. Those outside, and NaN, have the code of the largest magnitude.
  uint8_t code(float x) const {
    const auto bits = std::bit_cast<uint32_t>(x);
    const uint32_t magnitude = std::clamp(bits & 0x7FFFFFFF, kLeast << 16, kMost << 16);
    const uint32_t place = (entries[(magnitude >> 16) - kLeast] + (magnitude & 0xFFFF)) >> 16;
    return static_cast<uint8_t>(bits >> 31 ? zero - std::min(place, zero) : zero + place);
  }

  std::array<float, 256> levels{};
  uint32_t zero = 0;  // the code of 0
  // Levels as a formula, for vectors. With q = code - shift, or its magnitude, and 2^d the largest power of
  // two up to q, a level is (18 q + 9 - 16 · 2^d) times the factor of d, whose place is d - 1 modulo 8, in
  // two parts so that a multiplication and addition that is rounded once gives the level. The code of 0 is no
  // such level.
  int32_t shift = 0;
  std::array<float, 16> factors{}, factor_rests{};  // twice, for vectors of sixteen
  // For each upper half of a magnitude's bits: such magnitudes are nearest to one of at most two levels. The
  // upper half of the entry is the place of the first one, counted from zero. The lower half is such that
  // adding the lower half of the magnitude's bits carries over if the second one is nearer.
  std::array<uint32_t, kMost - kLeast + 1> entries{};
};

const EightBitCodes& eight_bit_codes(bool is_signed);

// The levels of n codes, times a scale.
void read_codes(const EightBitCodes& codes, const uint8_t* from, int64_t n, float scale, float* to);
void read_codes(const EightBitCodes& codes, const uint8_t* from, int64_t n, float scale, double* to);
// Stores n numbers as codes and returns the scale.
float write_codes(const EightBitCodes& codes, const float* x, int64_t n, uint8_t* to);
float write_codes(const EightBitCodes& codes, const double* x, int64_t n, uint8_t* to);

}  // namespace ortrain
