#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul/narrow_product.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/matmul/bf16_pairs-inl.h"
#include "backend/cpu/matmul/narrow_product.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/thread_pool.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_NARROW_PRODUCT_TYPES
#define ORTRAIN_NARROW_PRODUCT_TYPES
namespace ortrain {

// A part of Y.
struct NarrowPart {
  int64_t row, row_end, column, column_end;
};

// Rows or columns of a narrow operand, of which two words of each fill a vector, and the largest depth of a
// shallow product.
inline constexpr int64_t kNarrow = 8, kShallow = 16;
// Derived: words of B for this many columns take half of the first-level cache, with kShallow. Rows whose
// words take a fourth.
inline constexpr int64_t kShallowColumns = 512, kShallowRows = 256;
// Derived: sums of kNarrow rows of this many columns take half of the first-level cache. A stretch of rows
// this deep is multiplied before the sums are written.
inline constexpr int64_t kTallColumns = 512, kTallDepth = 32;
// The largest k. Derived: the packed narrow operand takes 2 MiB of each thread.
inline constexpr int64_t kLongest = 1 << 17;

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3

using F = hn::ScalableTag<float>;
using Half = hn::FixedTag<float, kNarrow>;
constexpr int64_t kLanes = 16;

// Lane i is element index[i] of two vectors.
HWY_INLINE Vec<F> Choose(Vec<F> first, Vec<F> last, Vec<hn::ScalableTag<int32_t>> index) {
  return Vec<F>{_mm512_permutex2var_ps(first.raw, index.raw, last.raw)};
}

template <class D>
HWY_INLINE Vec<D> LoadStored(D d, StoredInput v, int64_t at, int64_t count) {
  return v.bf16 ? LoadUpTo(d, v.halves() + at, count) : LoadUpTo(d, v.floats() + at, count);
}

HWY_INLINE float OneOf(StoredInput v, int64_t at) {
  return v.bf16 ? static_cast<float>(v.halves()[at]) : v.floats()[at];
}

// Applies the terms to `count` sums of a row, and stores them.
template <class D>
HWY_INLINE void Finish(const MixedProduct& p, D d, Vec<D> sum, int64_t row, int64_t column, int64_t count) {
  sum = hn::Mul(sum, hn::Set(d, p.alpha));
  const int64_t at = row * p.n + column;
  for (const MixedTerm& t : p.terms) {
    auto values = hn::Zero(d);
    if (t.kind == Bias::kFull || t.kind == Bias::kRow)
      values = LoadStored(d, t.values, t.kind == Bias::kFull ? at : column, count);
    else
      values = hn::Set(d, OneOf(t.values, t.kind == Bias::kColumn ? row : 0));
    sum = t.multiplies ? hn::Mul(sum, values) : hn::MulAdd(values, hn::Set(d, t.factor), sum);
  }
  if (p.y.bf16)
    StoreNative(sum, d, p.y.halves() + at, count);
  else
    StoreUpTo(sum, d, p.y.floats() + at, count);
}

HWY_INLINE uint32_t WordOf(StoredInput v, int64_t at, int64_t next, bool both) {
  const auto bits = [&](int64_t i) -> uint32_t {
    return v.bf16 ? v.halves()[i].bits : BFloat16(v.floats()[i]).bits;
  };
  return bits(at) | (both ? bits(next) << 16 : 0);
}

// A shallow product: k is small.

// The words of rows of A, and how far apart the rows are.
struct RowWords {
  const uint32_t* data;
  int64_t row;
};

RowWords WordsOfRows(const StoredMatrix& a, int64_t row, int64_t rows, int64_t k, uint32_t* to) {
  const int64_t words = (k + 1) / 2;
  const StoredInput from = a.values.from(row * a.row);
  if (from.bf16 && a.column == 1 && AreWords(from.halves(), a.row, k))
    return {static_cast<const uint32_t*>(from.data), a.row / 2};
  for (int64_t i = 0; i < rows; ++i, to += words) {
    const int64_t at = i * a.row;
    if (a.column == 1) {
      auto* halves = reinterpret_cast<BFloat16*>(to);
      from.bf16 ? ToWords(from.halves() + at, k, halves) : ToWords(from.floats() + at, k, halves);
    } else {
      for (int64_t w = 0; w < words; ++w)
        to[w] = WordOf(from, at + 2 * w * a.column, at + (2 * w + 1) * a.column, 2 * w + 1 < k);
    }
  }
  return {to - rows * words, words};
}

// The sums of V vectors of columns.
template <int V>
HWY_INLINE void ShallowTile(const MixedProduct& p, const uint32_t* a, int64_t words, const float* b,
                            int64_t pitch, int64_t row, int64_t column, int64_t count) {
  const F d;
  Vec<F> sums[V];
  HWY_UNROLL(4)
  for (int v = 0; v < V; ++v) sums[v] = hn::Zero(d);
  for (int64_t w = 0; w < words; ++w, b += pitch) {
    const auto both = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<F>(), a[w]));
    HWY_UNROLL(4)
    for (int v = 0; v < V; ++v) sums[v] = NativePairs::Run(both, hn::LoadU(d, b + v * kLanes), sums[v]);
  }
  HWY_UNROLL(4)
  for (int v = 0; v < V; ++v) Finish(p, d, sums[v], row, column + v * kLanes, count - v * kLanes);
}

