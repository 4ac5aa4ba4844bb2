#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul/mixed_product.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>

#include "backend/cpu/bf16_conversion.h"
#include "backend/cpu/matmul/amx_tiles-inl.h"
#include "backend/cpu/matmul/bf16_pairs-inl.h"
#include "backend/cpu/matmul/bf16_tiles-inl.h"
#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/matmul/narrow_product.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/thread_pool.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_MIXED_PRODUCT_TYPES
#define ORTRAIN_MIXED_PRODUCT_TYPES
namespace ortrain {

// A block of the left operand: element or word (i, p) is data[i * row + p * column]. Quads are stored as in
// backend/cpu/matmul/bf16_tiles-inl.h. With `far`, it may have to come from memory.
struct LeftBlock {
  const float* data;
  int64_t row, column;
  bool far = false;
};

// The part of Y from a row and a column on.
struct ResultPart {
  const MixedProduct* p;
  int64_t row, column;

  int64_t place(int64_t r) const { return (row + r) * p->n + column; }
};

// Packed blocks hold floats, or words of two bfloat16 values in the place of floats, or quads of four in the
// place of two floats.
struct MixedFunctions {
  int64_t lanes, panel;
  int64_t depth;  // elements along k that are multiplied at a time
  LeftBlock (*pack_left)(const StoredMatrix& a, int64_t m, int64_t k, float* packed);
  // `turned` is memory for a panel.
  void (*pack_right)(const StoredMatrix& b, int64_t k, int64_t n, float* turned, float* packed);
  // C = or += alpha A B for a depth of `k` elements. With `end`, results go to Y, and the memory of C holds
  // sums only until then; without `add`, sums of several rows may take turns in it.
  void (*multiply)(int64_t m, const LeftBlock& a, const float* b, int64_t k, int64_t n, float alpha, float* c,
                   int64_t c_row, bool add, const ResultPart* end);
  // pack_right for codes; null: they are unpacked first.
  decltype(&pack_floats) pack_codes = nullptr;
  // Whether pack_left leaves A where it is; null: never.
  bool (*stays_in_place)(const StoredMatrix& a, int64_t k) = nullptr;
};

// Floats or words that are multiplied at a time. Measured on Zen 4 for 128 to 512 rows of 768 to 50,257
// floats or pairs, weights of 4 bits: with 128, products take 0.99 to 1.07, with 192 0.98 to 1.05; with 384
// and half of the columns 0.98 to 1.4.
inline constexpr int64_t kMixedDepth = 256;
inline constexpr int64_t kLeftRows = tuning::kBlockRows, kLeftPad = 16;
static_assert(kLeftRows % 2 == 0);

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;

// Calls f(pointer) with the type in which the elements are stored.
template <class F>
HWY_INLINE void Visit(StoredInput v, const F& f) {
  v.bf16 ? f(v.halves()) : f(v.floats());
}

// As floats.

template <typename T>
HWY_NOINLINE void Widen(const T* from, int64_t n, float* to) {
  const F32 d;
  ForVectors<float>(n, [&](int64_t i, int64_t count)
                           HWY_ATTR { StoreUpTo(LoadUpTo(d, from + i, count), d, to + i, count); });
}

LeftBlock PackLeftFloats(const StoredMatrix& a, int64_t m, int64_t k, float* packed) {
  // Elements far apart may all map to one cache set.
  if (!a.values.bf16 && a.column * static_cast<int64_t>(sizeof(float)) <= tuning::kNearby)
    return {a.values.floats(), a.row, a.column};
  const bool by_rows = a.column == 1;
  const int64_t lines = by_rows ? m : k, length = by_rows ? k : m, pitch = length + kLeftPad;
  Visit(a.values, [&](const auto* from) {
    for (int64_t i = 0; i < lines; ++i)
      Widen(from + i * (by_rows ? a.row : a.column), length, packed + i * pitch);
  });
  return by_rows ? LeftBlock{packed, pitch, 1} : LeftBlock{packed, 1, pitch};
}

void PackRightFloats(const StoredMatrix& b, int64_t k, int64_t n, float* turned, float* packed) {
  const F32 d;
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes;
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j), stored = (used + lanes - 1) / lanes * lanes;
    float* to = packed + j * k;
    Visit(b.values, [&](const auto* from) HWY_ATTR {
      using T = std::remove_cvref_t<decltype(*from)>;
      if (b.column == 1) {
        for (int64_t i = 0; i < k; ++i)
          for (int64_t l = 0; l < used; l += lanes)
            hn::StoreU(LoadUpTo(d, from + i * b.row + j + l, used - l), d, to + i * stored + l);
      } else if constexpr (kIsBf16<T>) {
        for (int64_t c = 0; c < used; ++c) Widen(from + (j + c) * b.column, k, turned + c * k);
        PackAcross(turned, k, k, used, 1.0f, to);
      } else {
        PackAcross(from + j * b.column, b.column, k, used, 1.0f, to);
      }
    });
  }
}

