// Compiled once for each vector instruction set; the best one is chosen when the program runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/convert.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include "runtime/convert.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// True if the processor converts float16 in hardware; Highway's emulation on others may not round to nearest.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
constexpr bool kFloat16InHardware = true;
#else
constexpr bool kFloat16InHardware = false;
#endif

void widen_float16(const Float16* from, float* to, int64_t n) {
  int64_t i = 0;
  if constexpr (kFloat16InHardware) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; i + lanes <= n; i += lanes)
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from + i))), d,
                 to + i);
  }
  for (; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

void narrow_float16(const float* from, Float16* to, int64_t n) {
  int64_t i = 0;
  if constexpr (kFloat16InHardware) {
    const hn::ScalableTag<float> d;
    const hn::Rebind<hwy::float16_t, decltype(d)> half;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (; i + lanes <= n; i += lanes)
      hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, from + i)), half, reinterpret_cast<hwy::float16_t*>(to + i));
  }
  for (; i < n; ++i) to[i] = Float16(from[i]);
}

// Without branches, so that the compiler vectorizes these two for each instruction set.
void widen_bfloat16(const BFloat16* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]);
}

void narrow_bfloat16(const float* from, BFloat16* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = BFloat16(from[i]);
}

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/error.h"
#include "runtime/threads.h"

namespace ortrain {

void widen(const Float16* from, float* to, int64_t n) { ORTRAIN_DISPATCH(widen_float16)(from, to, n); }
void widen(const BFloat16* from, float* to, int64_t n) { ORTRAIN_DISPATCH(widen_bfloat16)(from, to, n); }
void narrow(const float* from, Float16* to, int64_t n) { ORTRAIN_DISPATCH(narrow_float16)(from, to, n); }
void narrow(const float* from, BFloat16* to, int64_t n) { ORTRAIN_DISPATCH(narrow_bfloat16)(from, to, n); }

namespace {

// A float of 8 bits or less: sign, exponent, fraction. A code is the bits without the sign; codes increase
// with the magnitude, and the subnormal ones count units of 2^(1 - bias - fraction), as in IEEE 754.
struct SmallFormat {
  int fraction, bias;
  uint8_t sign;        // the sign bit
  uint8_t largest;     // code of the largest number
  uint8_t infinity;    // the result of overflow without saturation; 0: none
  uint8_t nan;         // 0: none
  bool unsigned_zero;  // there is a single zero; negative zero is the only NaN
};

// IEEE P3109 and the Open Compute Project's 8-bit and microscaling formats.
SmallFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3FN:
      return {3, 7, 0x80, 0x7e, 0x7f, 0x7f, false};
    case DType::kFloat8E4M3FNUZ:
      return {3, 8, 0x80, 0x7f, 0x80, 0x80, true};
    case DType::kFloat8E5M2:
      return {2, 15, 0x80, 0x7b, 0x7c, 0x7e, false};
    case DType::kFloat8E5M2FNUZ:
      return {2, 16, 0x80, 0x7f, 0x80, 0x80, true};
    case DType::kFloat6E2M3:
      return {3, 1, 0x20, 0x1f, 0, 0, false};
    case DType::kFloat6E3M2:
      return {2, 3, 0x20, 0x1f, 0, 0, false};
    case DType::kFloat4E2M1:
      return {1, 1, 0x8, 0x7, 0, 0, false};
    default:
      fail(ErrorCode::kFail, to_string(dtype), " is not a small float type");
  }
}

double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

uint8_t encode(const SmallFormat& f, double x, bool saturate) {
  const uint8_t sign = std::signbit(x) ? f.sign : 0;
  if (std::isnan(x)) return f.nan == 0 ? 0 : f.unsigned_zero ? f.nan : sign | f.nan;
  const double magnitude = std::fabs(x);
  const int exponent =
      std::max(static_cast<int>(std::bit_cast<uint64_t>(magnitude) >> 52) - 1023, 1 - f.bias);
  // Larger exponents always overflow, and their codes would not fit.
  if (exponent > 16)
    return f.infinity == 0 || saturate ? sign | f.largest : f.unsigned_zero ? f.nan : sign | f.infinity;
  // The magnitude in units in the last place: [2^fraction, 2^(fraction + 1)] for normal numbers; the upper
  // end carries into the exponent, as it should.
  const int units = static_cast<int>(std::nearbyint(magnitude * power_of_two(f.fraction - exponent)));
  const int code = ((exponent + f.bias - 1) << f.fraction) + units;
  if (code > f.largest)
    return f.infinity == 0 || saturate ? sign | f.largest : f.unsigned_zero ? f.nan : sign | f.infinity;
  return code == 0 && f.unsigned_zero ? 0 : static_cast<uint8_t>(sign | code);
}

