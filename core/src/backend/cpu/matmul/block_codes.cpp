#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul/block_codes.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "backend/cpu/matmul/bf16_pairs-inl.h"
#include "backend/cpu/matmul/block_codes.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_BLOCK_CODES_TYPES
#define ORTRAIN_BLOCK_CODES_TYPES
namespace ortrain {

// What a packed operand holds: floats, or words of two bfloat16 values, which the processor's instruction
// rounds with kNativePairs.
enum class Packing { kFloats, kPairs, kNativePairs };

}  // namespace ortrain
#endif

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
  if (bits == 8) return void(std::copy_n(bytes + first, n, out));
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

// Rounds to bfloat16, in the upper half of a word; the lower half has no meaning. To the nearest, ties to
// even, as StoreUpTo rounds; NaN stays.
template <class V>
HWY_INLINE auto Rounded(V exact) {
  const hn::ScalableTag<uint32_t> word;
  const auto bits = hn::BitCast(word, exact);
  const auto up = hn::Add(hn::And(hn::ShiftRight<16>(bits), hn::Set(word, 1u)), hn::Set(word, 0x7fffu));
  return hn::IfThenElse(hn::RebindMask(word, hn::IsNaN(exact)), hn::Or(bits, hn::Set(word, 0x400000u)),
                        hn::Add(bits, up));
}

// Where a vector can hold the values of all codes of 4 bits, codes are looked up.
#if HWY_MAX_BYTES == 64 && !HWY_HAVE_SCALABLE
#define ORTRAIN_LOOKS_UP_CODES 1

HWY_INLINE auto TableOf(float zero, float scale) {
  const hn::ScalableTag<float> d;
  return hn::Mul(hn::Sub(hn::Iota(d, 0.0f), hn::Set(d, zero)), hn::Set(d, scale));
}