// As pairs of bfloat16.

// Whether the rows of A can be multiplied where they are: they do not all map to the same few cache sets.
bool StayInPlace(const StoredMatrix& a, int64_t k) {
  constexpr int64_t kPage = 4096;
  return a.values.bf16 && a.column == 1 && a.row * 2 % kPage != 0 && AreWords(a.values.halves(), a.row, k);
}

LeftBlock PackLeftPairs(const StoredMatrix& a, int64_t m, int64_t k, float* packed) {
  if (StayInPlace(a, k)) return {static_cast<const float*>(a.values.data), a.row / 2, 1, true};
  const int64_t words = (k + 1) / 2, pitch = m + kLeftPad;
  Visit(a.values, [&](const auto* from) {
    if (a.column == 1)
      for (int64_t i = 0; i < m; ++i)
        ToWords(from + i * a.row, k, reinterpret_cast<BFloat16*>(packed + i * words));
    else
      for (int64_t w = 0; w < words; ++w)
        JoinRows(from + 2 * w * a.column, 2 * w + 1 < k ? from + (2 * w + 1) * a.column : nullptr, m,
                 reinterpret_cast<uint32_t*>(packed + w * pitch));
  });
  return a.column == 1 ? LeftBlock{packed, words, 1} : LeftBlock{packed, 1, pitch};
}

void PackRightPairs(const StoredMatrix& b, int64_t k, int64_t n, float* turned, float* packed) {
  Visit(b.values, [&](const auto* from) {
    if (b.column == 1)
      PackPairsAlong(from, b.row, k, n, packed);
    else
      PackPairsAcross(from, b.column, k, n, turned, packed);
  });
}

// What follows the sums.

// The result of V vectors of sums in the row `row` of Y.
template <int V>
HWY_INLINE void FinishVectors(const MixedProduct& p, int64_t row, int64_t column, int64_t n,
                              const float* sums, [[maybe_unused]] bool native) {
  const F32 d;
  const int64_t lanes = LanesOf<float>(), at = row * p.n + column;
  auto v0 = LoadUpTo(d, sums, n), v1 = v0, v2 = v0, v3 = v0;
  const auto each = [&](const auto& f) HWY_ATTR {
    v0 = f(v0, 0);
    if constexpr (V > 1) v1 = f(v1, lanes);
    if constexpr (V > 2) v2 = f(v2, 2 * lanes), v3 = f(v3, 3 * lanes);
  };
  if constexpr (V > 1) each([&](auto, int64_t l) HWY_ATTR { return hn::LoadU(d, sums + l); });
  for (const MixedTerm& t : p.terms) {
    const auto apply = [&](const auto& load) HWY_ATTR {
      const auto factor = hn::Set(d, t.factor);
      if (t.multiplies)
        each([&](auto v, int64_t l) HWY_ATTR { return hn::Mul(v, load(l)); });
      else
        each([&](auto v, int64_t l) HWY_ATTR { return hn::MulAdd(load(l), factor, v); });
    };
    const bool full = t.kind == Bias::kFull, line = full || t.kind == Bias::kRow;
    const StoredInput from = t.values.from(full ? at : line ? column : t.kind == Bias::kColumn ? row : 0);
    Visit(from, [&](const auto* values) HWY_ATTR {
      if (line)
        apply([&](int64_t l) HWY_ATTR { return LoadUpTo(d, values + l, V > 1 ? lanes : n); });
      else
        apply([&](int64_t) HWY_ATTR { return hn::Set(d, static_cast<float>(*values)); });
    });
  }
#ifdef ORTRAIN_HAS_NATIVE_WORDS
  if (native && p.y.bf16)
    return each([&](auto v, int64_t l) HWY_ATTR {
      StoreNative(v, d, p.y.halves() + at + l, V > 1 ? lanes : n);
      return v;
    });
#endif
  const auto store = [&](auto* y) HWY_ATTR {
    each([&](auto v, int64_t l) HWY_ATTR {
      StoreUpTo(v, d, y + l, V > 1 ? lanes : n);
      return v;
    });
  };
  p.y.bf16 ? store(p.y.halves() + at) : store(p.y.floats() + at);
}

