#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/eight_bit_codes.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <cmath>
#include <limits>
#include <vector>

#include "backend/cpu/optimizer/rules/eight_bit_codes.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

// The levels of codes. Vectors of at least eight floats compute them, which takes half as long as loading
// each.
template <class D>
HWY_INLINE hn::Vec<D> levels_of(D d, const EightBitCodes& codes, hn::Vec<hn::RebindToSigned<D>> places) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  const hn::RebindToSigned<D> di;
  const auto offset = hn::Sub(places, hn::Set(di, codes.shift)), q = hn::Abs(offset);
  const auto x = hn::ConvertTo(d, q);
  const auto bits = hn::BitCast(di, x);
  const auto power = hn::BitCast(d, hn::And(bits, hn::Set(di, 0x7F800000)));
  const auto number = hn::NegMulAdd(power, hn::Set(d, 16), hn::MulAdd(x, hn::Set(d, 18), hn::Set(d, 9)));
  const auto at = hn::IndicesFromVec(d, hn::And(hn::ShiftRight<23>(bits), hn::Set(di, 7)));
  const auto level =
      hn::MulAdd(number, hn::TableLookupLanes(hn::LoadU(d, codes.factors.data()), at),
                 hn::Mul(number, hn::TableLookupLanes(hn::LoadU(d, codes.factor_rests.data()), at)));
  const auto is_zero = hn::Eq(places, hn::Set(di, static_cast<int32_t>(codes.zero)));
  return hn::IfThenZeroElse(hn::RebindMask(d, is_zero), hn::CopySign(level, hn::BitCast(d, offset)));
#else
  return hn::GatherIndex(d, codes.levels.data(), places);
#endif
}

void read_block(const EightBitCodes& codes, const uint8_t* from, int64_t n, float scale, float* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const auto scales = hn::Set(d, scale);
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto places = hn::PromoteTo(di, hn::LoadU(bytes, from + i));
    hn::StoreU(hn::Mul(levels_of(d, codes, places), scales), d, to + i);
  }
  for (; i < n; ++i) to[i] = codes.levels[from[i]] * scale;
}

float largest_magnitude_of(const float* x, int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto even = hn::Zero(d), odd = even;
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    even = hn::Max(even, hn::Abs(hn::LoadU(d, x + i)));
    odd = hn::Max(odd, hn::Abs(hn::LoadU(d, x + i + lanes)));
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(even, odd)));
  for (; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

// EightBitCodes::code for each of the numbers, times `inverse`.
void write_block(const EightBitCodes& codes, const float* x, int64_t n, float inverse, uint8_t* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const auto at = [](uint32_t value) HWY_ATTR {
    return hn::Set(hn::RebindToSigned<hn::ScalableTag<float>>(), static_cast<int32_t>(value));
  };
  const auto least = at(EightBitCodes::kLeast << 16), most = at(EightBitCodes::kMost << 16);
  const auto first = at(EightBitCodes::kLeast), low_half = at(0xFFFF), without_sign = at(0x7FFFFFFF);
  const auto zero = at(codes.zero), most_negative = at(codes.zero);
  const auto scales = hn::Set(d, inverse);
  const auto* entries = reinterpret_cast<const int32_t*>(codes.entries.data());
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto bits = hn::BitCast(di, hn::Mul(hn::LoadU(d, x + i), scales));
    const auto magnitude = hn::Min(hn::Max(hn::And(bits, without_sign), least), most);
    const auto entry = hn::GatherIndex(di, entries, hn::Sub(hn::ShiftRight<16>(magnitude), first));
    const auto place = hn::ShiftRight<16>(hn::Add(entry, hn::And(magnitude, low_half)));
    const auto sign = hn::BroadcastSignBit(bits);
    const auto below = hn::Sub(hn::Zero(di), hn::Min(place, most_negative));
    const auto code = hn::Add(zero, hn::IfThenElse(hn::MaskFromVec(sign), below, place));
    hn::StoreU(hn::DemoteTo(bytes, code), bytes, to + i);
  }
  for (; i < n; ++i) to[i] = codes.code(x[i] * inverse);
}

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

