#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul/block_codes.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include <bit>
#include <type_traits>

#include "backend/cpu/matmul/block_codes.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kCodes = 32;  // codes that are unpacked at a time
constexpr int64_t kRowsAhead = 8;

// Code i of a row of codes of 2, 4 or 8 bits.
HWY_INLINE int32_t CodeAt(const uint8_t* bytes, int64_t i, int64_t bits) {
  if (bits == 4) return bytes[i >> 1] >> ((i & 1) * 4) & 15;
  if (bits == 8) return bytes[i];
  return bytes[i >> 2] >> ((i & 3) * 2) & 3;
}

// out[i] = code `first` + i of a row for i < n <= kCodes.
HWY_INLINE void Separate(const uint8_t* bytes, int64_t bits, int64_t first, int64_t n, uint8_t* out) {
#if HWY_TARGET != HWY_SCALAR
  if (bits == 4 && n == kCodes && (first & 1) == 0) {
    const hn::FixedTag<uint8_t, 16> d;
    const auto both = hn::LoadU(d, bytes + (first >> 1));
    const auto low = hn::And(both, hn::Set(d, uint8_t{15})), high = hn::ShiftRight<4>(both);
    hn::StoreU(hn::InterleaveLower(d, low, high), d, out);
    hn::StoreU(hn::InterleaveUpper(d, low, high), d, out + 16);
    return;
  }
#endif
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(CodeAt(bytes, first + i, bits));
}

// to[i] = (codes[i] - zero) scale for i < n <= kCodes; more codes than that are read.
template <typename To>
HWY_INLINE void Scale(const uint8_t* codes, int64_t n, float zero, float scale, To* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> whole;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const auto by = hn::Set(d, scale), less = hn::Set(d, zero);
  ForVectors<float>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto code = hn::ConvertTo(d, hn::PromoteTo(whole, hn::LoadU(bytes, codes + i)));
    StoreUpTo(hn::Mul(hn::Sub(code, less), by), d, to + i, count);
  });
}

// Where a vector can hold the values of all codes of 4 bits, a byte is looked up as a pair of bfloat16
// values.
#if HWY_MAX_BYTES == 64 && !HWY_HAVE_SCALABLE
#define ORTRAIN_LOOKS_UP_PAIRS 1

// to[i] for as many whole groups of kCodes codes as there are in n; returns how many codes these are.
HWY_INLINE int64_t LookUpPairs(const uint8_t* bytes, int64_t n, float zero, float scale, BFloat16* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> word;
  const hn::Rebind<uint8_t, decltype(d)> byte;
  // Rounded to the nearest, ties to even, as StoreUpTo rounds; NaN stays.
  const auto exact = hn::Mul(hn::Sub(hn::Iota(d, 0.0f), hn::Set(d, zero)), hn::Set(d, scale));
  const auto bits = hn::BitCast(word, exact);
  const auto up = hn::Add(hn::And(hn::ShiftRight<16>(bits), hn::Set(word, 1u)), hn::Set(word, 0x7fffu));
  const auto rounded = hn::IfThenElse(hn::RebindMask(word, hn::IsNaN(exact)),
                                      hn::Or(bits, hn::Set(word, 0x400000u)), hn::Add(bits, up));
  const auto even = hn::ShiftRight<16>(rounded);
  const auto odd = hn::ShiftLeft<16>(even), low = hn::Set(word, 15u);
  int64_t i = 0;
  for (; i + kCodes <= n; i += kCodes) {
    const auto both = hn::PromoteTo(word, hn::LoadU(byte, bytes + (i >> 1)));
    const auto first = hn::TableLookupLanes(even, hn::IndicesFromVec(word, hn::And(both, low)));
    const auto second = hn::TableLookupLanes(odd, hn::IndicesFromVec(word, hn::ShiftRight<4>(both)));
    hn::StoreU(hn::Or(first, second), word, reinterpret_cast<uint32_t*>(to + i));
  }
  return i;
}
#endif

// Prefetches row i of a part, if the part has such a row. The locality is that of __builtin_prefetch.
template <int kLocality>
HWY_INLINE void FetchRow(const BlockCodes& w, const CodesPart& part, int64_t i) {
  if (i >= part.rows) return;
  constexpr int64_t kLine = 64;
  const int64_t r = part.row + i;
  const uint8_t* codes = w.codes + (r * w.blocks * w.block + part.column) * w.bits / 8;
  for (int64_t at = 0; at < part.columns * w.bits / 8; at += kLine)
    __builtin_prefetch(codes + at, 0, kLocality);
  __builtin_prefetch(w.scales + r * w.blocks + part.column / w.block, 0, kLocality);
}

template <typename To>
void Unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, To* to, int64_t to_row) {
  constexpr int64_t kReadBeyond = HWY_MAX_BYTES;
  HWY_ALIGN uint8_t separate[kCodes + kReadBeyond] = {};
  const int64_t row_bytes = w.blocks * w.block * w.bits / 8, zero_bytes = (w.blocks * w.bits + 7) / 8;
  const int64_t column = part.column, end = part.column + part.columns;
  const int shift = std::countr_zero(static_cast<uint64_t>(w.block));  // a power of two
  const float middle = static_cast<float>(1 << (w.bits - 1));
  for (int64_t i = 0; i < part.rows; ++i, to += to_row) {
    // The next part, which is unpacked only after a product, goes to a farther cache than the next rows.
    FetchRow<2>(w, next, i);
    FetchRow<3>(w, part, i + kRowsAhead);
    const int64_t r = part.row + i;
    const uint8_t* codes = w.codes + r * row_bytes;
    const float* scales = w.scales + r * w.blocks;
    for (int64_t at = column; at < end;) {
      const int64_t b = at >> shift, stop = HWY_MIN(end, (b + 1) << shift);
      const float zero = w.packed_zeros
                             ? static_cast<float>(CodeAt(w.packed_zeros + r * zero_bytes, b, w.bits))
                         : w.zeros ? w.zeros[r * w.blocks + b]
                                   : middle;
#ifdef ORTRAIN_LOOKS_UP_PAIRS
      if constexpr (std::is_same_v<To, BFloat16>)
        if (w.bits == 4 && (at & 1) == 0)
          at += LookUpPairs(codes + (at >> 1), stop - at, zero, scales[b], to + at - column);
#endif
      for (int64_t n; at < stop; at += n) {
        n = HWY_MIN(kCodes, stop - at);
        Separate(codes, w.bits, at, n, separate);
        Scale(separate, n, zero, scales[b], to + at - column);
      }
    }
  }
}
#undef ORTRAIN_LOOKS_UP_PAIRS

void ToFloats(const BlockCodes& w, const CodesPart& part, const CodesPart& next, float* to, int64_t to_row) {
  Unpack(w, part, next, to, to_row);
}
void ToHalves(const BlockCodes& w, const CodesPart& part, const CodesPart& next, BFloat16* to,
              int64_t to_row) {
  Unpack(w, part, next, to, to_row);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

HWY_EXPORT(ToFloats);
HWY_EXPORT(ToHalves);

}  // namespace

void unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, float* to, int64_t to_row) {
  HWY_DYNAMIC_DISPATCH(ToFloats)(w, part, next, to, to_row);
}

void unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, BFloat16* to, int64_t to_row) {
  HWY_DYNAMIC_DISPATCH(ToHalves)(w, part, next, to, to_row);
}

}  // namespace ortrain
#endif