HWY_NOINLINE void FinishRows(const ResultPart& part, int64_t m, int64_t n, const float* sums,
                             int64_t sums_row) {
  const MixedProduct& p = *part.p;
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes;
  const bool native = has_bf16_instructions();
  for (int64_t r = 0; r < m; ++r, sums += sums_row) {
    int64_t l = 0;
    for (; l + width <= n; l += width)
      FinishVectors<kPanel>(p, part.row + r, part.column + l, width, sums + l, native);
    for (; l < n; l += lanes)
      FinishVectors<1>(p, part.row + r, part.column + l, HWY_MIN(lanes, n - l), sums + l, native);
  }
}

// Prefetches what FinishRows() reads and writes. Inlined, because gcc drops calls of functions that only
// prefetch.
HWY_INLINE void PrefetchPart(const ResultPart& part, int64_t m, int64_t n, const void* values, bool bf16) {
  const int64_t size = bf16 ? 2 : 4;
  for (int64_t r = 0; r < m; ++r)
    for (int64_t at = 0; at < n * size; at += 64)
      hwy::Prefetch(static_cast<const char*>(values) + part.place(r) * size + at);
}
HWY_INLINE void PrefetchEnd(const ResultPart& part, int64_t m, int64_t n) {
  for (const MixedTerm& t : part.p->terms)
    if (t.kind == Bias::kFull) PrefetchPart(part, m, n, t.values.data, t.values.bf16);
  PrefetchPart(part, m, n, part.p->y.data, part.p->y.bf16);
}

template <class How>
void MultiplyBlock(int64_t m, const LeftBlock& a, const float* b, int64_t k, int64_t n, float alpha, float* c,
                   int64_t c_row, bool add, const ResultPart* end) {
  const int64_t depth = std::is_same_v<How, MultiplyAdd> ? k : (k + 1) / 2;
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes;
  const int64_t step = end ? HWY_MIN(m, tuning::kFinishedRows) : m;
  for (int64_t i = 0; i < m; i += step) {
    const int64_t rows = HWY_MIN(step, m - i);
    float* sums = end && !add ? c : c + i * c_row;
    for (int64_t j = 0; j < n; j += width) {
      const int64_t used = HWY_MIN(width, n - j), stored = (used + lanes - 1) / lanes * lanes;
      if (end) PrefetchEnd({end->p, end->row + i, end->column + j}, rows, used);
      Panel<float, How>(rows, used, {depth, 1, 0, 0, a.far && j == 0}, a.data + i * a.row, a.row, a.column,
                        b + j * depth, stored, sums + j, c_row, add, false, alpha);
    }
    if (end) FinishRows({end->p, end->row + i, end->column}, rows, n, sums, c_row);
  }
}

#if ORTRAIN_HAS_AMX_TILES
// As tiles of pairs.