// to[i] for as many whole groups of kCodes codes as there are in n; returns how many codes these are. Each
// byte is looked up as a pair of values.
HWY_INLINE int64_t LookUp(const uint8_t* bytes, int64_t n, float zero, float scale, BFloat16* to) {
  const hn::ScalableTag<uint32_t> word;
  const hn::Rebind<uint8_t, decltype(word)> byte;
  const auto even = hn::ShiftRight<16>(Rounded(TableOf(zero, scale)));
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

// to[i] for kCodes codes.
template <class V>
HWY_INLINE void LookUpFloats(const uint8_t* bytes, V table, float* to) {
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> word;
  const hn::Rebind<uint8_t, decltype(word)> byte;
  const hn::Repartition<uint16_t, decltype(byte)> two;
  const auto low = hn::Set(word, 15u);
  const auto loaded = hn::BitCast(two, hn::LoadU(byte, bytes));
  // In the order in which the interleaved values below are consecutive.
  const auto ordered = hn::InterleaveLower(two, loaded, hn::ShiftRightBytes<8>(two, loaded));
  const auto both = hn::PromoteTo(word, hn::BitCast(byte, ordered));
  const auto even = hn::TableLookupLanes(table, hn::IndicesFromVec(d, hn::And(both, low)));
  const auto odd = hn::TableLookupLanes(table, hn::IndicesFromVec(d, hn::ShiftRight<4>(both)));
  hn::StoreU(hn::InterleaveLower(d, even, odd), d, to);
  hn::StoreU(hn::InterleaveUpper(d, even, odd), d, to + kCodes / 2);
}

HWY_INLINE int64_t LookUp(const uint8_t* bytes, int64_t n, float zero, float scale, float* to) {
  const auto table = TableOf(zero, scale);
  int64_t i = 0;
  for (; i + kCodes <= n; i += kCodes) LookUpFloats(bytes + (i >> 1), table, to + i);
  return i;
}
#endif

// The bytes of row r from `column` on, which must be at the boundary of a byte.
HWY_INLINE const uint8_t* BytesOf(const BlockCodes& w, int64_t r, int64_t column) {
  return w.codes + (r * w.blocks * w.block + column) * w.bits / 8;
}

// The block of a row that contains an element; blocks have powers of two.
HWY_INLINE int64_t BlockOf(const BlockCodes& w, int64_t column) {
  return column >> std::countr_zero(static_cast<uint64_t>(w.block));
}

// Prefetches row i of a part, if the part has such a row. The locality is that of __builtin_prefetch.
template <int kLocality>
HWY_INLINE void FetchRow(const BlockCodes& w, const CodesPart& part, int64_t i) {
  if (i >= part.rows) return;
  constexpr int64_t kLine = 64;
  const int64_t r = part.row + i;
  const uint8_t* codes = BytesOf(w, r, part.column);
  for (int64_t at = 0; at < part.columns * w.bits / 8; at += kLine)
    __builtin_prefetch(codes + at, 0, kLocality);
  __builtin_prefetch(w.scales + r * w.blocks + BlockOf(w, part.column), 0, kLocality);
}

// The zero point of block b of row r.
HWY_INLINE float ZeroOf(const BlockCodes& w, int64_t r, int64_t b) {
  const int64_t zero_bytes = (w.blocks * w.bits + 7) / 8;
  if (w.packed_zeros) return static_cast<float>(CodeAt(w.packed_zeros + r * zero_bytes, b, w.bits));
  return w.zeros ? w.zeros[r * w.blocks + b] : static_cast<float>(1 << (w.bits - 1));
}

// to[c] = element (r, column + c) of W for c < n.
template <typename To>
HWY_INLINE void UnpackRow(const BlockCodes& w, int64_t r, int64_t column, int64_t n, To* to) {
  constexpr int64_t kReadBeyond = HWY_MAX_BYTES;
  HWY_ALIGN uint8_t separate[kCodes + kReadBeyond];
  const uint8_t* codes = BytesOf(w, r, 0);
  const float* scales = w.scales + r * w.blocks;
  const int64_t end = column + n;
  const int shift = std::countr_zero(static_cast<uint64_t>(w.block));  // a power of two
  for (int64_t at = column; at < end;) {
    const int64_t b = at >> shift, stop = HWY_MIN(end, (b + 1) << shift);
    const float zero = ZeroOf(w, r, b);
#ifdef ORTRAIN_LOOKS_UP_CODES
    if (w.bits == 4 && (at & 1) == 0)
      at += LookUp(codes + (at >> 1), stop - at, zero, scales[b], to + at - column);
#endif
    for (int64_t count; at < stop; at += count) {
      count = HWY_MIN(kCodes, stop - at);
      Separate(codes, w.bits, at, count, separate);
      std::fill_n(separate + count, kReadBeyond, uint8_t{0});
      Scale(separate, count, zero, scales[b], to + at - column);
    }
  }
}

// Prefetches for row i of a part. The next part, which is unpacked only after a product, goes to a farther
// cache than the next rows.
HWY_INLINE void FetchAhead(const BlockCodes& w, const CodesPart& part, const CodesPart& next, int64_t i) {
  FetchRow<2>(w, next, i);
  FetchRow<3>(w, part, i + kRowsAhead);
}

template <typename To>
void Unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, To* to, int64_t to_row) {
  for (int64_t i = 0; i < part.rows; ++i, to += to_row) {
    FetchAhead(w, part, next, i);
    UnpackRow(w, part.row + i, part.column, part.columns, to);
  }
}

// Packed right operands.

// Words of two bfloat16 values.
template <bool kNative, class V>
HWY_INLINE auto Join(V low, V high) {
  const hn::ScalableTag<uint32_t> word;
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  if constexpr (kNative) return NativeWords(low, high);
#endif
  return hn::Or(hn::ShiftRight<16>(Rounded(low)), hn::And(Rounded(high), hn::Set(word, 0xffff0000u)));
}

#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
#define ORTRAIN_PACKS_ACROSS 1
constexpr int64_t kWordCodes = 8;  // codes of 4 bits in a word of 32 bits

// A row of W in each lane: the scales and zero points of a block of theirs.
template <class D>
struct RowScales {
  Vec<D> by, less;
};