void Shallow(const MixedProduct& p, const NarrowPart& part) {
  constexpr int64_t kMostWords = kShallow / 2, kWidth = kPanel * kLanes;
  const int64_t words = (p.k + 1) / 2;
  auto* packed = static_cast<float*>(regions::memory(
      static_cast<size_t>((kShallowColumns + kWidth + kShallowRows) * kMostWords) * sizeof(float)));
  float *turned = packed + kShallowColumns * kMostWords, *left = turned + kWidth * kMostWords;
  for (int64_t i = part.row; i < part.row_end; i += kShallowRows) {
    const int64_t rows = HWY_MIN(kShallowRows, part.row_end - i);
    const RowWords a = WordsOfRows(p.a, i, rows, p.k, reinterpret_cast<uint32_t*>(left));
    for (int64_t j = part.column; j < part.column_end; j += kShallowColumns) {
      const int64_t columns = HWY_MIN(kShallowColumns, part.column_end - j);
      const StoredInput b = p.b.values.from(j * p.b.column);
      const auto pack = [&](const auto* from) {
        p.b.column == 1 ? PackPairsAlong(from, p.b.row, p.k, columns, packed)
                        : PackPairsAcross(from, p.b.column, p.k, columns, turned, packed);
      };
      b.bf16 ? pack(b.halves()) : pack(b.floats());
      for (int64_t r = 0; r < rows; ++r) {
        const uint32_t* line = a.data + r * a.row;
        for (int64_t c = 0; c < columns; c += kWidth) {
          const int64_t used = HWY_MIN(kWidth, columns - c), pitch = (used + kLanes - 1) / kLanes * kLanes;
          const float* from = packed + c * words;
          if (used == kWidth) {
            ShallowTile<kPanel>(p, line, words, from, pitch, i + r, j + c, used);
            continue;
          }
          for (int64_t l = 0; l < used; l += kLanes)
            ShallowTile<1>(p, line, words, from + l, pitch, i + r, j + c + l, used - l);
        }
      }
    }
  }
}

// A product with few columns. Four neighbors along k are a quad of 64 bits. A vector of B holds a quad of
// each of kNarrow columns, so that a quad of A, in all lanes, is multiplied with all of them at once.

