// x86 processors without AVX2 get vectors here too, as in multiply.cpp.
#if defined(__x86_64__)
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul/integer_product.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include <type_traits>

#include "backend/cpu/matmul/amx_tiles-inl.h"
#include "backend/cpu/matmul/integer_product.h"
#include "backend/cpu/matmul/integer_words-inl.h"
#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// The bits of element x in a word, at the given place of the group.
template <typename How, typename Q>
uint32_t InWord(Q x, int64_t place) {
  if constexpr (How::kGroup == 4) {
    return static_cast<uint32_t>(static_cast<uint8_t>(x)) << (8 * place);
  } else {
    return static_cast<uint32_t>(static_cast<uint16_t>(static_cast<int16_t>(x))) << (16 * place);
  }
}

template <typename How, typename Q>
void PackLeftOf(int64_t m, int64_t k, const Q* a, int64_t row, uint32_t* packed, int32_t* sums) {
  constexpr int64_t kGroup = How::kGroup;
  constexpr int32_t kShift = How::kLeft.of(std::is_signed_v<Q>);
  const int64_t words = (k + kGroup - 1) / kGroup;
  for (int64_t i = 0; i < m; ++i) {
    const Q* HWY_RESTRICT from = a + i * row;
    uint32_t* HWY_RESTRICT to = packed + i * words;
    uint32_t sum = static_cast<uint32_t>(k) * static_cast<uint32_t>(kShift);
    for (int64_t l = 0; l < k; ++l) sum += static_cast<uint32_t>(from[l]);
    sums[i] = static_cast<int32_t>(sum);
    // Adding 128 to a byte, or subtracting it, inverts its highest bit.
    const uint32_t flip = kShift ? 0x80808080u : 0;
    for (int64_t w = 0; w < k / kGroup; ++w) {
      uint32_t word = 0;
      for (int64_t g = 0; g < kGroup; ++g) word |= InWord<How>(from[w * kGroup + g], g);
      to[w] = word ^ flip;
    }
    if (k % kGroup) {
      uint32_t word = 0;
      for (int64_t g = 0; g < k % kGroup; ++g) word |= InWord<How>(from[k / kGroup * kGroup + g], g);
      to[words - 1] = word ^ (flip & ((1u << (8 * (k % kGroup))) - 1));
    }
  }
}

template <typename How>
void PackLeft(int64_t m, int64_t k, Codes a, uint32_t* packed, int32_t* sums) {
  if (a.is_signed)
    PackLeftOf<How>(m, k, reinterpret_cast<const int8_t*>(a.data), a.row, packed, sums);
  else
    PackLeftOf<How>(m, k, a.data, a.row, packed, sums);
}

// The compiler vectorizes these loops.
template <typename How, typename Q>
void PackRightOf(int64_t n, int64_t begin, int64_t count, const Q* b, int64_t row, uint32_t* panel) {
  constexpr int64_t kGroup = How::kGroup;
  const uint32_t flip = How::kRight.of(std::is_signed_v<Q>) ? 0x80808080u : 0;
  const int64_t lanes = Lanes(), stored = (n + lanes - 1) / lanes * lanes;
  for (int64_t l = 0; l < count; l += kGroup) {
    uint32_t* HWY_RESTRICT to = panel + (begin + l) / kGroup * stored;
    const Q* HWY_RESTRICT b0 = b + l * row;
    if (l + kGroup <= count) {
      const Q* HWY_RESTRICT b1 = b0 + row;
      if constexpr (kGroup == 4) {
        const Q *HWY_RESTRICT b2 = b1 + row, *HWY_RESTRICT b3 = b2 + row;
        for (int64_t j = 0; j < n; ++j)
          to[j] = (InWord<How>(b0[j], 0) | InWord<How>(b1[j], 1) | InWord<How>(b2[j], 2) |
                   InWord<How>(b3[j], 3)) ^
                  flip;
      } else {
        for (int64_t j = 0; j < n; ++j) to[j] = InWord<How>(b0[j], 0) | InWord<How>(b1[j], 1);
      }
    } else {
      const uint32_t some = flip & ((1u << (8 * (count - l))) - 1);
      for (int64_t j = 0; j < n; ++j) {
        uint32_t word = 0;
        for (int64_t g = 0; g < count - l; ++g) word |= InWord<How>(b0[g * row + j], g);
        to[j] = word ^ some;
      }
    }
    for (int64_t j = n; j < stored; ++j) to[j] = 0;
  }
}