// The scales and zero points of a few neighboring blocks of several rows, a row in each lane. They are
// gathered before the codes, since a processor waits for a vector whose elements were just written one by
// one.
template <class D>
class GatheredScales {
 public:
  void gather(const BlockCodes& w, int64_t row, int64_t rows, int64_t first, int64_t blocks) {
    first_ = first, packed_ = w.packed_zeros != nullptr;
    const int64_t zero_bytes = (w.blocks * w.bits + 7) / 8;
    for (int64_t b = first; b < first + blocks; ++b) {
      float* scales = scales_[b - first];
      int32_t* zeros = zeros_[b - first];
      if (rows < kLanes) std::fill_n(scales, kLanes, 0.0f), std::fill_n(zeros, kLanes, 0);
      for (int64_t l = 0; l < rows; ++l) scales[l] = w.scales[(row + l) * w.blocks + b];
      if (packed_) {
        const uint8_t* from = w.packed_zeros + row * zero_bytes + b / 2;
        for (int64_t l = 0; l < rows; ++l) zeros[l] = from[l * zero_bytes];
      } else {
        for (int64_t l = 0; l < rows; ++l) zeros[l] = std::bit_cast<int32_t>(ZeroOf(w, row + l, b));
      }
    }
  }

  RowScales<D> of(int64_t block) const {
    const D d;
    const hn::RebindToSigned<D> whole;
    const auto zeros = hn::Load(whole, zeros_[block - first_]), low = hn::Set(whole, 15);
    const auto by = hn::Load(d, scales_[block - first_]);
    if (!packed_) return {by, hn::BitCast(d, zeros)};
    const auto codes = block % 2 ? hn::ShiftRight<4>(zeros) : zeros;
    return {by, hn::ConvertTo(d, hn::And(codes, low))};
  }

 private:
  static constexpr int64_t kLanes = hn::MaxLanes(D());
  HWY_ALIGN float scales_[kLanes + 1][kLanes];
  HWY_ALIGN int32_t zeros_[kLanes + 1][kLanes];
  int64_t first_ = 0;
  bool packed_ = false;
};

// Writes the values of eight codes of each row, a row in each lane, beginning at the lowest bits: floats, or
// words of two bfloat16 values. Lines of `to` are `stored` apart.
template <Packing P, class V, class D>
HWY_INLINE void PutCodes(V codes, const RowScales<D>& scales, int64_t stored, uint32_t* to) {
  const D d;
  const hn::RebindToUnsigned<D> word;
  [[maybe_unused]] const hn::RebindToSigned<D> whole;
  const auto next = [&]() HWY_ATTR {
#ifdef ORTRAIN_HAS_NATIVE_WORDS
    // Only the lowest four bits of an index count.
    const Vec<D> code{_mm512_permutexvar_ps(codes.raw, hn::Iota(d, 0.0f).raw)};
#else
    const auto code = hn::ConvertTo(d, hn::BitCast(whole, hn::And(codes, hn::Set(word, 15u))));
#endif
    codes = hn::ShiftRight<4>(codes);
    return hn::Mul(hn::Sub(code, scales.less), scales.by);
  };
  for (int64_t i = 0; i < kWordCodes; i += P == Packing::kFloats ? 1 : 2, to += stored) {
    const auto first = next();
    if constexpr (P == Packing::kFloats)
      hn::StoreU(hn::BitCast(word, first), word, to);
    else
      hn::StoreU(Join<P == Packing::kNativePairs>(first, next()), word, to);
  }
}

// The first `count` words of some bytes, and then zeros.
template <class D>
HWY_INLINE Vec<D> WordsOf(D d, const uint8_t* bytes, int64_t count) {
  const hn::Repartition<uint8_t, D> byte;
  if (count >= static_cast<int64_t>(hn::Lanes(d))) return hn::BitCast(d, hn::LoadU(byte, bytes));
  HWY_ALIGN uint8_t lanes[hn::MaxLanes(byte)] = {};
  std::copy_n(bytes, count * static_cast<int64_t>(sizeof(uint32_t)), lanes);
  return hn::BitCast(d, hn::Load(byte, lanes));
}