double decode(const SmallFormat& f, int bits) {
  const bool negative = (bits & f.sign) != 0;
  const int code = bits & (f.sign - 1), exponent = code >> f.fraction;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (f.unsigned_zero && bits == f.nan) return nan;
  double value;
  if (!f.unsigned_zero && code > f.largest && f.infinity != 0) {
    value = code == f.infinity && f.infinity != f.nan ? std::numeric_limits<double>::infinity() : nan;
  } else {
    const int fraction = code & ((1 << f.fraction) - 1);
    const int units = exponent == 0 ? fraction : fraction + (1 << f.fraction);
    value = units * power_of_two(std::max(exponent, 1) - f.bias - f.fraction);
  }
  return negative ? -value : value;
}

// float8e8m0 is a bare exponent, 2^(code - 127), and 255 is NaN. Computed in float, as ONNX specifies;
// halfway between two powers rounds up.
uint8_t encode_exponent(double x, const Rounding& rounding) {
  constexpr uint32_t kInfinity = 0x7f800000, kSmallest = 0x400000;  // the bits of 2^-127
  constexpr uint8_t kNan = 0xff, kLargest = 0xfe;
  const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(x)) & 0x7fffffff;
  if (bits > kInfinity) return kNan;
  if (bits < kSmallest) return rounding.saturate ? 0 : kNan;
  const bool subnormal = bits < 2 * kSmallest;  // the power is given by the highest bit of the fraction
  const uint32_t power = bits >> 23, rest = subnormal ? (bits - kSmallest) << 1 : bits & 0x7fffff;
  const bool up = rounding.mode == Rounding::kUp        ? rest > 0
                  : rounding.mode == Rounding::kNearest ? rest >= 0x400000
                                                        : false;
  const uint32_t code = power + (up ? 1 : 0);
  return code > kLargest && rounding.saturate ? kLargest : static_cast<uint8_t>(code);
}

using Table = std::array<double, 256>;

Table table_of(DType dtype) {
  Table table{};
  for (int bits = 0; bits < 256; ++bits)
    table[static_cast<size_t>(bits)] =
        dtype == DType::kFloat8E8M0
            ? (bits == 0xff ? std::numeric_limits<double>::quiet_NaN() : power_of_two(bits - 127))
            : decode(format_of(dtype), bits);
  return table;
}

// The value of every bit pattern of a small float.
const Table& decoded(DType dtype) {
  static const std::array<Table, 8> tables = {
      table_of(DType::kFloat8E4M3FN),   table_of(DType::kFloat8E4M3FNUZ), table_of(DType::kFloat8E5M2),
      table_of(DType::kFloat8E5M2FNUZ), table_of(DType::kFloat8E8M0),     table_of(DType::kFloat4E2M1),
      table_of(DType::kFloat6E2M3),     table_of(DType::kFloat6E3M2)};
  switch (dtype) {
    case DType::kFloat8E8M0:
      return tables[4];
    case DType::kFloat4E2M1:
      return tables[5];
    case DType::kFloat6E2M3:
      return tables[6];
    case DType::kFloat6E3M2:
      return tables[7];
    default:
      return tables[static_cast<size_t>(dtype) - static_cast<size_t>(DType::kFloat8E4M3FN)];
  }
}

// Calls f(first, count) for parts of [begin, end) that fit in a buffer of kPiece elements and begin at
// multiples of kPackedGroup.
constexpr int64_t kPiece = 512;
static_assert(kPiece % kPackedGroup == 0);
template <typename F>
void in_pieces(int64_t begin, int64_t end, F&& f) {
  for (int64_t at = begin; at < end; at += kPiece) f(at, std::min(kPiece, end - at));
}

bool is_signed_packed(DType dtype) { return dtype == DType::kInt4 || dtype == DType::kInt2; }

}  // namespace

bool is_small_float(DType t) {
  switch (t) {
    case DType::kFloat8E4M3FN:
    case DType::kFloat8E4M3FNUZ:
    case DType::kFloat8E5M2:
    case DType::kFloat8E5M2FNUZ:
    case DType::kFloat8E8M0:
    case DType::kFloat4E2M1:
    case DType::kFloat6E2M3:
    case DType::kFloat6E3M2:
      return true;
    default:
      return false;
  }
}

