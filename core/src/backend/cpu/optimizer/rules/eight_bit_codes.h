// The codes of moments of 8 bits. A code numbers an interval of magnitudes, as shares of the largest one of a
// block. The interval is that of a float whose mantissa is cut off: shares are scaled and increased by about
// one, so that eight powers of two divide them, with as many intervals each, and those close to zero are
// linear. A code stands for the middle of its interval. Codes and levels take a few instructions, without
// tables.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

namespace ortrain {

// With bits(k) the float whose bits are those of 1 plus k · 2^kShift, the interval of code k are the shares
// whose kLevels · share + kOffset is from bits(k) to bits(k + 1).
template <int kShiftOf>
struct EightBitCode {
  static constexpr int kShift = kShiftOf;
  static constexpr int32_t kMost = (8 << (23 - kShift)) - 1;
  static constexpr int32_t kOne = std::bit_cast<int32_t>(1.0f), kHalf = 1 << (kShift - 1);

  static constexpr float middle(int32_t code) {
    return std::bit_cast<float>(kOne + (code << kShift) + kHalf);
  }
};

// Of the first moment: -127 to 127. The level of 0 is 0, those of others have the sign of the code.
struct FirstMomentCode : EightBitCode<19> {
  static constexpr float kOffset = middle(0), kLevels = middle(kMost) - kOffset;
};

// Of the root of the second moment: 0 to 255. Even the level of 0 is above zero, so that no weight divides
// by a root that was rounded to nothing.
struct SecondRootCode : EightBitCode<18> {
  static constexpr float kOffset = 1, kLevels = middle(kMost) - kOffset;
};

// Levels times kLevels: kLevels for the largest magnitude.
template <class Code>
constexpr float level_of(int32_t code) {
  const float level = Code::middle(code < 0 ? -code : code) - Code::kOffset;
  return code < 0 ? -level : level;
}

// `scaled` is a share times kLevels.
template <class Code>
int32_t code_of(float scaled) {
  const auto bits = std::bit_cast<int32_t>(std::abs(scaled) + Code::kOffset);
  const int32_t code = std::clamp((bits >> Code::kShift) - (Code::kOne >> Code::kShift), 0, Code::kMost);
  return std::signbit(scaled) ? -code : code;
}

// Blocks whose largest magnitude is smaller have the scale 0.
inline constexpr float kLeastScale = 0x1p-100f;

}  // namespace ortrain