// Packs the transpose of a part of W. A square of words of codes is transposed, rather than their values.
template <Packing P>
bool PackCodesAcross(const BlockCodes& w, const CodesPart& part, const CodesPart& next, uint32_t* packed) {
  if (w.bits != 4 || w.block < kWordCodes || part.column % kWordCodes || part.columns % kWordCodes)
    return false;
  const hn::ScalableTag<float> d;
  GatheredScales<decltype(d)> gathered;
  const hn::RebindToUnsigned<decltype(d)> word;
  constexpr int64_t kSquare = hn::MaxLanes(d);
  const int64_t k = part.columns, width = kPanel * kSquare, each = P == Packing::kFloats ? 1 : 2;
  for (int64_t j = 0; j < part.rows; j += width) {
    const int64_t used = HWY_MIN(width, part.rows - j), stored = (used + kSquare - 1) / kSquare * kSquare;
    for (int64_t c = 0; c < stored; c += kSquare) {
      const int64_t row = part.row + j + c, rows = HWY_MIN(kSquare, used - c);
      for (int64_t l = 0; l < kSquare; ++l) {
        FetchRow<2>(w, next, j + c + l);
        FetchRow<3>(w, part, j + c + kSquare + l);
      }
      uint32_t* to = packed + j * (k / each) + c;
      for (int64_t i = 0; i < k; i += kSquare * kWordCodes) {
        const int64_t words = HWY_MIN(kSquare, (k - i) / kWordCodes);
        const int64_t begin = part.column + i, block = BlockOf(w, begin);
        gathered.gather(w, row, rows, block, BlockOf(w, begin + words * kWordCodes - 1) - block + 1);
        Vec<decltype(word)> v[kSquare];
        for (int64_t l = 0; l < kSquare; ++l)
          v[l] = l < rows ? WordsOf(word, BytesOf(w, row + l, part.column + i), words) : hn::Zero(word);
        Transpose(word, v);
        for (int64_t q = 0; q < words;) {
          const int64_t at = begin + q * kWordCodes, in_block = at & (w.block - 1);
          const RowScales<decltype(d)> scales = gathered.of(BlockOf(w, at));
          const int64_t end = HWY_MIN(words, q + (w.block - in_block) / kWordCodes);
          for (; q < end; ++q, to += kWordCodes / each * stored) PutCodes<P>(v[q], scales, stored, to);
        }
      }
    }
  }
  return true;
}
#endif

// The zero points of a row are read before its codes: one at a time between the codes, they take longer.
constexpr int64_t kMostZeros = 64;

// zeros[i] = the zero point of block first + i of row r for i < n.
HWY_INLINE void ReadZeros(const BlockCodes& w, int64_t r, int64_t first, int64_t n, float* zeros) {
  if (!w.packed_zeros || w.bits != 4) {
    for (int64_t i = 0; i < n; ++i) zeros[i] = ZeroOf(w, r, first + i);
    return;
  }
  const uint8_t* codes = w.packed_zeros + r * ((w.blocks + 1) / 2);
  for (int64_t i = 0; i < n; ++i) zeros[i] = static_cast<float>(CodeAt(codes, first + i, 4));
}

// The blocks of a row of a part.
struct BlockRange {
  int64_t first, count;
};
HWY_INLINE BlockRange BlocksOf(const BlockCodes& w, const CodesPart& part) {
  const int64_t first = BlockOf(w, part.column);
  return {first, BlockOf(w, part.column + part.columns - 1) + 1 - first};
}

// Whether a part consists of whole groups of kCodes codes, each in one block.
HWY_INLINE bool HasWholeGroups(const BlockCodes& w, const CodesPart& part) {
  return w.block >= kCodes && part.column % kCodes == 0 && part.columns % kCodes == 0 &&
         BlocksOf(w, part).count <= kMostZeros;
}

#ifdef ORTRAIN_LOOKS_UP_CODES
// Packs rows of W, one after another.
bool LookUpAlong(const BlockCodes& w, const CodesPart& part, const CodesPart& next, float* packed) {
  if (w.bits != 4 || !HasWholeGroups(w, part)) return false;
  const auto [first, blocks] = BlocksOf(w, part);
  float zeros[kMostZeros];
  const int64_t width = kPanel * LanesOf<float>();
  for (int64_t i = 0; i < part.rows; ++i) {
    FetchAhead(w, part, next, i);
    const int64_t r = part.row + i;
    ReadZeros(w, r, first, blocks, zeros);
    const uint8_t* codes = BytesOf(w, r, part.column);
    const float* scales = w.scales + r * w.blocks + first;
    for (int64_t c = 0, b = 0; c < part.columns; ++b) {
      const auto table = TableOf(zeros[b], scales[b]);
      const int64_t end = HWY_MIN(part.columns, (first + b + 1) * w.block - part.column);
      for (; c < end; c += kCodes) {
        const int64_t j = c / width * width, stored = HWY_MIN(width, part.columns - j);
        LookUpFloats(codes + c / 2, table, packed + j * part.rows + i * stored + c - j);
      }
    }
  }
  return true;
}
#endif