void unpack(DType dtype, const std::byte* packed, int64_t begin, int64_t end, std::byte* bytes) {
  const int width = static_cast<int>(bits_of(dtype)), spare = 8 - width;
  const bool extend = is_signed_packed(dtype);
  const auto* from = reinterpret_cast<const uint8_t*>(packed);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t bit = i * width;
    const int shift = static_cast<int>(bit % 8);
    int word = from[bit / 8] >> shift;
    if (shift + width > 8) word |= from[bit / 8 + 1] << (8 - shift);
    const auto raised = static_cast<uint8_t>(word << spare);
    bytes[i - begin] =
        static_cast<std::byte>(extend ? static_cast<int8_t>(raised) >> spare : raised >> spare);
  }
}

void pack(DType dtype, const std::byte* bytes, int64_t begin, int64_t end, std::byte* packed) {
  const int width = static_cast<int>(bits_of(dtype)), mask = (1 << width) - 1;
  auto* to = reinterpret_cast<uint8_t*>(packed) + begin / kPackedGroup * width;
  int word = 0, filled = 0;
  for (int64_t i = 0; i < end - begin; ++i) {
    word |= (std::to_integer<int>(bytes[i]) & mask) << filled;
    for (filled += width; filled >= 8; filled -= 8, word >>= 8) *to++ = static_cast<uint8_t>(word);
  }
  if (filled > 0) *to = static_cast<uint8_t>(word);
}

void read_numbers(DType dtype, const std::byte* data, int64_t begin, int64_t end, double* values) {
  const int64_t n = end - begin;
  const bool known = visit_types<Float16, BFloat16>(
                         dtype,
                         [&](auto half) {
                           const auto* from = reinterpret_cast<const decltype(half)*>(data) + begin;
                           std::transform(from, from + n, values,
                                          [](auto x) { return static_cast<double>(static_cast<float>(x)); });
                         }) ||
                     visit_numeric_or_bool(dtype, [&](auto zero) {
                       const auto* from = reinterpret_cast<const decltype(zero)*>(data) + begin;
                       std::transform(from, from + n, values, [](auto x) { return static_cast<double>(x); });
                     });
  if (known) return;
  require(is_real(dtype), ErrorCode::kNotImplemented, "values of type ", to_string(dtype),
          " are not real numbers");
  in_pieces(begin, end, [&](int64_t at, int64_t count) {
    std::byte unpacked[kPiece];
    const std::byte* bytes = data + at;
    if (is_packed(dtype)) {
      unpack(dtype, data, at, at + count, unpacked);
      bytes = unpacked;
    }
    double* to = values + (at - begin);
    if (!is_small_float(dtype)) return read_numbers(wide_of(dtype), bytes, 0, count, to);
    const Table& table = decoded(dtype);
    for (int64_t i = 0; i < count; ++i) to[i] = table[std::to_integer<size_t>(bytes[i])];
  });
}

void encode_small_floats(DType dtype, const double* values, int64_t n, std::byte* bytes,
                         const Rounding& rounding) {
  if (dtype == DType::kFloat8E8M0) {
    for (int64_t i = 0; i < n; ++i) bytes[i] = std::byte{encode_exponent(values[i], rounding)};
  } else {
    const SmallFormat format = format_of(dtype);
    for (int64_t i = 0; i < n; ++i) bytes[i] = std::byte{encode(format, values[i], rounding.saturate)};
  }
}

namespace {

template <typename F>
void over_groups(int64_t n, F&& f) {
  parallel_for((n + kPackedGroup - 1) / kPackedGroup, kPackedGroup,
               [&](int64_t begin, int64_t end) { f(begin * kPackedGroup, std::min(end * kPackedGroup, n)); });
}

}  // namespace

void to_wide(DType dtype, const std::byte* from, std::byte* wide, int64_t n) {
  over_groups(n, [&](int64_t begin, int64_t end) {
    const bool half = visit_types<Float16, BFloat16>(dtype, [&](auto zero) {
      widen(reinterpret_cast<const decltype(zero)*>(from) + begin, reinterpret_cast<float*>(wide) + begin,
            end - begin);
    });
    if (!half) unpack(dtype, from, begin, end, wide + begin);
  });
}

void from_wide(DType dtype, const std::byte* wide, std::byte* to, int64_t n) {
  over_groups(n, [&](int64_t begin, int64_t end) {
    const bool half = visit_types<Float16, BFloat16>(dtype, [&](auto zero) {
      narrow(reinterpret_cast<const float*>(wide) + begin, reinterpret_cast<decltype(zero)*>(to) + begin,
             end - begin);
    });
    if (!half) pack(dtype, wide + begin, begin, end, to);
  });
}

}  // namespace ortrain
#endif