void PackQuads(const StoredMatrix& b, int64_t k, int64_t n, BFloat16* to) {
  const F d;
  const Half half;
  const hn::FixedTag<float, 4> four;
  const hn::ScalableTag<int32_t> index;
  const auto store = [&](Vec<F> low, Vec<F> high) HWY_ATTR {
    hn::StoreU(NativeHalves(low, high), hn::ScalableTag<uint16_t>(), &to->bits);
    to += 2 * kLanes;
  };
  // Element 4 c + r of the lower columns is element c of row r.
  HWY_ALIGN int32_t places[kLanes];
  for (int32_t i = 0; i < kLanes; ++i) places[i] = i % 4 * static_cast<int32_t>(kNarrow) + i / 4;
  const auto lower = hn::Load(index, places), upper = hn::Add(lower, hn::Set(index, 4));
  for (int64_t q = 0; q < k; q += 4) {
    if (b.column == 1) {
      const auto row = [&](int64_t r) HWY_ATTR { return LoadStored(half, b.values, (q + r) * b.row, n); };
      const auto first = hn::Combine(d, row(1), row(0)), last = hn::Combine(d, row(3), row(2));
      store(Choose(first, last, lower), Choose(first, last, upper));
      continue;
    }
    const auto column = [&](int64_t c) HWY_ATTR {
      return c < n ? LoadStored(four, b.values, c * b.column + q, 4) : hn::Zero(four);
    };
    const auto two = [&](int64_t c) HWY_ATTR { return hn::Combine(half, column(c + 1), column(c)); };
    store(hn::Combine(d, two(2), two(0)), hn::Combine(d, two(6), two(4)));
  }
}

// Sums of R rows of A, which are `pitch` words apart.
template <int R>
HWY_INLINE void QuadRows(const MixedProduct& p, const BFloat16* a, int64_t pitch, const float* b,
                         int64_t row) {
  const F d;
  const hn::RepartitionToWide<F> wide;
  constexpr int64_t kAhead = 512;
  Vec<F> sums[R];
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) sums[r] = hn::Zero(d);
  for (int64_t k = 0; k < p.k; k += 4, b += kLanes) {
    const auto right = hn::LoadU(d, b);
    if (k % 32 == 0) {
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) hwy::Prefetch(a + r * pitch + k + kAhead);
    }
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) {
      double quad;
      std::memcpy(&quad, a + r * pitch + k, sizeof(quad));
      sums[r] = NativePairs::Run(hn::BitCast(d, hn::Set(wide, quad)), right, sums[r]);
    }
  }
  HWY_ALIGN float both[kLanes], line[kNarrow];
  for (int r = 0; r < R; ++r) {
    hn::Store(sums[r], d, both);
    for (int64_t c = 0; c < kNarrow; ++c) line[c] = both[2 * c] + both[2 * c + 1];
    Finish(p, Half(), hn::Load(Half(), line), row + r, 0, p.n);
  }
}

void Quads(const MixedProduct& p, const NarrowPart& part) {
  auto* packed = static_cast<float*>(regions::memory(static_cast<size_t>(p.k / 4 * kLanes) * sizeof(float)));
  PackQuads(p.b, p.k, p.n, reinterpret_cast<BFloat16*>(packed));
  const auto rows = [&]<int R>(int64_t i, std::integral_constant<int, R>) {
    for (; i + R <= part.row_end; i += R)
      QuadRows<R>(p, p.a.values.halves() + i * p.a.row, p.a.row, packed, i);
    return i;
  };
  int64_t i = rows(part.row, std::integral_constant<int, 12>());
  i = rows(i, std::integral_constant<int, 4>());
  rows(i, std::integral_constant<int, 1>());
}

// A tall product: Z = S T, where S has few rows and k is the height of T, whose rows are contiguous. Z is Y,
// or its transpose if `turned`.
template <typename T>
struct TallProduct {
  const MixedProduct& p;
  bool turned;
  const T* t;
  int64_t t_row;
};