// Writes the values of kCodes codes. They fill panels that are `panel` elements apart, or are part of one.
HWY_INLINE void PutValues(const uint8_t* bytes, int64_t bits, float zero, float scale, int64_t panel,
                          float* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> whole;
  const hn::Rebind<uint8_t, decltype(d)> byte;
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes;
  const auto by = hn::Set(d, scale), less = hn::Set(d, zero);
  HWY_ALIGN uint8_t separate[kCodes];
  Separate(bytes, bits, 0, kCodes, separate);
  HWY_UNROLL(8)
  for (int64_t i = 0; i < kCodes; i += lanes) {
    const auto code = hn::ConvertTo(d, hn::PromoteTo(whole, hn::LoadU(byte, separate + i)));
    hn::StoreU(hn::Mul(hn::Sub(code, less), by), d, to + i / width * panel + i % width);
  }
}

// Packs rows of W, as many codes of several rows as fill panels at a time: the rows of a panel are contiguous
// in memory, but panels are often a multiple of 4 KiB apart, so their lines share a set of the cache.
bool PackFloatsAlong(const BlockCodes& w, const CodesPart& part, const CodesPart& next, float* packed) {
  constexpr int64_t kRows = 32;
  if (!HasWholeGroups(w, part)) return false;
  const auto [first, blocks] = BlocksOf(w, part);
  const int64_t width = kPanel * LanesOf<float>(), pitch = w.blocks * w.block * w.bits / 8;
  float zeros[kRows][kMostZeros];
  for (int64_t begin = 0; begin < part.rows; begin += kRows) {
    const int64_t rows = HWY_MIN(kRows, part.rows - begin), r = part.row + begin;
    for (int64_t i = 0; i < rows; ++i) {
      FetchAhead(w, part, next, begin + i);
      ReadZeros(w, r + i, first, blocks, zeros[i]);
    }
    for (int64_t c = 0; c < part.columns; c += kCodes) {
      const int64_t b = BlockOf(w, part.column + c);
      const int64_t j = c / width * width, stored = HWY_MIN(width, part.columns - j);
      const uint8_t* codes = BytesOf(w, r, part.column + c);
      const float* scales = w.scales + r * w.blocks + b;
      float* to = packed + j * part.rows + begin * stored + c - j;
      for (int64_t i = 0; i < rows; ++i, codes += pitch, scales += w.blocks, to += stored)
        PutValues(codes, w.bits, zeros[i][b - first], *scales, width * part.rows, to);
    }
  }
  return true;
}

bool PackFloats(const BlockCodes& w, const CodesPart& part, const CodesPart& next, bool across,
                float* packed) {
#ifdef ORTRAIN_PACKS_ACROSS
  if (across) return PackCodesAcross<Packing::kFloats>(w, part, next, reinterpret_cast<uint32_t*>(packed));
#endif
  if (across) return false;
#ifdef ORTRAIN_LOOKS_UP_CODES
  if (LookUpAlong(w, part, next, packed)) return true;
#endif
  if (PackFloatsAlong(w, part, next, packed)) return true;
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes;
  for (int64_t i = 0; i < part.rows; ++i) {
    FetchAhead(w, part, next, i);
    for (int64_t j = 0; j < part.columns; j += width) {
      const int64_t used = HWY_MIN(width, part.columns - j), stored = (used + lanes - 1) / lanes * lanes;
      float* to = packed + j * part.rows + i * stored;
      UnpackRow(w, part.row + i, part.column + j, used, to);
      std::fill(to + used, to + stored, 0.0f);
    }
  }
  return true;
}