EightBitCodes::EightBitCodes(bool is_signed) {
  std::vector<float> sorted{0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int steps = 1 << (is_signed ? decade : decade + 1);
    for (int i = 0; i < steps; ++i) {
      const double middle = 0.1 + 0.9 * (i + 0.5) / steps;
      const auto value = static_cast<float>(middle * std::pow(10.0, decade - 6));
      sorted.push_back(value);
      if (is_signed) sorted.push_back(-value);
    }
  }
  std::sort(sorted.begin(), sorted.end());
  std::copy(sorted.begin(), sorted.end(), levels.begin());
  zero = static_cast<uint32_t>(std::find(sorted.begin(), sorted.end(), 0.0f) - sorted.begin());

  shift = is_signed ? 127 : -1;
  const int least_power = is_signed ? 0 : 1;
  for (int d = least_power; d <= least_power + 7; ++d) {
    const double power = std::pow(2.0, d);
    const double factor =
        d == least_power + 7 ? 1 / (2 * power + 9) : std::pow(10.0, d - least_power - 6) / (20 * power);
    for (const size_t half : {0, 8}) {
      const size_t at = static_cast<size_t>(d + 7) % 8 + half;
      factors[at] = static_cast<float>(factor);
      factor_rests[at] = static_cast<float>(factor - static_cast<double>(factors[at]));
    }
  }

  const auto middle = [&](uint32_t place) { return (levels[zero + place] + levels[zero + place + 1]) / 2; };
  const uint32_t last = 255 - zero;
  uint32_t place = 0;
  for (uint32_t high = kLeast; high <= kMost; ++high) {
    while (place < last && std::bit_cast<float>(high << 16) > middle(place)) ++place;
    // The largest lower half whose magnitude is not above the middle.
    uint32_t least = 0xFFFF;
    if (place < last) {
      const auto bits = std::bit_cast<uint32_t>(middle(place));
      if (bits >> 16 == high) least = bits & 0xFFFF;
    }
    entries[high - kLeast] = (place << 16) + (0xFFFF - least);
  }
}

const EightBitCodes& eight_bit_codes(bool is_signed) {
  static const EightBitCodes with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

namespace {

HWY_EXPORT(read_block);
HWY_EXPORT(largest_magnitude_of);
HWY_EXPORT(write_block);

// The scale of numbers with this largest magnitude; 0 if they vanish.
template <typename T>
T scale_of(T largest) {
  return largest < std::numeric_limits<T>::min() ? 0 : largest;
}

}  // namespace

void read_codes(const EightBitCodes& codes, const uint8_t* from, int64_t n, float scale, float* to) {
  HWY_DYNAMIC_DISPATCH(read_block)(codes, from, n, scale, to);
}
void read_codes(const EightBitCodes& codes, const uint8_t* from, int64_t n, float scale, double* to) {
  for (int64_t i = 0; i < n; ++i)
    to[i] = static_cast<double>(codes.levels[from[i]]) * static_cast<double>(scale);
}

float write_codes(const EightBitCodes& codes, const float* x, int64_t n, uint8_t* to) {
  const float scale = scale_of(HWY_DYNAMIC_DISPATCH(largest_magnitude_of)(x, n));
  HWY_DYNAMIC_DISPATCH(write_block)(codes, x, n, scale > 0 ? 1 / scale : 0, to);
  return scale;
}
float write_codes(const EightBitCodes& codes, const double* x, int64_t n, uint8_t* to) {
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  const double scale = scale_of(largest), inverse = scale > 0 ? 1 / scale : 0;
  for (int64_t i = 0; i < n; ++i) to[i] = codes.code(static_cast<float>(x[i] * inverse));
  return static_cast<float>(scale);
}

}  // namespace ortrain
#endif
