// Matrix products on one thread: a micro-kernel of 6 x 4 vectors of sums over a packed right operand.
// Attention, Winograd's convolution and multiply.cpp are built on it. For how it is compiled see
// backend/cpu/simd/simd_math-inl.h.
//
// The right operand [k, n] is packed as panels of kPanel vectors, with the rows of a panel stored one after
// another, so that the micro-kernel reads it sequentially; the last panel is as narrow as possible.

#if defined(ORTRAIN_PRODUCT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_PRODUCT_TILES_INL_H_
#undef ORTRAIN_PRODUCT_TILES_INL_H_
#else
#define ORTRAIN_PRODUCT_TILES_INL_H_
#endif

#include <hwy/cache_control.h>

#include <cstdint>
#include <type_traits>

#include "backend/cpu/simd/simd_math-inl.h"

#ifndef ORTRAIN_PRODUCT_TYPES
#define ORTRAIN_PRODUCT_TYPES
namespace ortrain {

// Products that are added up: k of them, `count` times, with the operands of each time `a` and `b` elements
// after those of the time before. With `prefetches`, rows of A are contiguous and may have to come from
// memory. If `a_tile` is not 0, A is stored by tiles, which are so many elements apart (StoreByTiles). If
// `block` is not 0, rows of A are contiguous, and each sum has so many products and is added to C before the
// next one.
struct Depth {
  int64_t k, count = 1, a = 0, b = 0;
  bool prefetches = false;
  int64_t a_tile = 0, block = 0;
};

// The distance of tiles of k columns in an A that is stored by tiles: their elements, and a cache line, so
// that neighbours do not map to the same cache set.
template <typename T>
constexpr int64_t StoredTile(int64_t k) {
  return 6 * k + 64 / static_cast<int64_t>(sizeof(T));
}

// Rows of A and C: `columns` of each line, `a_row` and `c_row` elements apart. The first ones of a line are
// at the offsets that `lines` states.
struct LinePlace {
  int64_t a, c;
};
struct Lines {
  const LinePlace* lines;
  int64_t count, columns, a_row, c_row;
};

// The operations after the sums: C = C + bias + addend, clipped to [low, high], where NaN stays. The bias has
// an element for each column, and the addend's elements are at the same offsets as those of C; both may be
// null.
template <typename T>
struct TileEnd {
  const T *bias, *addend;
  T low, high;

  TileEnd at(int64_t column) const {
    return {bias ? bias + column : nullptr, addend ? addend + column : nullptr, low, high};
  }
  // For the same columns, `elements` of C later.
  TileEnd later(int64_t elements) const { return {bias, addend ? addend + elements : nullptr, low, high}; }
};

// Where the rows of a tile begin in A and C: at a constant distance, or each at its own offset. kEnds says
// whether sums may go through a TileEnd; products that never do are smaller.
struct EvenRows {
  static constexpr bool kListed = false, kEnds = false;
  int64_t a_row, c_row;
  int64_t a_tile = 6 * a_row;  // from a tile of six rows to the next one

  int64_t a(int64_t row) const { return row * a_row; }
  int64_t c(int64_t row) const { return row * c_row; }
  int64_t a_after(int64_t row, int64_t rows) const { return a(row + rows); }
  int64_t c_after(int64_t row, int64_t rows) const { return c(row + rows); }
};
struct EndedRows : EvenRows {
  static constexpr bool kEnds = true;
};
struct ListedRows {
  static constexpr bool kListed = true, kEnds = true;
  int64_t a_row, c_row;  // of a line
  int64_t a_places[6], c_places[6];