#ifdef ORTRAIN_HAS_NATIVE_WORDS
// Packs two rows of W at a time as words of two values, each of which is looked up with both codes.
template <bool kNative>
bool PackPairsAlong(const BlockCodes& w, const CodesPart& part, const CodesPart& next, uint32_t* packed) {
  if (w.bits != 4 || w.block < kCodes || part.column % kCodes || part.columns % kCodes) return false;
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> word;
  const hn::ScalableTag<uint16_t> half;
  const hn::FixedTag<uint8_t, 16> bytes;
  const hn::FixedTag<uint8_t, 32> twice;
  const hn::Repartition<uint32_t, decltype(bytes)> fours;
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes, words = (part.rows + 1) / 2;
  const int shift = std::countr_zero(static_cast<uint64_t>(w.block));
  // The value of code c of the first row is element 2 c of a table, that of the second row is 2 c + 1.
  const auto second = hn::BitCast(half, hn::Set(word, 0x10000u)), codes = hn::Set(half, uint16_t{30});
  for (int64_t p = 0; p < words; ++p) {
    const int64_t r = part.row + 2 * p;
    const bool both = 2 * p + 1 < part.rows;
    for (int64_t i = 0; i < 2; ++i) FetchAhead(w, part, next, 2 * p + i);
    const uint8_t *low = BytesOf(w, r, part.column), *high = both ? BytesOf(w, r + 1, part.column) : low;
    auto table = hn::Zero(half);
    for (int64_t c = 0; c < part.columns; c += kCodes) {
      if (const int64_t at = part.column + c; c == 0 || (at & (w.block - 1)) == 0) {
        const int64_t b = at >> shift;
        const auto first = TableOf(ZeroOf(w, r, b), w.scales[r * w.blocks + b]);
        auto last = hn::Zero(d);
        if (both) last = TableOf(ZeroOf(w, r + 1, b), w.scales[(r + 1) * w.blocks + b]);
        table = hn::BitCast(half, Join<kNative>(first, last));
      }
      const auto x = hn::LoadU(bytes, low + c / 2), y = hn::LoadU(bytes, high + c / 2);
      // Pairs of bytes in the order in which the interleaved words below are consecutive.
      const auto first = hn::BitCast(fours, hn::InterleaveLower(bytes, x, y)),
                 last = hn::BitCast(fours, hn::InterleaveUpper(bytes, x, y));
      const auto pairs =
          hn::PromoteTo(half, hn::Combine(twice, hn::BitCast(bytes, hn::InterleaveUpper(fours, first, last)),
                                          hn::BitCast(bytes, hn::InterleaveLower(fours, first, last))));
      const auto look_up = [&](auto index) HWY_ATTR {
        const auto found = _mm512_permutexvar_epi16(hn::Or(hn::And(index, codes), second).raw, table.raw);
        return hn::BitCast(word, decltype(table){found});
      };
      const auto even = look_up(hn::ShiftLeft<1>(pairs)), odd = look_up(hn::ShiftRight<3>(pairs));
      const int64_t j = c / width * width, stored = HWY_MIN(width, part.columns - j);
      uint32_t* to = packed + j * words + p * stored + c - j;
      hn::StoreU(hn::InterleaveLower(word, even, odd), word, to);
      hn::StoreU(hn::InterleaveUpper(word, even, odd), word, to + lanes);
    }
  }
  return true;
}
#endif

// Scalar code packs nothing here.
bool PackPairs([[maybe_unused]] const BlockCodes& w, [[maybe_unused]] const CodesPart& part,
               [[maybe_unused]] const CodesPart& next, [[maybe_unused]] bool across,
               [[maybe_unused]] bool native, float* packed) {
  [[maybe_unused]] auto* words = reinterpret_cast<uint32_t*>(packed);
#ifdef ORTRAIN_PACKS_ACROSS
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  if (across && native) return PackCodesAcross<Packing::kNativePairs>(w, part, next, words);
#endif
  if (across) return PackCodesAcross<Packing::kPairs>(w, part, next, words);
#endif
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  if (!across)
    return native ? PackPairsAlong<true>(w, part, next, words) : PackPairsAlong<false>(w, part, next, words);
#endif
  return false;
}
#undef ORTRAIN_PACKS_ACROSS
#undef ORTRAIN_LOOKS_UP_CODES

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

void unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, float* to, int64_t to_row) {
  ORTRAIN_DISPATCH(ToFloats)(w, part, next, to, to_row);
}

void unpack(const BlockCodes& w, const CodesPart& part, const CodesPart& next, BFloat16* to, int64_t to_row) {
  ORTRAIN_DISPATCH(ToHalves)(w, part, next, to, to_row);
}

bool pack_floats(const BlockCodes& w, const CodesPart& part, const CodesPart& next, bool transposed,
                 float* packed) {
  return ORTRAIN_DISPATCH(PackFloats)(w, part, next, transposed, packed);
}

bool pack_pairs(const BlockCodes& w, const CodesPart& part, const CodesPart& next, bool transposed,
                float* packed) {
  return ORTRAIN_DISPATCH(PackPairs)(w, part, next, transposed, has_bf16_instructions(), packed);
}

}  // namespace ortrain
#endif