// The pairs of a row as words, up to a whole row of a tile; missing values are zeros.
HWY_INLINE void ToTileRow(const BFloat16* from, int64_t k, BFloat16* to) {
  const hn::ScalableTag<uint16_t> d;
  if (k == 2 * kTileSize)
    hn::StoreU(hn::LoadU(d, &from->bits), d, &to->bits);
  else
    ToWords(from, k, to, 2 * kTileSize);
}
HWY_INLINE void ToTileRow(const float* from, int64_t k, BFloat16* to) {
  const F32 d;
  if (k < 2 * kTileSize) return ToWords(from, k, to, 2 * kTileSize);
  StoreUpTo(hn::LoadU(d, from), d, to, kTileSize);
  StoreUpTo(hn::LoadU(d, from + kTileSize), d, to + kTileSize, kTileSize);
}

LeftBlock PackLeftTiles(const StoredMatrix& a, int64_t m, int64_t k, float* packed) {
  constexpr int64_t kValues = 2 * kTileSize;  // of a row of a tile
  const int64_t steps = (k + kValues - 1) / kValues;
  uint32_t words[kTileSize * kLeftRows];
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t depth = HWY_MIN(kValues, k - s * kValues);
    const auto at = [&](int64_t i) { return packed + (i / kTileSize * steps + s) * kTileWords; };
    Visit(a.values, [&](const auto* from) HWY_ATTR {
      from += s * kValues * a.column;
      if (a.column == 1) {
        for (int64_t i = 0; i < m; ++i)
          ToTileRow(from + i * a.row, depth, reinterpret_cast<BFloat16*>(at(i) + i % kTileSize * kTileSize));
        return;
      }
      for (int64_t l = 0; l < depth; l += 2, from += 2 * a.column)
        JoinRows(from, l + 1 < depth ? from + a.column : nullptr, m, words + l / 2 * kLeftRows);
      for (int64_t i = 0; i < m; i += kTileSize)
        TurnWords(words + i, kLeftRows, (depth + 1) / 2, HWY_MIN(kTileSize, m - i),
                  reinterpret_cast<uint32_t*>(at(i)), kTileSize);
    });
  }
  return {packed, 0, 0};
}

void MultiplyTileBlock(int64_t m, const LeftBlock& a, const float* b, int64_t k, int64_t n, float alpha,
                       float* c, int64_t c_row, bool add, const ResultPart* end) {
  const int64_t words = (k + 1) / 2, width = kPanel * kTileSize;
  const LeftTiles left = LeftTiles::of_tiles(a.data, (words + kTileSize - 1) / kTileSize);
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j), stored = (used + kTileSize - 1) / kTileSize * kTileSize;
    MultiplyPairsInTiles(m, used, words, left, b + j * words, stored, alpha, c + j, c_row, add);
  }
  if (end) FinishRows(*end, m, n, c, c_row);
}
#endif

#if ORTRAIN_HAS_BF16_TILES
// As quads of bfloat16.

// to[2 i], to[2 i + 1] = the quad of element i of up to four rows; missing rows count as zeros.
template <typename T>
void JoinFour(const T* from, int64_t row, int64_t rows, int64_t n, uint32_t* to) {
  const hn::ScalableTag<uint32_t> d;
  const int64_t lanes = LanesOf<float>();
  constexpr int64_t kRun = 64;
  uint32_t words[2][kRun] = {};
  for (int64_t i = 0; i < n; i += kRun, from += kRun, to += 2 * kRun) {
    const int64_t count = HWY_MIN(kRun, n - i);
    JoinRows(from, rows > 1 ? from + row : nullptr, count, words[0]);
    if (rows > 2) JoinRows(from + 2 * row, rows > 3 ? from + 3 * row : nullptr, count, words[1]);
    int64_t l = 0;
    for (; l + lanes <= count; l += lanes)
      hn::StoreInterleaved2(hn::LoadU(d, words[0] + l), hn::LoadU(d, words[1] + l), d, to + 2 * l);
    for (; l < count; ++l) to[2 * l] = words[0][l], to[2 * l + 1] = words[1][l];
  }
}