  int64_t a(int64_t row) const { return a_places[row]; }
  int64_t c(int64_t row) const { return c_places[row]; }
  int64_t a_after(int64_t row, int64_t rows) const { return a(row) + rows * a_row; }
  int64_t c_after(int64_t row, int64_t rows) const { return c(row) + rows * c_row; }
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

// For large functions that several sources use: the library contains each once. gcc would copy them into
// these sources, to insert arguments that are constant there.
#if HWY_COMPILER_GCC_ACTUAL
#define ORTRAIN_ONCE HWY_NOINLINE __attribute__((noclone))
#else
#define ORTRAIN_ONCE HWY_NOINLINE
#endif

#if HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64
constexpr int64_t kPanel = 4;  // with 32 registers: 6 x 4 sums
#else
constexpr int64_t kPanel = 2;
#endif
// Products added up before the sums are written to memory. Measured on Cascade Lake: with 128, products of
// matrices of 256 to 8000 rows take 1.09; 384 and 512 are the same.
constexpr int64_t kDepth = 256;

template <typename T>
int64_t LanesOf() {
  return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
}

// packed = B, whose row i begins at b + i * row.
template <typename T>
ORTRAIN_ONCE void PackAlong(const T* b, int64_t row, int64_t k, int64_t n, T* packed) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>(), width = kPanel * lanes;
  // If rows are far apart, the processor does not prefetch them itself.
  constexpr int64_t kAhead = 8;
  // Panels that are packed together. Measured with AVX2 and rows of 4 KiB: one panel at a time, of 64 bytes
  // of each row, reads 3.7 GB/s from memory and 18 from a cache, four read 7 and 25.
  constexpr int64_t kTogether = HWY_MAX(int64_t{1}, 256 / (kPanel * int64_t{HWY_MAX_BYTES}));
  int64_t j = 0;
  while (j + width <= n) {
    const int64_t panels = HWY_MIN(kTogether, (n - j) / width);
    for (int64_t i = 0; i < k; ++i)
      for (int64_t p = 0; p < panels; ++p)
        for (int64_t l = 0; l < kPanel; ++l) {
          const T* from = b + i * row + j + (p * kPanel + l) * lanes;
          hwy::Prefetch(from + kAhead * row);
          hn::StoreU(hn::LoadU(d, from), d, packed + (p * k + i) * width + l * lanes);
        }
    j += panels * width, packed += panels * width * k;
  }
  if (j == n) return;
  for (int64_t i = 0; i < k; ++i)
    for (int64_t l = j; l < n; l += lanes, packed += lanes)
      hn::StoreU(LoadUpTo(d, b + i * row + l, n - l), d, packed);
}

// Vectors whose size is not known at compile time cannot be stored in arrays.
#define ORTRAIN_TRANSPOSES_VECTORS (HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE)

#if ORTRAIN_TRANSPOSES_VECTORS
// Transposes as many vectors as a vector has elements: element i of vector j becomes element j of vector i.
template <class D, class V>
HWY_INLINE void Transpose(D d, V* v) {
  constexpr size_t kInBlock = 16 / sizeof(hn::TFromD<D>), kBlocks = hn::MaxLanes(d) / kInBlock;
  // Within blocks of 16 bytes first: vector i of a group gets element i of each of its vectors.
  HWY_UNROLL(4)
  for (size_t g = 0; g < kBlocks; ++g) {
    V* u = v + g * kInBlock;
    if constexpr (kInBlock == 2) {
      const V lower = hn::InterleaveLower(d, u[0], u[1]);
      u[1] = hn::InterleaveUpper(d, u[0], u[1]);
      u[0] = lower;
    } else {
      const hn::RepartitionToWide<D> pairs;
      const auto lower0 = hn::BitCast(pairs, hn::InterleaveLower(d, u[0], u[1]));
      const auto lower1 = hn::BitCast(pairs, hn::InterleaveLower(d, u[2], u[3]));
      const auto upper0 = hn::BitCast(pairs, hn::InterleaveUpper(d, u[0], u[1]));
      const auto upper1 = hn::BitCast(pairs, hn::InterleaveUpper(d, u[2], u[3]));
      u[0] = hn::BitCast(d, hn::InterleaveLower(pairs, lower0, lower1));
      u[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, lower0, lower1));
      u[2] = hn::BitCast(d, hn::InterleaveLower(pairs, upper0, upper1));
      u[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, upper0, upper1));
    }
  }
  // Then among the blocks.
  HWY_UNROLL(4)
  for (size_t i = 0; i < kInBlock; ++i) {
    V *v0 = v + i, *v1 = v0 + kInBlock;
    if constexpr (kBlocks == 2) {
      const V lower = hn::ConcatLowerLower(d, *v1, *v0);
      *v1 = hn::ConcatUpperUpper(d, *v1, *v0);
      *v0 = lower;
    } else if constexpr (kBlocks == 4) {
      V *v2 = v1 + kInBlock, *v3 = v2 + kInBlock;
      const V even01 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(*v1), *v0);
      const V odd01 = hn::OddEvenBlocks(*v1, hn::SwapAdjacentBlocks(*v0));
      const V even23 = hn::OddEvenBlocks(hn::SwapAdjacentBlocks(*v3), *v2);
      const V odd23 = hn::OddEvenBlocks(*v3, hn::SwapAdjacentBlocks(*v2));
      *v0 = hn::ConcatLowerLower(d, even23, even01);
      *v1 = hn::ConcatLowerLower(d, odd23, odd01);
      *v2 = hn::ConcatUpperUpper(d, even23, even01);
      *v3 = hn::ConcatUpperUpper(d, odd23, odd01);
    }
  }
}
#endif

#if ORTRAIN_TRANSPOSES_VECTORS
// to = scale Aᵀ for A [m, n], of at most as many rows and columns as a vector has elements. Rows of `to` are
// written as whole vectors, with zeros after the last element.
template <typename T>
HWY_INLINE void TransposeSquare(const T* a, int64_t row, int64_t m, int64_t n, T scale, T* to,
                                int64_t to_row) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kSquare = hn::MaxLanes(d);
  const auto factor = hn::Set(d, scale);
  Vec<decltype(d)> v[kSquare];
  // Most squares are whole. Without this case, 512 channels of 4 x 4 take 1.02 in Winograd's convolution.
  if (m == kSquare && n == kSquare && scale == T{1}) {
    HWY_UNROLL(16)
    for (int64_t l = 0; l < kSquare; ++l) v[l] = hn::LoadU(d, a + l * row);
    Transpose(d, v);
    HWY_UNROLL(16)
    for (int64_t l = 0; l < kSquare; ++l) hn::StoreU(v[l], d, to + l * to_row);
    return;
  }
  HWY_UNROLL(16)
  for (int64_t l = 0; l < kSquare; ++l) v[l] = l < m ? LoadUpTo(d, a + l * row, n) : hn::Zero(d);
  Transpose(d, v);
  for (int64_t l = 0; l < n; ++l)
    hn::StoreU(scale == T{1} ? v[l] : hn::Mul(v[l], factor), d, to + l * to_row);
}
#endif