// Two vectors of columns as halves of words.
HWY_INLINE auto LoadHalves(const BFloat16* from, int64_t count) {
  return LoadUpTo(hn::ScalableTag<uint16_t>(), &from->bits, count);
}
HWY_INLINE auto LoadHalves(const float* from, int64_t count) {
  const F d;
  const auto low = LoadUpTo(d, from, count);
  const auto high = count > kLanes ? LoadUpTo(d, from + kLanes, count - kLanes) : hn::Zero(d);
  return NativeHalves(low, high);
}

// sums = or += words of S times pairs of rows of T, for columns of two vectors. Within each 16 bytes, the
// first vector has the sums of the lower half of the columns and the second those of the upper half.
template <typename T>
HWY_INLINE void TallTile(const uint32_t* s, const T* t, int64_t t_row, int64_t depth, int64_t count,
                         bool ahead, bool add, float* sums) {
  const F d;
  const hn::RebindToUnsigned<F> word;
  const hn::ScalableTag<uint16_t> half;
  Vec<F> low[kNarrow], high[kNarrow];
  HWY_UNROLL(8)
  for (int r = 0; r < kNarrow; ++r) {
    low[r] = high[r] = hn::Zero(d);
    if (add) low[r] = hn::Load(d, sums + 2 * r * kLanes), high[r] = hn::Load(d, sums + (2 * r + 1) * kLanes);
  }
  for (int64_t k = 0; k < depth; k += 2, s += kNarrow, t += 2 * t_row) {
    if (ahead) hwy::Prefetch(t + kTallDepth * t_row), hwy::Prefetch(t + (kTallDepth + 1) * t_row);
    const auto even = LoadHalves(t, count);
    const auto odd = k + 1 < depth ? LoadHalves(t + t_row, count) : hn::Zero(half);
    const auto first = hn::BitCast(d, hn::InterleaveLower(half, even, odd));
    const auto last = hn::BitCast(d, hn::InterleaveUpper(half, even, odd));
    HWY_UNROLL(8)
    for (int r = 0; r < kNarrow; ++r) {
      const auto both = hn::BitCast(d, hn::Set(word, s[r]));
      low[r] = NativePairs::Run(both, first, low[r]);
      high[r] = NativePairs::Run(both, last, high[r]);
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kNarrow; ++r)
    hn::Store(low[r], d, sums + 2 * r * kLanes), hn::Store(high[r], d, sums + (2 * r + 1) * kLanes);
}

// Stores the sums of columns from `at` on.
template <typename T>
void FinishTall(const TallProduct<T>& z, int64_t row, int64_t rows, int64_t at, int64_t count,
                const float* sums) {
  const F d;
  const Half half;
  const hn::ScalableTag<int32_t> index;
  HWY_ALIGN int32_t places[kLanes];
  for (int32_t i = 0; i < kLanes; ++i)
    places[i] = i / 8 * 4 + i % 4 + i / 4 % 2 * static_cast<int32_t>(kLanes);
  const auto lower = hn::Load(index, places), upper = hn::Add(lower, hn::Set(index, 8));
  Vec<F> v[kLanes];
  HWY_UNROLL(8)
  for (int r = 0; r < kNarrow; ++r) {
    const auto low = hn::Load(d, sums + 2 * r * kLanes), high = hn::Load(d, sums + (2 * r + 1) * kLanes);
    v[r] = Choose(low, high, lower);
    v[r + kNarrow] = Choose(low, high, upper);
  }
  if (!z.turned) {
    for (int64_t r = 0; r < rows; ++r) {
      Finish(z.p, d, v[r], row + r, at, count);
      if (count > kLanes) Finish(z.p, d, v[r + kNarrow], row + r, at + kLanes, count - kLanes);
    }
    return;
  }
  Transpose(d, v);
  for (int64_t i = 0; i < HWY_MIN(kLanes, count); ++i) {
    Finish(z.p, half, hn::LowerHalf(half, v[i]), at + i, 0, z.p.n);
    if (kLanes + i < count) Finish(z.p, half, hn::UpperHalf(half, v[i]), at + kLanes + i, 0, z.p.n);
  }
}

// Rows [row, row + rows) and columns [begin, end) of Z.
template <typename T>
void Tall(const TallProduct<T>& z, int64_t row, int64_t rows, int64_t begin, int64_t end) {
  constexpr int64_t kStep = 2 * kLanes;
  const MixedProduct& p = z.p;
  const StoredMatrix& from = z.turned ? p.b : p.a;
  const int64_t words = (p.k + 1) / 2, s_row = z.turned ? from.column : from.row,
                s_column = z.turned ? from.row : from.column;
  auto* sums = static_cast<float*>(
      regions::memory(static_cast<size_t>((kTallColumns + words) * kNarrow) * sizeof(float)));
  auto* s = reinterpret_cast<uint32_t*>(sums + kTallColumns * kNarrow);
  for (int64_t w = 0; w < words; ++w)
    for (int64_t r = 0; r < kNarrow; ++r) {
      const int64_t at = (row + r) * s_row + 2 * w * s_column;
      s[w * kNarrow + r] = r < rows ? WordOf(from.values, at, at + s_column, 2 * w + 1 < p.k) : 0;
    }
  for (int64_t j = begin; j < end; j += kTallColumns) {
    const int64_t columns = HWY_MIN(kTallColumns, end - j);
    for (int64_t k = 0; k < p.k; k += kTallDepth)
      for (int64_t c = 0; c < columns; c += kStep)
        TallTile(s + k / 2 * kNarrow, z.t + k * z.t_row + j + c, z.t_row, HWY_MIN(kTallDepth, p.k - k),
                 columns - c, k + 2 * kTallDepth <= p.k, k > 0, sums + c * kNarrow);
    for (int64_t c = 0; c < columns; c += kStep)
      FinishTall(z, row, rows, j + c, HWY_MIN(kStep, columns - c), sums + c * kNarrow);
  }
}

bool Narrow(const MixedProduct& p, const NarrowPart& part) {
  constexpr int64_t kLong = 4 * kNarrow;
  const bool of_matrices = (p.a.row == 1 || p.a.column == 1) && (p.b.row == 1 || p.b.column == 1);
  if (!of_matrices || p.k > kLongest) return false;
  if (p.k <= kShallow) {
    if (p.n < kLong || p.m < kNarrow) return false;
    Shallow(p, part);
    return true;
  }
  if (p.n <= kNarrow && p.a.values.bf16 && p.a.column == 1 && p.k >= kLong && p.k % 4 == 0) {
    Quads(p, part);
    return true;
  }
  const bool turned = p.n <= kNarrow && p.a.row == 1 && p.m >= kLong;
  if (!turned && !(p.m <= kNarrow && p.b.column == 1 && p.n >= kLong)) return false;
  const auto multiply = [&](const auto* t) {
    if (turned)
      Tall<std::remove_cvref_t<decltype(*t)>>({p, true, t, p.a.column}, 0, p.n, part.row, part.row_end);
    else
      Tall<std::remove_cvref_t<decltype(*t)>>({p, false, t, p.b.row}, part.row, part.row_end - part.row,
                                              part.column, part.column_end);
  };
  const StoredInput t = turned ? p.a.values : p.b.values;
  t.bf16 ? multiply(t.halves()) : multiply(t.floats());
  return true;
}

#else
bool Narrow(const MixedProduct&, const NarrowPart&) { return false; }
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

bool narrow_product(const MixedProduct& p, int64_t row, int64_t row_end, int64_t column, int64_t column_end) {
  if (!has_bf16_instructions() || !p.pairs || p.codes || p.take || p.added.k > 0) return false;
  return ORTRAIN_DISPATCH(Narrow)(p, {row, row_end, column, column_end});
}

}  // namespace ortrain
#endif