LeftBlock PackLeftQuads(const StoredMatrix& a, int64_t m, int64_t k, float* packed) {
  const int64_t quads = (k + 3) / 4, pair = 4 * quads;
  uint32_t line[2 * HWY_MAX(kLeftRows, kMixedDepth)];
  uint32_t* to = reinterpret_cast<uint32_t*>(packed);
  Visit(a.values, [&](const auto* from) {
    const auto put = [&](int64_t i, int64_t q, const uint32_t* quad) {
      std::copy_n(quad, 2, to + i / 2 * pair + q * 4 + i % 2 * 2);
    };
    if (a.column == 1)
      for (int64_t i = 0; i < m; ++i) {
        ToWords(from + i * a.row, k, reinterpret_cast<BFloat16*>(line), 4);
        for (int64_t q = 0; q < quads; ++q) put(i, q, line + 2 * q);
      }
    else
      for (int64_t q = 0; q < quads; ++q) {
        JoinFour(from + 4 * q * a.column, a.column, HWY_MIN(4, k - 4 * q), m, line);
        for (int64_t i = 0; i < m; ++i) put(i, q, line + 2 * i);
      }
    constexpr uint32_t kZeros[2] = {};
    for (int64_t q = 0; m % 2 && q < quads; ++q) put(m, q, kZeros);
  });
  return {packed, 0, 0};
}

void PackRightQuads(const StoredMatrix& b, int64_t k, int64_t n, float* turned, float* packed) {
  const int64_t lanes = LanesOf<float>(), width = kPanel * lanes, quads = (k + 3) / 4;
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j), stored = (used + lanes - 1) / lanes * lanes;
    uint32_t* to = reinterpret_cast<uint32_t*>(packed + 2 * j * quads);
    const uint32_t* columns = reinterpret_cast<const uint32_t*>(turned);
    Visit(b.values, [&](const auto* from) {
      for (int64_t c = 0; b.column != 1 && c < used; ++c)
        ToWords(from + (j + c) * b.column, k, reinterpret_cast<BFloat16*>(turned + 2 * c * quads), 4);
      for (int64_t q = 0; q < quads; ++q, to += 2 * stored) {
        if (b.column == 1)
          JoinFour(from + 4 * q * b.row + j, b.row, HWY_MIN(4, k - 4 * q), used, to);
        else
          for (int64_t c = 0; c < used; ++c) std::copy_n(columns + 2 * (c * quads + q), 2, to + 2 * c);
        std::fill(to + 2 * used, to + 2 * stored, 0u);
      }
    });
  }
}

void MultiplyQuadBlock(int64_t m, const LeftBlock& a, const float* b, int64_t k, int64_t n, float alpha,
                       float* c, int64_t c_row, bool add, const ResultPart* end) {
  MultiplyQuads(m, a.data, b, (k + 3) / 4, n, alpha, c, c_row, add);
  if (end) FinishRows(*end, m, n, c, c_row);
}
#endif