// packed = scale Bᵀ, where column j of Bᵀ begins at b + j * row.
template <typename T>
ORTRAIN_ONCE void PackAcross(const T* b, int64_t row, int64_t k, int64_t n, T scale, T* packed) {
  const int64_t lanes = LanesOf<T>(), width = kPanel * lanes;
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j), stored = (used + lanes - 1) / lanes * lanes;
    const T* from = b + j * row;
#if ORTRAIN_TRANSPOSES_VECTORS
    // One square of elements at a time, finishing a row of the panel before the next one.
    for (int64_t i = 0; i < k; i += lanes)
      for (int64_t c = 0; c < stored; c += lanes)
        TransposeSquare(from + c * row + i, row, HWY_MIN(lanes, used - c), HWY_MIN(lanes, k - i), scale,
                        packed + i * stored + c, stored);
#else
    for (int64_t i = 0; i < k; ++i)
      for (int64_t c = 0; c < stored; ++c)
        packed[i * stored + c] = c < used ? scale * from[c * row + i] : T{0};
#endif
    packed += stored * k;
  }
}

#undef ORTRAIN_TRANSPOSES_VECTORS

// Stores A [m, k] by tiles of six rows, whose columns are contiguous: column j of A begins at a + j * column,
// and tiles are `tile` elements apart. If A is transposed into rows instead, gradients of 256 x 256 to 256 x
// 1024 weights with 1024 samples take up to 1.1 of the time (AVX2).
template <typename T>
ORTRAIN_ONCE void StoreByTiles(const T* a, int64_t column, int64_t m, int64_t k, T* to, int64_t tile) {
  const hn::CappedTag<T, 4> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kAhead = 8, kLine = 64 / sizeof(T);
  for (int64_t j = 0; j < k; ++j, a += column, to += 6) {
    for (int64_t i = 0; i < m; i += kLine) hwy::Prefetch(a + kAhead * column + i);
    T* at = to;
    int64_t i = 0;
    for (; i + 6 <= m; i += 6, at += tile)
      for (int64_t l = 0; l < 6; l += lanes) {
        const int64_t r = HWY_MIN(l, 6 - lanes);
        hn::StoreU(hn::LoadU(d, a + i + r), d, at + r);
      }
    for (int64_t r = 0; i + r < m; ++r) at[r] = a[i + r];
  }
}

// How elements are multiplied: sum += a b. Other such types interpret the bits of floats as other data, such
// as words.
struct MultiplyAdd {
  template <class V>
  static HWY_INLINE V Run(V a, V b, V sum) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_TARGET == HWY_AVX2
    // This form of the instruction replaces the sum. gcc would also choose forms that replace a or b, and
    // would then keep some of the 12 sums of a tile in memory.
    if constexpr (sizeof(hn::TFromV<V>) == sizeof(float))
      asm("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
    else
      asm("vfmadd231pd %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
    return sum;
#else
    return hn::MulAdd(a, b, sum);
#endif
  }
};

// Prefetches sums, which may have to come from memory.
template <int V, typename T>
HWY_INLINE void PrefetchSums(const T* c) {
  for (int v = 0; v < V; v += 64 / HWY_MIN(64, HWY_MAX_BYTES)) hwy::Prefetch(c + v * LanesOf<T>());
}

// A vector of sums, from column `column` of C on and `place` elements after C's first, after the operations
// that `end` states.
template <typename T>
HWY_INLINE Vec<hn::ScalableTag<T>> Ended(const TileEnd<T>& end, Vec<hn::ScalableTag<T>> sum, int64_t place,
                                         int64_t column, int64_t count) {
  const hn::ScalableTag<T> d;
  if (end.bias) sum = hn::Add(sum, LoadUpTo(d, end.bias + column, count));
  if (end.addend) sum = hn::Add(sum, LoadUpTo(d, end.addend + place, count));
  return ClipTo(d, sum, hn::Set(d, end.low), hn::Set(d, end.high));
}

// C [rows, columns] = or += `sums`, with a vector for each row, and then `end` if it is not null. `column` is
// the first column.
template <class Where, typename T>
ORTRAIN_ONCE void WriteLast(int64_t rows, const T* sums, const Where& where, T* c, int64_t column,
                            int64_t columns, bool add, [[maybe_unused]] const TileEnd<T>* end) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t place = where.c(r) + column;
    auto sum = hn::Load(d, sums + r * LanesOf<T>());
    if (add) sum = hn::Add(sum, LoadUpTo(d, c + place, columns));
    if constexpr (Where::kEnds) {
      if (end) sum = Ended(*end, sum, place, column, columns);
    }
    StoreUpTo(sum, d, c + place, columns);
  }
}

