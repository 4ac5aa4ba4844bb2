#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul/block_codes.cpp"
// The per-target passes over this file come first.
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/block_codes.h"
#include "backend/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kCodes = 32;  // that are unpacked at a time

int32_t CodeAt(const uint8_t* bytes, int64_t i, int64_t bits) {
  const int64_t per_byte = 8 / bits;
  return bytes[i / per_byte] >> (i % per_byte * bits) & ((1 << bits) - 1);
}

// out[i] = code `first` + i of a row for i < n <= kCodes.
HWY_INLINE void Separate(const uint8_t* bytes, int64_t bits, int64_t first, int64_t n, uint8_t* out) {
  if (bits == 4 && first % 2 == 0) {
    const uint8_t* from = bytes + first / 2;
#if HWY_TARGET != HWY_SCALAR
    const hn::FixedTag<uint8_t, 16> d;
    if (n == kCodes) {
      const auto both = hn::LoadU(d, from);
      const auto low = hn::And(both, hn::Set(d, uint8_t{15})), high = hn::ShiftRight<4>(both);
      hn::StoreU(hn::InterleaveLower(d, low, high), d, out);
      hn::StoreU(hn::InterleaveUpper(d, low, high), d, out + 16);
      return;
    }
#endif
    for (int64_t i = 0; i < (n + 1) / 2; ++i) {
      out[2 * i] = from[i] & 15;
      out[2 * i + 1] = from[i] >> 4;
    }
    return;
  }
  if (bits == 8) {
    std::memcpy(out, bytes + first, static_cast<size_t>(n));
    return;
  }
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

template <typename To>
void Unpack(const BlockCodes& w, int64_t row, int64_t rows, int64_t column, int64_t columns, To* to,
            int64_t to_row) {
  constexpr int64_t kReadBeyond = HWY_MAX_BYTES;
  HWY_ALIGN uint8_t separate[kCodes + kReadBeyond] = {};
  const int64_t row_bytes = w.blocks * w.block * w.bits / 8, zero_bytes = (w.blocks * w.bits + 7) / 8;
  const int64_t end = column + columns;
  for (int64_t r = 0; r < rows; ++r) {
    const uint8_t* codes = w.codes + (row + r) * row_bytes;
    const float* scales = w.scales + (row + r) * w.blocks;
    To* out = to + r * to_row;
    for (int64_t at = column; at < end;) {
      const int64_t b = at / w.block, stop = HWY_MIN(end, (b + 1) * w.block);
      float zero = static_cast<float>(1 << (w.bits - 1));
      if (w.packed_zeros)
        zero = static_cast<float>(CodeAt(w.packed_zeros + (row + r) * zero_bytes, b, w.bits));
      else if (w.zeros)
        zero = w.zeros[(row + r) * w.blocks + b];
      for (; at < stop;) {
        const int64_t n = HWY_MIN(kCodes, stop - at);
        Separate(codes, w.bits, at, n, separate);
        Scale(separate, n, zero, scales[b], out + at - column);
        at += n;
      }
    }
  }
}

void ToFloats(const BlockCodes& w, int64_t row, int64_t rows, int64_t column, int64_t columns, float* to,
              int64_t to_row) {
  Unpack(w, row, rows, column, columns, to, to_row);
}
void ToHalves(const BlockCodes& w, int64_t row, int64_t rows, int64_t column, int64_t columns, BFloat16* to,
              int64_t to_row) {
  Unpack(w, row, rows, column, columns, to, to_row);
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

void unpack(const BlockCodes& w, int64_t row, int64_t rows, int64_t column, int64_t columns, float* to,
            int64_t to_row) {
  HWY_DYNAMIC_DISPATCH(ToFloats)(w, row, rows, column, columns, to, to_row);
}

void unpack(const BlockCodes& w, int64_t row, int64_t rows, int64_t column, int64_t columns, BFloat16* to,
            int64_t to_row) {
  HWY_DYNAMIC_DISPATCH(ToHalves)(w, row, rows, column, columns, to, to_row);
}

}  // namespace ortrain
#endif