template <typename How>
void PackRight(int64_t n, int64_t begin, int64_t count, Codes b, uint32_t* panel) {
  if (b.is_signed)
    PackRightOf<How>(n, begin, count, reinterpret_cast<const int8_t*>(b.data), b.row, panel);
  else
    PackRightOf<How>(n, begin, count, b.data, b.row, panel);
}

template <typename How>
void SumColumns(int64_t n, int64_t k, uint32_t* panel) {
  const I32 d;
  const int64_t lanes = Lanes(), stored = (n + lanes - 1) / lanes * lanes;
  const int64_t words = (k + How::kGroup - 1) / How::kGroup;
  const V32 ones = hn::Set(d, How::kGroup == 4 ? 0x01010101 : 0x00010001);
  int32_t* to = reinterpret_cast<int32_t*>(panel);
  for (int64_t j = 0; j < stored; j += lanes) {
    V32 sum = hn::Zero(d), rest = sum;
    for (int64_t w = 0; w < words; ++w) How::MulAdd(ones, hn::LoadU(d, to + w * stored + j), sum, rest);
    hn::StoreU(How::Total(sum, rest), d, to + words * stored + j);
  }
}

// Accounts for the zero points in a vector of the sums of row i at column j, adds the bias, and stores them.
// `stored` is the length of a row of the panel, whose last row follows `words` others.
HWY_INLINE void FinishSums(const IntegerPart& p, int64_t words, int64_t stored, int64_t i, int64_t j,
                           V32 sum) {
  const I32 d;
  const uint32_t zero = static_cast<uint32_t>(p.left_zeros[i]);
  const uint32_t rest = zero * static_cast<uint32_t>(p.k) - static_cast<uint32_t>(p.sums[i]);
  const int32_t* sums = reinterpret_cast<const int32_t*>(p.panel) + words * stored;
  if (p.left_zeros[i] != 0) sum = hn::Sub(sum, hn::Mul(hn::Set(d, p.left_zeros[i]), hn::LoadU(d, sums + j)));
  sum = hn::Add(sum, hn::Mul(hn::Set(d, static_cast<int32_t>(rest)), hn::LoadU(d, p.right_zeros + j)));
  if (p.bias) sum = hn::Add(sum, hn::Set(d, p.bias[i]));
  StoreUpTo(sum, d, p.y + i * p.y_row + j, p.n - j);
}