// gcc would keep the offset of each row of A in memory and load it in each pass. With two pointers into A,
// which it has to update in registers, a product takes 0.9 of the time on a processor that multiplies two
// vectors per cycle (Cascade Lake).
#if HWY_COMPILER_GCC_ACTUAL
#define ORTRAIN_IN_REGISTERS(x, y) asm("" : "+r"(x), "+r"(y))
#else
#define ORTRAIN_IN_REGISTERS(x, y)
#endif

// Pass p of a tile: row p of B from b on, whose rows are `row` elements apart, and A's element of this pass
// in each row of the tile.
#define ORTRAIN_ROW(r, element)                              \
  if constexpr (R > r) {                                     \
    const auto x = hn::Set(d, element);                      \
    c##r##0 = How::Run(x, b0, c##r##0);                      \
    if constexpr (V > 1) c##r##1 = How::Run(x, b1, c##r##1); \
    if constexpr (V > 2) c##r##2 = How::Run(x, b2, c##r##2); \
    if constexpr (V > 3) c##r##3 = How::Run(x, b3, c##r##3); \
  }
#define ORTRAIN_PASS(element, p, row)                                \
  {                                                                  \
    const auto b0 = hn::LoadU(d, b + p * row);                       \
    auto b1 = b0, b2 = b0, b3 = b0;                                  \
    if constexpr (V > 1) b1 = hn::LoadU(d, b + p * row + lanes);     \
    if constexpr (V > 2) b2 = hn::LoadU(d, b + p * row + 2 * lanes); \
    if constexpr (V > 3) b3 = hn::LoadU(d, b + p * row + 3 * lanes); \
    ORTRAIN_ROW(0, element(0, p))                                    \
    ORTRAIN_ROW(1, element(1, p))                                    \
    ORTRAIN_ROW(2, element(2, p))                                    \
    ORTRAIN_ROW(3, element(3, p))                                    \
    ORTRAIN_ROW(4, element(4, p))                                    \
    ORTRAIN_ROW(5, element(5, p))                                    \
  }
#define ORTRAIN_ZERO(r) auto c##r##0 = hn::Zero(d), c##r##1 = c##r##0, c##r##2 = c##r##0, c##r##3 = c##r##0;
#define ORTRAIN_ZERO_SUMS \
  ORTRAIN_ZERO(0) ORTRAIN_ZERO(1) ORTRAIN_ZERO(2) ORTRAIN_ZERO(3) ORTRAIN_ZERO(4) ORTRAIN_ZERO(5)
#define ORTRAIN_EACH_OF(r) ORTRAIN_SUM(r, 0) ORTRAIN_SUM(r, 1) ORTRAIN_SUM(r, 2) ORTRAIN_SUM(r, 3)
#define ORTRAIN_EACH_SUM \
  ORTRAIN_EACH_OF(0)     \
  ORTRAIN_EACH_OF(1) ORTRAIN_EACH_OF(2) ORTRAIN_EACH_OF(3) ORTRAIN_EACH_OF(4) ORTRAIN_EACH_OF(5)