MixedFunctions FindMixed(bool pairs, Bf16Products with) {
  const int64_t lanes = LanesOf<float>(), panel = kPanel * lanes, depth = kMixedDepth;
  if (!pairs)
    return {lanes, panel, depth, PackLeftFloats, PackRightFloats, MultiplyBlock<MultiplyAdd>, pack_floats};
  const bool native = with >= Bf16Products::kSlow;
#if ORTRAIN_HAS_AMX_TILES
  if (with == Bf16Products::kTiles)
    return {lanes, panel, 2 * depth, PackLeftTiles, PackRightPairs, MultiplyTileBlock, pack_pairs};
#endif
#if ORTRAIN_HAS_BF16_TILES
  if (native) return {lanes, panel, 2 * depth, PackLeftQuads, PackRightQuads, MultiplyQuadBlock};
#endif
  const auto multiply = native ? MultiplyBlock<NativePairs> : MultiplyBlock<WidenedPairs>;
  return {lanes, panel, 2 * depth, PackLeftPairs, PackRightPairs, multiply, pack_pairs, StayInPlace};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

// Tiles of AMX would be mostly empty with less depth.
constexpr int64_t kLeastTileDepth = 32;

MixedFunctions functions(bool pairs, int64_t k) {
  static const Bf16Products fastest = bf16_products();
  const bool tiles = fastest == Bf16Products::kTiles && k >= kLeastTileDepth;
  return ORTRAIN_DISPATCH(FindMixed)(pairs, tiles ? fastest : std::min(fastest, Bf16Products::kFast));
}

// Results whose sums a thread keeps: up to 672 KiB of a second-level cache. With 512 rows, B is packed once.
constexpr int64_t kRows = 4 * kLeftRows, kColumns = 256;

// The size of the parts of B that are packed at a time.
struct RightSize {
  int64_t depth, columns;
};

// If the whole depth is multiplied in one step, no sums go to memory and each part of B is packed once. Parts
// are then as wide as their memory allows. Rows of A that stay where they are allow twice the depth, since
// they still fit into the first-level cache. Measured on Zen 4: products of 1024 rows and 256 columns with
// this depth take 0.96 to 0.97.
RightSize right_size(const MixedProduct& p, const MixedFunctions& f) {
  const bool in_place = f.stays_in_place && f.stays_in_place(p.a, p.k);
  if (p.codes || p.take || p.added.k > 0 || p.k > (in_place ? 2 : 1) * f.depth) return {f.depth, kColumns};
  const int64_t depth = std::max((p.k + 3) / 4 * 4, f.depth / 2);
  return {depth, kColumns * f.depth / depth / f.panel * f.panel};
}

// The memory of a thread.
struct Room {
  float *left, *right, *turned, *sums, *unpacked;
};

// The size of the largest unpacked block of B, in floats or in bfloat16. Its lines are padded so that they do
// not all map to the same sets of the cache.
constexpr int64_t kUnpackedFloats = (kColumns + kLeftPad) * (kMixedDepth + kLeftPad);

// Rows [row, row + rows) and columns [column, column + columns) of B.
struct RightPart {
  int64_t row, rows, column, columns;

  CodesPart of_codes(bool by_column) const {
    return by_column ? CodesPart{column, columns, row, rows} : CodesPart{row, rows, column, columns};
  }
};

// Packs a part of B.
void pack_right(const MixedProduct& p, const MixedFunctions& f, const Room& room, const RightPart& part,
                const RightPart& next) {
  const auto pack = [&](const StoredMatrix& b) {
    f.pack_right(b, part.rows, part.columns, room.turned, room.right);
  };
  if (!p.codes)
    return pack({p.b.values.from(part.row * p.b.row + part.column * p.b.column), p.b.row, p.b.column});
  const bool by_column = p.codes_by_column;
  const CodesPart here = part.of_codes(by_column), then = next.of_codes(by_column);
  if (f.pack_codes && f.pack_codes(*p.codes, here, then, by_column, room.right)) return;
  const int64_t pitch = here.columns + kLeftPad;
  StoredInput values(room.unpacked);
  if (p.pairs) {
    auto* halves = reinterpret_cast<BFloat16*>(room.unpacked);
    unpack(*p.codes, here, then, halves, pitch);
    values = StoredInput(static_cast<const BFloat16*>(halves));
  } else {
    unpack(*p.codes, here, then, room.unpacked, pitch);
  }
  pack(by_column ? StoredMatrix{values, 1, pitch} : StoredMatrix{values, pitch, 1});
}

// C = alpha A B plus the added product for a block of results, `c_row` floats from one row of C to the next.
// With `finishes`, the results then go to Y; rows of C may take turns in its memory if the products have one
// step along k.
void multiply_block(const MixedProduct& p, const MixedFunctions& f, const Room& room, int64_t row, int64_t m,
                    int64_t column, int64_t n, int64_t depth, float* c, int64_t c_row, bool finishes) {
  // Multiplies columns [l, l + k) of A with the packed part of B.
  const auto multiply = [&](const StoredMatrix& of, int64_t l, int64_t k, float alpha, bool first,
                            bool last) {
    for (int64_t i = 0; i < m; i += kLeftRows) {
      const int64_t rows = std::min(kLeftRows, m - i);
      const StoredMatrix a{of.values.from((row + i) * of.row + l * of.column), of.row, of.column};
      const LeftBlock left = f.pack_left(a, rows, k, room.left);
      const ResultPart end{&p, row + i, column};
      f.multiply(rows, left, room.right, k, n, alpha, finishes && first && last ? c : c + i * c_row, c_row,
                 !first, finishes && last ? &end : nullptr);
    }
  };
  for (int64_t l = 0; l < p.k; l += depth) {
    const int64_t k = std::min(depth, p.k - l);
    // The next part is below this part, or at the top of the columns on its right.
    RightPart part{l, k, column, n}, next{l + k, std::min(depth, p.k - l - k), column, n};
    if (next.rows == 0) next = {0, std::min(depth, p.k), column + n, std::min(kColumns, p.n - column - n)};
    pack_right(p, f, room, part, next);
    multiply(p.a, l, k, p.alpha, l == 0, l + k == p.k && p.added.k == 0);
  }
  const StoredMatrix& b = p.added.b;
  for (int64_t l = 0; l < p.added.k; l += depth) {
    const int64_t k = std::min(depth, p.added.k - l);
    f.pack_right({b.values.from(l * b.row + column * b.column), b.row, b.column}, k, n, room.turned,
                 room.right);
    multiply(p.added.a, l, k, 1, false, l + k == p.added.k);
  }
}

}  // namespace