// R rows times V vectors of columns; the first row is `row`, the first column of the panel is `column`.
template <typename How, int R, int V>
HWY_INLINE void Tile(const IntegerPart& p, int64_t words, int64_t stored, int64_t row, int64_t column) {
  const I32 d;
  const int64_t lanes = Lanes();
  const int32_t* a = reinterpret_cast<const int32_t*>(p.left) + row * words;
  const int32_t* b = reinterpret_cast<const int32_t*>(p.panel) + column;
#define ORTRAIN_EACH_OF(r) ORTRAIN_SUM(r, 0) ORTRAIN_SUM(r, 1) ORTRAIN_SUM(r, 2) ORTRAIN_SUM(r, 3)
#define ORTRAIN_EACH_SUM \
  ORTRAIN_EACH_OF(0)     \
  ORTRAIN_EACH_OF(1) ORTRAIN_EACH_OF(2) ORTRAIN_EACH_OF(3) ORTRAIN_EACH_OF(4) ORTRAIN_EACH_OF(5)
#define ORTRAIN_SUM(r, v) V32 c##r##v = hn::Zero(d), e##r##v = c##r##v;
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
  for (int64_t w = 0; w < words; ++w, b += stored) {
    const V32 b0 = hn::LoadU(d, b);
    V32 b1 = b0, b2 = b0, b3 = b0;
    if constexpr (V > 1) b1 = hn::LoadU(d, b + lanes);
    if constexpr (V > 2) b2 = hn::LoadU(d, b + 2 * lanes);
    if constexpr (V > 3) b3 = hn::LoadU(d, b + 3 * lanes);
#define ORTRAIN_ROW(r)                                         \
  if constexpr (R > r) {                                       \
    const V32 x = hn::Set(d, a[r * words + w]);                \
    How::MulAdd(x, b0, c##r##0, e##r##0);                      \
    if constexpr (V > 1) How::MulAdd(x, b1, c##r##1, e##r##1); \
    if constexpr (V > 2) How::MulAdd(x, b2, c##r##2, e##r##2); \
    if constexpr (V > 3) How::MulAdd(x, b3, c##r##3, e##r##3); \
  }
    ORTRAIN_ROW(0)
    ORTRAIN_ROW(1)
    ORTRAIN_ROW(2)
    ORTRAIN_ROW(3)
    ORTRAIN_ROW(4)
    ORTRAIN_ROW(5)
#undef ORTRAIN_ROW
  }
#define ORTRAIN_SUM(r, v)       \
  if constexpr (R > r && V > v) \
    FinishSums(p, words, stored, row + r, column + v * lanes, How::Total(c##r##v, e##r##v));
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
#undef ORTRAIN_EACH_SUM
#undef ORTRAIN_EACH_OF
}

template <typename How, int V>
void Rows(const IntegerPart& p, int64_t words, int64_t stored, int64_t column) {
  int64_t i = 0;
  for (; i + 6 <= p.m; i += 6) Tile<How, 6, V>(p, words, stored, i, column);
  for (; i + 4 <= p.m; i += 4) Tile<How, 4, V>(p, words, stored, i, column);
  for (; i + 2 <= p.m; i += 2) Tile<How, 2, V>(p, words, stored, i, column);
  for (; i < p.m; ++i) Tile<How, 1, V>(p, words, stored, i, column);
}

template <typename How>
void Multiply(const IntegerPart& p) {
  const int64_t lanes = Lanes(), stored = (p.n + lanes - 1) / lanes * lanes;
  const int64_t words = (p.k + How::kGroup - 1) / How::kGroup;
  for (int64_t j = 0; j < stored;) {
    const int64_t left = (stored - j) / lanes;
    if (How::kVectors >= 4 && left >= 4) {
      Rows<How, 4>(p, words, stored, j);
      j += 4 * lanes;
    } else if (left >= 2) {
      Rows<How, 2>(p, words, stored, j);
      j += 2 * lanes;
    } else {
      Rows<How, 1>(p, words, stored, j);
      j += lanes;
    }
  }
}

#if ORTRAIN_HAS_AMX_TILES
// Words of Quads in the tiles of AMX.
void QuadsInTiles(const IntegerPart& p) {
  // Derived: with fewer rows, more time goes into loading a tile of B than into its products.
  constexpr int64_t kLeastRows = 8;
  if (p.m < kLeastRows) return Multiply<Quads>(p);
  constexpr int64_t kColumns = Quads::kVectors * kTileSize;
  const int64_t stored = (p.n + kTileSize - 1) / kTileSize * kTileSize;
  const int64_t words = (p.k + Quads::kGroup - 1) / Quads::kGroup;
  HWY_ALIGN int32_t sums[kTileBlock * kColumns];
  for (int64_t i = 0; i < p.m; i += kTileBlock) {
    const int64_t rows = HWY_MIN(kTileBlock, p.m - i);
    MultiplyInTiles<BytesInTiles>(rows, stored, words, LeftTiles::of_rows(p.left + i * words, words), p.panel,
                                  stored, sums, kColumns, false);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < stored; j += kTileSize)
        FinishSums(p, words, stored, i + r, j, hn::Load(I32(), sums + r * kColumns + j));
  }
}
#endif

// The compiler vectorizes these loops.
template <typename Q>
void ShiftLineOf(int64_t n, const Q* HWY_RESTRICT x, int32_t zero, int16_t* HWY_RESTRICT to) {
  const auto z = static_cast<int16_t>(zero);
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int16_t>(int16_t{x[i]} - z);
}

void ShiftLine(int64_t n, const uint8_t* x, bool is_signed, int32_t zero, int16_t* to) {
  if (is_signed)
    ShiftLineOf(n, reinterpret_cast<const int8_t*>(x), zero, to);
  else
    ShiftLineOf(n, x, zero, to);
}

void PairLine(int64_t n, const int16_t* HWY_RESTRICT x, int64_t stride, int64_t gap,
              uint32_t* HWY_RESTRICT to) {
  const int16_t* HWY_RESTRICT next = x + gap;
  const auto pair = [](int16_t a, int16_t b) {
    return uint32_t{static_cast<uint16_t>(a)} | uint32_t{static_cast<uint16_t>(b)} << 16;
  };
  if (stride == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = pair(x[i], next[i]);
  else if (stride == 2 && gap == 1)
    for (int64_t i = 0; i < n; ++i) to[i] = pair(x[2 * i], x[2 * i + 1]);
  else
    for (int64_t i = 0; i < n; ++i) to[i] = pair(x[i * stride], next[i * stride]);
}

// V vectors of the sums.
template <int V>
HWY_INLINE void SumOfLines(int64_t i, int64_t n, int64_t count, const uint32_t* const* lines,
                           const uint32_t* weights, int32_t start, bool add, int32_t* y) {
  const I32 d;
  const int64_t lanes = Lanes();
  V32 c0 = hn::Zero(d), c1 = c0, c2 = c0, c3 = c0, e0 = c0, e1 = c0, e2 = c0, e3 = c0;
  for (int64_t t = 0; t < count; ++t) {
    const auto* line = reinterpret_cast<const int32_t*>(lines[t]) + i;
    const V32 w = hn::Set(d, static_cast<int32_t>(weights[t]));
    Pairs::MulAdd(w, hn::LoadU(d, line), c0, e0);
    if constexpr (V > 1) {
      Pairs::MulAdd(w, hn::LoadU(d, line + lanes), c1, e1);
      Pairs::MulAdd(w, hn::LoadU(d, line + 2 * lanes), c2, e2);
      Pairs::MulAdd(w, hn::LoadU(d, line + 3 * lanes), c3, e3);
    }
  }
  const auto finish = [&](V32 sum, int64_t at) HWY_ATTR {
    const V32 before = add ? LoadUpTo(d, y + at, n - at) : hn::Set(d, start);
    StoreUpTo(hn::Add(sum, before), d, y + at, n - at);
  };
  finish(Pairs::Total(c0, e0), i);
  if constexpr (V > 1) {
    finish(Pairs::Total(c1, e1), i + lanes);
    finish(Pairs::Total(c2, e2), i + 2 * lanes);
    finish(Pairs::Total(c3, e3), i + 3 * lanes);
  }
}

void SumLines(int64_t n, int64_t count, const uint32_t* const* lines, const uint32_t* weights, int32_t start,
              bool add, int32_t* y) {
  const int64_t lanes = Lanes();
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) SumOfLines<4>(i, n, count, lines, weights, start, add, y);
  for (; i < n; i += lanes) SumOfLines<1>(i, n, count, lines, weights, start, add, y);
}

template <typename How>
IntegerKernels KernelsOf(decltype(&Multiply<How>) multiply = Multiply<How>) {
  return {How::kGroup,   Lanes(),        How::kVectors * Lanes(), How::kLeft, How::kRight,
          PackLeft<How>, PackRight<How>, SumColumns<How>,         multiply,   ShiftLine,
          PairLine,      SumLines};
}

IntegerKernels FindIntegerKernels(bool quads) {
#if ORTRAIN_HAS_QUADS
  if (quads && MultipliesQuads()) {
#if ORTRAIN_HAS_AMX_TILES
    if (byte_products_in_tiles()) return KernelsOf<Quads>(QuadsInTiles);
#endif
    return KernelsOf<Quads>();
  }
#endif
  (void)quads;
  return KernelsOf<Pairs>();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {}

IntegerKernels integer_kernels(bool quads) { return ORTRAIN_DISPATCH(FindIntegerKernels)(quads); }

}  // namespace ortrain
#endif