// C [R, V vectors] = or += scale A B, A's element (i, p) at a[where.a(i) + p * a_column], rows of B `b_row`
// apart. Only the first `columns` of C are written; they fill all vectors except possibly the last. Listed
// rows, whose elements are contiguous in A, then go through `end` if it is not null. The sums of the next
// tile are prefetched.
template <int R, int V, class How = MultiplyAdd, class Where, typename T>
HWY_INLINE void Tile(const Depth& depth, const T* a, const Where& where, int64_t a_column, const T* b,
                     int64_t b_row, T* c, int64_t columns, bool add, T scale = 1,
                     [[maybe_unused]] const TileEnd<T>* end = nullptr) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  ORTRAIN_ZERO_SUMS
  for (int r = 0; r < R; ++r) PrefetchSums<V>(c + where.c_after(r, R));
  constexpr int64_t kLine = 64 / sizeof(T);
  const T *a_start = a, *b_start = b;
  for (int64_t time = 0; time < depth.count; ++time, a = a_start += depth.a, b = b_start += depth.b)
    for (int64_t begin = 0; begin < depth.k; begin += kLine) {
      const int64_t passes = HWY_MIN(kLine, depth.k - begin);
      // Prefetches the rows of the next tile. Processors do so themselves only once the rows of this tile are
      // read.
      for (int r = 0; depth.prefetches && r < R; ++r) hwy::Prefetch(a + where.a_after(r, R));
      // gcc would write out all 16 passes of small tiles, which are five times as large then, and no faster.
      if constexpr (Where::kListed) {
        const T *a0 = a + where.a(0), *a1 = a + where.a(R > 1 ? 1 : 0), *a2 = a + where.a(R > 2 ? 2 : 0),
                *a3 = a + where.a(R > 3 ? 3 : 0), *a4 = a + where.a(R > 4 ? 4 : 0),
                *a5 = a + where.a(R > 5 ? 5 : 0);
#define ORTRAIN_ELEMENT(r, p) a##r[l]
        HWY_UNROLL(1)
        for (int64_t l = 0; l < passes; ++l, b += b_row) ORTRAIN_PASS(ORTRAIN_ELEMENT, 0, b_row)
#undef ORTRAIN_ELEMENT
        a += passes;
      } else {
        const T* a3 = a + where.a(3);
#define ORTRAIN_ELEMENT(r, p) r < 3 ? a[where.a(r)] : a3[where.a(r - 3)]
        HWY_UNROLL(1)
        for (int64_t p = passes; p > 0; --p, a += a_column, a3 += a_column, b += b_row) {
          ORTRAIN_IN_REGISTERS(a, a3);
          ORTRAIN_IN_REGISTERS(b, a3);
          ORTRAIN_PASS(ORTRAIN_ELEMENT, 0, b_row)
        }
#undef ORTRAIN_ELEMENT
      }
    }
  if (scale != T{1}) {
    const auto factor = hn::Set(d, scale);
#define ORTRAIN_SUM(r, v) \
  if constexpr (R > r && V > v) c##r##v = hn::Mul(c##r##v, factor);
    ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
  }
  HWY_ALIGN T last[R * hn::MaxLanes(d)];
  const int64_t column = (V - 1) * lanes;
  const bool whole = columns >= column + lanes;