int64_t mixed_rows() { return 6; }
int64_t mixed_columns() { return functions(false, 1).panel; }

void mixed_product(const MixedProduct& p, int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
  if (row == row_end || narrow_product(p, row, row_end, column, column_end)) return;
  const MixedFunctions f = functions(p.pairs, p.k);
  const RightSize size = right_size(p, f);
  const bool direct = !p.y.bf16 && p.terms.empty() && !p.take, one_step = p.k <= size.depth && p.added.k == 0;
  const int64_t left = (kLeftRows + kLeftPad) * (kMixedDepth + kLeftPad),
                right = kMixedDepth * (kColumns + f.panel), turned = 2 * kMixedDepth * f.panel,
                sums = direct ? 0 : kRows * kColumns, unpacked = p.codes ? kUnpackedFloats : 0;
  Room room;
  room.left = static_cast<float*>(
      regions::memory(static_cast<size_t>(left + right + turned + sums + unpacked) * sizeof(float)));
  room.right = room.left + left, room.turned = room.right + right, room.sums = room.turned + turned;
  room.unpacked = room.sums + sums;
  for (int64_t j = column; j < column_end; j += size.columns) {
    const int64_t n = std::min(size.columns, column_end - j);
    if (direct) {
      multiply_block(p, f, room, row, row_end - row, j, n, size.depth, p.y.floats() + row * p.n + j, p.n,
                     false);
      continue;
    }
    // The rows whose sums a thread keeps are divided into equal parts, because a block of B is packed for
    // each part.
    const int64_t parts = one_step && !p.take ? 1 : (row_end - row + kRows - 1) / kRows, step = mixed_rows();
    const int64_t height = ((row_end - row + parts - 1) / parts + step - 1) / step * step;
    for (int64_t i = row; i < row_end; i += height) {
      const int64_t m = std::min(height, row_end - i);
      multiply_block(p, f, room, i, m, j, n, size.depth, room.sums, n, !p.take);
      for (int64_t r = 0; p.take && r < m; ++r) (*p.take)(i + r, j, n, room.sums + r * n);
    }
  }
}

void mixed_product_by_columns(const MixedProduct& p) {
  const int64_t step = p.take ? std::max(mixed_columns(), kTakenColumns) : mixed_columns(),
                panels = (p.n + step - 1) / step;
  parallel_for(panels, step * p.k * (p.m / tuning::kMultiplications + 4), [&](int64_t begin, int64_t end) {
    mixed_product(p, 0, p.m, begin * step, std::min(p.n, end * step));
  });
}

void coded_product(const CodedProduct& p) {
  const BlockCodes& w = *p.w;
  const int64_t n = p.transposed ? w.rows : w.columns, k = p.transposed ? w.columns : w.rows;
  mixed_product_by_columns(
      {p.m, n, k, 1.0f, {p.a, k, 1}, {}, p.pairs, p.y, p.terms, p.w, p.transposed, p.take, p.added});
}

}  // namespace ortrain
#endif