#define ORTRAIN_SUM(r, v)                                                 \
  if constexpr (R > r && V > v) {                                         \
    if (v + 1 < V || whole) {                                             \
      const int64_t place = where.c(r) + v * lanes;                       \
      if (add) c##r##v = hn::Add(c##r##v, hn::LoadU(d, c + place));       \
      if constexpr (Where::kEnds) {                                       \
        if (end) c##r##v = Ended(*end, c##r##v, place, v * lanes, lanes); \
      }                                                                   \
      hn::StoreU(c##r##v, d, c + place);                                  \
    } else {                                                              \
      hn::Store(c##r##v, d, last + r * lanes);                            \
    }                                                                     \
  }
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
  if (!whole) WriteLast(R, last, where, c, column, columns - column, add, end);
}

#if HWY_TARGET == HWY_AVX2
// A's elements in the six rows of a tile: at(r, p) is that of row r in pass p of the next four, and move()
// goes to later passes.
template <typename T>
struct AlongRows {  // the elements of a row are contiguous
  const T *a0, *a3;
  int64_t row;

  HWY_INLINE AlongRows(const T* a, const EvenRows& where, int64_t)
      : a0(a), a3(a + where.a(3)), row(where.a_row) {}
  HWY_INLINE void pin() { ORTRAIN_IN_REGISTERS(a0, a3); }
  HWY_INLINE T at(int r, int p) const { return r < 3 ? a0[r * row + p] : a3[(r - 3) * row + p]; }
  HWY_INLINE void move(int64_t passes) { a0 += passes, a3 += passes; }
};
template <typename T>
struct AlongColumns {  // the elements of a column are contiguous
  const T *a0, *a1, *a2, *a3;
  int64_t column;

  HWY_INLINE AlongColumns(const T* a, const EvenRows&, int64_t a_column)
      : a0(a), a1(a + a_column), a2(a1 + a_column), a3(a2 + a_column), column(a_column) {}
  HWY_INLINE void pin() {
    ORTRAIN_IN_REGISTERS(a0, a1);
    ORTRAIN_IN_REGISTERS(a2, a3);
  }
  HWY_INLINE T at(int r, int p) const { return (p == 0 ? a0 : p == 1 ? a1 : p == 2 ? a2 : a3)[r]; }
  HWY_INLINE void move(int64_t passes) {
    const int64_t step = passes * column;
    a0 += step, a1 += step, a2 += step, a3 += step;
  }
};
template <typename T>
struct AlongTiles {  // the columns of a tile are contiguous
  const T* a;

  HWY_INLINE AlongTiles(const T* tile, const EvenRows&, int64_t) : a(tile) {}
  HWY_INLINE void pin() {}
  HWY_INLINE T at(int r, int p) const { return a[6 * p + r]; }
  HWY_INLINE void move(int64_t passes) { a += 6 * passes; }
};
template <typename T>
struct AlongListed {  // the elements of a row are contiguous, and each row has an offset
  const T *a0, *a1, *a2, *a3, *a4, *a5;
  int64_t place = 0;

  HWY_INLINE AlongListed(const T* a, const ListedRows& where, int64_t)
      : a0(a + where.a(0)),
        a1(a + where.a(1)),
        a2(a + where.a(2)),
        a3(a + where.a(3)),
        a4(a + where.a(4)),
        a5(a + where.a(5)) {}
  HWY_INLINE void pin() {}
  HWY_INLINE T at(int r, int p) const {
    return (r == 0 ? a0 : r == 1 ? a1 : r == 2 ? a2 : r == 3 ? a3 : r == 4 ? a4 : a5)[place + p];
  }
  HWY_INLINE void move(int64_t passes) { place += passes; }
};

// Tile<6, 2> for whole vectors of a packed B, without a scale. The loop is written out four times: a pass has
// 12 products and 8 loads, so the instructions that update pointers count. Without them, loops of 128 passes
// and more take 0.86 to 0.95 of the time on a core that seems to run another thread too, and 0.95 to 0.98 on
// an idle core, where loops of 64 take up to 1.03 (Zen 3). With SSE4, gcc would keep sums in memory.
template <template <typename> class Left, class How, class Where, typename T>
HWY_INLINE void WholeTile(const Depth& depth, const T* a, const Where& at, int64_t a_column, const T* b, T* c,
                          bool add, [[maybe_unused]] const TileEnd<T>* end) {
  constexpr int R = 6, V = 2;
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), row = V * lanes;
  constexpr int64_t kLine = 64 / sizeof(T);
  ORTRAIN_ZERO_SUMS
  for (int r = 0; r < R; ++r) PrefetchSums<V>(c + at.c_after(r, R));
  const T* b_start = b;
#define ORTRAIN_ELEMENT(r, p) left.at(r, p)
  for (int64_t time = depth.count; time > 0; --time, a += depth.a, b = b_start += depth.b) {
    Left<T> left(a, at, a_column);
    int64_t k = depth.k;
    HWY_UNROLL(1)
    for (; k >= 4; k -= 4, left.move(4), b += 4 * row) {
      if constexpr (std::is_same_v<Left<T>, AlongRows<T>> && !Where::kEnds) {
        if (depth.prefetches && k % kLine < 4)
          for (int r = R; r < 2 * R; ++r) hwy::Prefetch(left.a0 + r * left.row);
      }
      left.pin();
      ORTRAIN_PASS(ORTRAIN_ELEMENT, 0, row)
      ORTRAIN_PASS(ORTRAIN_ELEMENT, 1, row)
      ORTRAIN_PASS(ORTRAIN_ELEMENT, 2, row)
      ORTRAIN_PASS(ORTRAIN_ELEMENT, 3, row)
    }
    HWY_UNROLL(1)
    for (; k > 0; --k, left.move(1), b += row) ORTRAIN_PASS(ORTRAIN_ELEMENT, 0, row)
  }
#undef ORTRAIN_ELEMENT
  if constexpr (Where::kEnds) {
    if (end && end->bias && !end->addend && !add) {  // a convolution in one segment
      const auto bias0 = hn::LoadU(d, end->bias), bias1 = hn::LoadU(d, end->bias + lanes);
      const auto low = hn::Set(d, end->low), high = hn::Set(d, end->high);
#define ORTRAIN_SUM(r, v) \
  if constexpr (v < V)    \
    hn::StoreU(ClipTo(d, hn::Add(c##r##v, v == 0 ? bias0 : bias1), low, high), d, c + at.c(r) + v * lanes);
      ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
      return;
    }
  }
#define ORTRAIN_SUM(r, v)                                               \
  if constexpr (v < V) {                                                \
    const int64_t place = at.c(r) + v * lanes;                          \
    if (add) c##r##v = hn::Add(c##r##v, hn::LoadU(d, c + place));       \
    if constexpr (Where::kEnds) {                                       \
      if (end) c##r##v = Ended(*end, c##r##v, place, v * lanes, lanes); \
    }                                                                   \
    hn::StoreU(c##r##v, d, c + place);                                  \
  }
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
}

// The tiles of `m` rows, a multiple of 6; exactly 6 if they are listed. They follow each other without a
// call: sums of few products take little longer than one.
template <template <typename> class Left, class How, class Where, typename T>
ORTRAIN_ONCE void WholeTiles(int64_t m, const Depth& depth, const T* a, const Where& where, int64_t a_column,
                             const T* b, T* c, bool add, const TileEnd<T>* end = nullptr) {
  const Where at = where;  // a copy: gcc would read `where` again after each write to C
  if constexpr (Where::kListed) {
    WholeTile<Left, How>(depth, a, at, a_column, b, c, add, end);
  } else {
    TileEnd<T> here = end ? *end : TileEnd<T>{};
    for (; m > 0; m -= 6, a += at.a_tile, c += at.c(6), here = here.later(at.c(6)))
      WholeTile<Left, How>(depth, a, at, a_column, b, c, add, end ? &here : nullptr);
  }
}

// The same in blocks: all products of a tile before the next tile, so that its rows are read in their order
// and its sums stay in a cache.
template <class How, typename T>
ORTRAIN_ONCE void TilesInBlocks(int64_t m, const Depth& depth, const T* a, const EvenRows& where, const T* b,
                                T* c, bool add) {
  const EvenRows at = where;
  const TileEnd<T>* const end = nullptr;
  constexpr int64_t kLine = 64 / sizeof(T);
  const int64_t row = 2 * LanesOf<T>();
  for (; m > 0; m -= 6, a += at.a(6), c += at.c(6))
    for (int64_t k = 0; k < depth.k; k += depth.block) {
      const Depth part = {HWY_MIN(depth.block, depth.k - k)};
      for (int64_t l = k; depth.prefetches && l < k + part.k; l += kLine)
        for (int64_t r = 6; r < 12; ++r) hwy::Prefetch(a + at.a(r) + l);
      WholeTile<AlongRows, How>(part, a + k, at, 1, b + k * row, c, add || k > 0, end);
    }
}
#endif

#undef ORTRAIN_EACH_SUM
#undef ORTRAIN_EACH_OF
#undef ORTRAIN_ZERO_SUMS
#undef ORTRAIN_ZERO
#undef ORTRAIN_PASS
#undef ORTRAIN_ROW

// Calls tile(R, i) for tiles of R rows from row i on, as large as possible.
template <class F>
HWY_INLINE void EachTile(int64_t m, F&& tile) {
  int64_t i = 0;
  for (; i + 6 <= m; i += 6) tile(std::integral_constant<int, 6>(), i);
  for (; i + 4 <= m; i += 4) tile(std::integral_constant<int, 4>(), i);
  for (; i + 2 <= m; i += 2) tile(std::integral_constant<int, 2>(), i);
  for (; i < m; ++i) tile(std::integral_constant<int, 1>(), i);
}

template <int V, class How, typename T>
ORTRAIN_ONCE void Rows(int64_t m, const Depth& depth, const T* a, int64_t a_row, int64_t a_column, const T* b,
                       int64_t b_row, T* c, int64_t c_row, int64_t columns, bool add, T scale) {
  const EvenRows where{a_row, c_row, depth.a_tile > 0 ? depth.a_tile : 6 * a_row};
#if HWY_TARGET == HWY_AVX2
  // Other products, which nothing needs in these forms, take the slower paths.
  constexpr bool kNumbers = std::is_same_v<How, MultiplyAdd>,
                 kBlocks = kNumbers && sizeof(T) == sizeof(float);
  if (V == 2 && b_row == 2 * LanesOf<T>() && columns >= b_row && scale == T{1} &&
      (depth.block == 0 || kBlocks) && (a_column == 1 || a_row == 1)) {
    const int64_t whole = m / 6 * 6;
    if (kBlocks && depth.block > 0)
      TilesInBlocks<How>(whole, depth, a, where, b, c, add);
    else if (kNumbers && depth.a_tile > 0)
      WholeTiles<AlongTiles, How>(whole, depth, a, where, a_column, b, c, add);
    else if (a_column == 1)
      WholeTiles<AlongRows, How>(whole, depth, a, where, a_column, b, c, add);
    else
      WholeTiles<AlongColumns, How>(whole, depth, a, where, a_column, b, c, add);
    m -= whole, a += whole / 6 * where.a_tile, c += where.c(whole);
  }
#endif
  Depth part = depth;
  const int64_t step = depth.block > 0 ? depth.block : depth.k;
  for (int64_t k = 0; k < depth.k; k += step) {
    part.k = HWY_MIN(step, depth.k - k);
    const T* tile = a + k * a_column;
    EachTile(m, [&](auto rows, int64_t i) HWY_ATTR {
      constexpr int R = decltype(rows)::value;
      Tile<R, V, How>(part, tile, where, a_column, b + k * b_row, b_row, c + where.c(i), columns,
                      add || k > 0, scale);
      tile += R == 6 ? where.a_tile : where.a(R);
    });
  }
}

// Calls rows(V, j) for the columns of a panel from j on that V vectors hold.
template <typename T, class F>
HWY_INLINE void EachWidth(int64_t n, F&& rows) {
  const int64_t lanes = LanesOf<T>();
  for (int64_t j = 0; j < n;) {
    const int64_t left = (n - j + lanes - 1) / lanes;
    if (kPanel >= 4 && left >= 4)
      rows(std::integral_constant<int, 4>(), j), j += 4 * lanes;
    else if (left >= 2)
      rows(std::integral_constant<int, 2>(), j), j += 2 * lanes;
    else
      rows(std::integral_constant<int, 1>(), j), j += lanes;
  }
}

// C [m, n] = or += scale A B where n is at most a panel, and rows of B have whole vectors. Columns of C from
// n up to the next whole vector are also written if `spill` says that this memory exists.
template <typename T, class How = MultiplyAdd>
ORTRAIN_ONCE void Panel(int64_t m, int64_t n, const Depth& depth, const T* a, int64_t a_row, int64_t a_column,
                        const T* b, int64_t b_row, T* c, int64_t c_row, bool add, bool spill, T scale) {
  EachWidth<T>(n, [&](auto vectors, int64_t j) HWY_ATTR {
    Rows<decltype(vectors)::value, How>(m, depth, a, a_row, a_column, b + j, b_row, c + j, c_row,
                                        spill ? kPanel * LanesOf<T>() : n - j, add, scale);
  });
}

// A tile may have rows of several lines.
template <int V, typename T>
ORTRAIN_ONCE void RowsOfLines(const Lines& lines, const Depth& depth, const T* a, const T* b, int64_t b_row,
                              T* c, int64_t columns, bool add, const TileEnd<T>* end) {
  const LinePlace* line = lines.lines;
  int64_t column = 0, m = lines.count * lines.columns;
#if HWY_TARGET == HWY_AVX2
  const bool whole = V == 2 && b_row == 2 * LanesOf<T>() && columns >= b_row && !depth.prefetches;
  if (whole && lines.count == 1) {
    column = m / 6 * 6, m -= column;
    const EndedRows where{{lines.a_row, lines.c_row}};
    const TileEnd<T> here = end ? end->later(line->c) : TileEnd<T>{};
    WholeTiles<AlongRows, MultiplyAdd>(column, depth, a + line->a, where, 1, b, c + line->c, add,
                                       end ? &here : nullptr);
  }
#endif
  EachTile(m, [&](auto rows, int64_t) HWY_ATTR {
    constexpr int R = decltype(rows)::value;
    ListedRows where{lines.a_row, lines.c_row, {}, {}};
    for (int r = 0; r < R; ++r) {
      where.a_places[r] = line->a + column * lines.a_row;
      where.c_places[r] = line->c + column * lines.c_row;
      if (++column == lines.columns) column = 0, ++line;
    }
#if HWY_TARGET == HWY_AVX2
    if constexpr (R == 6 && V == 2) {
      if (whole) return WholeTiles<AlongListed, MultiplyAdd>(6, depth, a, where, 1, b, c, add, end);
    }
#endif
    Tile<R, V>(depth, a, where, 1, b, b_row, c, columns, add, T{1}, end);
  });
}

// C [rows, n] = or += A B where n is at most a panel, for rows in lines, whose elements are contiguous in A;
// then `end` if it is not null.
template <typename T>
void PanelOfLines(const Lines& lines, int64_t n, const Depth& depth, const T* a, const T* b, int64_t b_row,
                  T* c, bool add, const TileEnd<T>* end) {
  if (lines.count == 1 && !end) {
    const LinePlace& line = *lines.lines;
    Panel<T>(lines.columns, n, depth, a + line.a, lines.a_row, 1, b, b_row, c + line.c, lines.c_row, add,
             false, T{1});
    return;
  }
  EachWidth<T>(n, [&](auto vectors, int64_t j) HWY_ATTR {
    const TileEnd<T> here = end ? end->at(j) : TileEnd<T>{};
    RowsOfLines<decltype(vectors)::value>(lines, depth, a, b + j, b_row, c + j, n - j, add,
                                          end ? &here : nullptr);
  });
}

// A packed right operand, and which part of it a product reads: rows [k_begin, k_end), columns from the panel
// of n_begin to n_end.
template <typename T>
struct Packed {
  const T* data;
  int64_t k, n;
  int64_t k_begin, k_end, n_begin, n_end;
};

// C = or += scale A B. A begins at B's row k_begin, C at B's column 0. `spill` as above. If `a_tile` is not
// 0, A is stored by tiles, with a_row 1 and a_column 6. Sums have at most `block` products.
template <typename T, class How = MultiplyAdd>
void Multiply(int64_t m, const T* a, int64_t a_row, int64_t a_column, const Packed<T>& b, T* c, int64_t c_row,
              bool add, bool spill, T scale = 1, int64_t a_tile = 0, int64_t block = kDepth) {
  const int64_t lanes = LanesOf<T>(), width = kPanel * lanes;
  for (int64_t begin = b.k_begin; begin < b.k_end; begin += kDepth) {
    const int64_t depth = HWY_MIN(kDepth, b.k_end - begin);
    const bool blocks = block < depth;
    for (int64_t j = b.n_begin / width * width; j < b.n_end; j += width) {
      // Only the vectors of this panel that n_end needs are computed.
      const int64_t stored = (HWY_MIN(width, b.n - j) + lanes - 1) / lanes * lanes;
      // The first panel fetches A, often from memory. It then takes 0.94 of the time if nothing is in a cache
      // (Cascade Lake). In blocks, a single panel of Winograd's products takes up to 1.04 with prefetching
      // (Zen 3).
      const bool prefetches = a_column == 1 && j <= b.n_begin && !(blocks && b.n <= width);
      Panel<T, How>(m, HWY_MIN(stored, b.n_end - j),
                    {.k = depth, .prefetches = prefetches, .a_tile = a_tile, .block = blocks ? block : 0},
                    a + (begin - b.k_begin) * a_column, a_row, a_column, b.data + j * b.k + begin * stored,
                    stored, c + j, c_row, add || begin > b.k_begin, spill, scale);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#endif  // ORTRAIN_PRODUCT_TILES_INL_H_
