// Products of words with the tile registers of AMX, which Intel's processors have since Sapphire Rapids:
// pairs of bfloat16 values, summed in float, and groups of four 8-bit integers, summed in 32 bits. For how it
// is compiled see backend/cpu/simd/simd_math-inl.h. Highway 1.0 does not have these instructions.
//
// A tile is a matrix of up to 16 rows of 16 words, loaded from memory with any distance between rows. One
// instruction multiplies a tile of A with a tile of B and adds the products to a tile of sums. The operands
// are stored as other kernels for words store them: the rows of A as words along k, and B packed in panels,
// in which a row holds the words of all columns. Two by two tiles of sums share the loads of their operands,
// and use all eight registers.
//
// Products of bfloat16 pairs are rounded to nearest; numbers below 2^-126 count as zero.

#if defined(ORTRAIN_AMX_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_AMX_TILES_INL_H_
#undef ORTRAIN_AMX_TILES_INL_H_
#else
#define ORTRAIN_AMX_TILES_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"

#undef ORTRAIN_HAS_AMX_TILES
#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
#define ORTRAIN_HAS_AMX_TILES 1
#else
#define ORTRAIN_HAS_AMX_TILES 0
#endif

#if ORTRAIN_HAS_AMX_TILES
HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

constexpr int64_t kTileSize = 16;  // rows, and words of a row
constexpr int64_t kTileWords = kTileSize * kTileSize;
constexpr int64_t kTileBlock = 2 * kTileSize;  // rows and columns whose sums are in registers

// What the words hold.
struct PairsInTiles {
  using Sum = float;
};
// Bytes of A are unsigned, those of B signed.
struct BytesInTiles {
  using Sum = int32_t;
};

// The instructions on registers, by number. Tests have an emulator in its place.
struct Amx {
  static HWY_INLINE void Configure(const void* shapes) {
    asm volatile("ldtilecfg (%0)" : : "r"(shapes) : "memory");
  }
  static HWY_INLINE void Release() { asm volatile("tilerelease"); }
  template <int T>
  static HWY_INLINE void Load(const void* from, int64_t row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int T>
  static HWY_INLINE void Store(void* to, int64_t row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(T) : "memory");
  }
  template <int T>
  static HWY_INLINE void Zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(T));
  }
  template <class Words, int Sums, int A, int B>
  static HWY_INLINE void Multiply() {
    if constexpr (std::is_same_v<Words, PairsInTiles>)
      asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(A), "i"(B));
    else
      asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(Sums), "i"(A), "i"(B));
  }
};

// The shapes of the registers, in the form that the processor reads. Registers 0 to 3 hold the sums, row by
// row of the two by two tiles, 4 and 5 the tiles of A, 6 and 7 those of B.
template <class Unit>
class TileShapes {
 public:
  TileShapes() = default;
  TileShapes(const TileShapes&) = delete;
  // As long as registers are in use, the system saves them whenever it switches threads.
  ~TileShapes() { Unit::Release(); }

  // For `rows` and `columns` of C, at most kTileBlock, and `words` along k, at most kTileSize.
  void use(int64_t rows, int64_t columns, int64_t words) {
    if (rows == rows_ && columns == columns_ && words == words_) return;
    rows_ = rows, columns_ = columns, words_ = words;
    // The shape of a second tile that does not exist is valid and unused.
    const int64_t row[2] = {HWY_MIN(rows, kTileSize), rows > kTileSize ? rows - kTileSize : kTileSize};
    const int64_t column[2] = {HWY_MIN(columns, kTileSize),
                               columns > kTileSize ? columns - kTileSize : kTileSize};
    for (int t = 0; t < 4; ++t) shape(t, row[t / 2], column[t % 2]);
    for (int t = 0; t < 2; ++t) shape(4 + t, row[t], words), shape(6 + t, words, column[t]);
    Unit::Configure(&memory_);
  }

 private:
  void shape(int t, int64_t rows, int64_t words) {
    memory_.rows[t] = static_cast<uint8_t>(rows);
    memory_.row_bytes[t] = static_cast<uint16_t>(4 * words);
  }

  struct alignas(64) Memory {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
  static_assert(sizeof(Memory) == 64);
  Memory memory_;
  int64_t rows_ = 0, columns_ = 0, words_ = 0;
};

// The left operand. Distances in words: between rows of a tile, between tiles along k, and between tiles
// along m.
struct LeftTiles {
  const uint32_t* data;
  int64_t row, step, block;

  // Rows along k, `row` words apart.
  static LeftTiles of_rows(const void* data, int64_t row) {
    return {static_cast<const uint32_t*>(data), row, kTileSize, kTileSize * row};
  }
  // Tiles one after another, `steps` of them along k.
  static LeftTiles of_tiles(const void* data, int64_t steps) {
    return {static_cast<const uint32_t*>(data), kTileSize, kTileWords, steps * kTileWords};
  }
};

// C = or += A B for R x V tiles of sums, with `steps` tiles along k.
template <class Words, class Unit, int R, int V>
HWY_INLINE void MultiplyTiles(int64_t steps, const LeftTiles& a, const void* b, int64_t b_row, void* c,
                              int64_t c_row, bool add) {
  const uint32_t *a0 = a.data, *a1 = a0 + a.block;
  const char* b0 = static_cast<const char*>(b);
  char* c0 = static_cast<char*>(c);
  const int64_t a_bytes = 4 * a.row, b_bytes = 4 * b_row, c_bytes = 4 * c_row, line = 4 * kTileSize;
  char* c2 = c0 + kTileSize * c_bytes;
  if (add) {
    Unit::template Load<0>(c0, c_bytes);
    if constexpr (V > 1) Unit::template Load<1>(c0 + line, c_bytes);
    if constexpr (R > 1) Unit::template Load<2>(c2, c_bytes);
    if constexpr (R > 1 && V > 1) Unit::template Load<3>(c2 + line, c_bytes);
  } else {
    Unit::template Zero<0>();
    if constexpr (V > 1) Unit::template Zero<1>();
    if constexpr (R > 1) Unit::template Zero<2>();
    if constexpr (R > 1 && V > 1) Unit::template Zero<3>();
  }
  for (; steps > 0; --steps, a0 += a.step, a1 += a.step, b0 += kTileSize * b_bytes) {
    Unit::template Load<4>(a0, a_bytes);
    Unit::template Load<6>(b0, b_bytes);
    Unit::template Multiply<Words, 0, 4, 6>();
    if constexpr (V > 1) {
      Unit::template Load<7>(b0 + line, b_bytes);
      Unit::template Multiply<Words, 1, 4, 7>();
    }
    if constexpr (R > 1) {
      Unit::template Load<5>(a1, a_bytes);
      Unit::template Multiply<Words, 2, 5, 6>();
      if constexpr (V > 1) Unit::template Multiply<Words, 3, 5, 7>();
    }
  }
  Unit::template Store<0>(c0, c_bytes);
  if constexpr (V > 1) Unit::template Store<1>(c0 + line, c_bytes);
  if constexpr (R > 1) Unit::template Store<2>(c2, c_bytes);
  if constexpr (R > 1 && V > 1) Unit::template Store<3>(c2 + line, c_bytes);
}

// C [m, n] = or += A B with `words` along k. Rows of B are stored up to a whole tile.
template <class Words, class Unit = Amx>
void MultiplyInTiles(int64_t m, int64_t n, int64_t words, const LeftTiles& a, const void* b, int64_t b_row,
                     typename Words::Sum* c, int64_t c_row, bool add) {
  TileShapes<Unit> shapes;
  const auto* right = static_cast<const uint32_t*>(b);
  // First the whole tiles along k, then those of the last words.
  const int64_t whole = words / kTileSize, last = words % kTileSize;
  for (const bool ends : {false, true}) {
    if (ends ? last == 0 : whole == 0 && last > 0) continue;
    const int64_t steps = ends ? 1 : whole;
    // The tiles of B of these columns stay in the first-level cache.
    for (int64_t j = 0; j < n; j += kTileBlock)
      for (int64_t i = 0; i < m; i += kTileBlock) {
        const int64_t rows = HWY_MIN(kTileBlock, m - i), columns = HWY_MIN(kTileBlock, n - j);
        shapes.use(rows, columns, ends ? last : kTileSize);
        LeftTiles from = a;
        from.data += i / kTileSize * a.block + (ends ? whole * a.step : 0);
        const auto* with = right + (ends ? whole * kTileSize * b_row : 0) + j;
        typename Words::Sum* to = c + i * c_row + j;
        const bool more = add || (ends && whole > 0);
        if (rows > kTileSize && columns > kTileSize)
          MultiplyTiles<Words, Unit, 2, 2>(steps, from, with, b_row, to, c_row, more);
        else if (rows > kTileSize)
          MultiplyTiles<Words, Unit, 2, 1>(steps, from, with, b_row, to, c_row, more);
        else if (columns > kTileSize)
          MultiplyTiles<Words, Unit, 1, 2>(steps, from, with, b_row, to, c_row, more);
        else
          MultiplyTiles<Words, Unit, 1, 1>(steps, from, with, b_row, to, c_row, more);
      }
  }
}

// C [m, n] = or += scale A B of pairs, n at most a panel. Scaled sums pass through the stack.
template <class Unit = Amx>
HWY_NOINLINE void MultiplyPairsInTiles(int64_t m, int64_t n, int64_t words, LeftTiles a, const float* b,
                                       int64_t b_row, float scale, float* c, int64_t c_row, bool add) {
  if (scale == 1) return MultiplyInTiles<PairsInTiles, Unit>(m, n, words, a, b, b_row, c, c_row, add);
  const hn::ScalableTag<float> d;
  constexpr int64_t kPitch = kPanel * kTileSize;
  HWY_ALIGN float sums[kTileBlock * kPitch];
  const auto factor = hn::Set(d, scale);
  for (int64_t i = 0; i < m; i += kTileBlock, a.data += 2 * a.block) {
    const int64_t rows = HWY_MIN(kTileBlock, m - i);
    MultiplyInTiles<PairsInTiles, Unit>(rows, n, words, a, b, b_row, sums, kPitch, false);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < n; j += kTileSize) {
        float* to = c + (i + r) * c_row + j;
        auto sum = hn::Mul(hn::Load(d, sums + r * kPitch + j), factor);
        if (add) sum = hn::Add(sum, LoadUpTo(d, to, n - j));
        StoreUpTo(sum, d, to, n - j);
      }
  }
}

// to[i, w] = from[w, i] for i < m and w < words: the rows of A from words whose rows are along m.
inline void TurnWords(const uint32_t* from, int64_t from_row, int64_t words, int64_t m, uint32_t* to,
                      int64_t to_row) {
  const hn::ScalableTag<uint32_t> d;
  for (int64_t w = 0; w < words; w += kTileSize)
    for (int64_t i = 0; i < m; i += kTileSize) {
      const int64_t depth = HWY_MIN(kTileSize, words - w), rows = HWY_MIN(kTileSize, m - i);
      Vec<decltype(d)> v[kTileSize];
      HWY_UNROLL(16)
      for (int64_t l = 0; l < kTileSize; ++l)
        v[l] = l < depth ? LoadUpTo(d, from + (w + l) * from_row + i, rows) : hn::Zero(d);
      Transpose(d, v);
      for (int64_t l = 0; l < rows; ++l) StoreUpTo(v[l], d, to + (i + l) * to_row + w, depth);
    }
}

// Panel for pairs in tiles.
template <class Unit = Amx>
void PanelInTiles(int64_t m, int64_t n, const Depth& depth, const float* a, int64_t a_row, int64_t a_column,
                  const float* b, int64_t b_row, float* c, int64_t c_row, bool add, bool spill, float scale) {
  if (spill) n = (n + kTileSize - 1) / kTileSize * kTileSize;
  for (int64_t time = 0; time < depth.count; ++time, a += depth.a, b += depth.b, add = true) {
    if (a_column == 1) {
      MultiplyPairsInTiles<Unit>(m, n, depth.k, LeftTiles::of_rows(a, a_row), b, b_row, scale, c, c_row, add);
      continue;
    }
    // The rows of A are along m: blocks of them are turned.
    HWY_ALIGN uint32_t turned[kTileBlock * kDepth];
    for (int64_t i = 0; i < m; i += kTileBlock)
      for (int64_t k = 0; k < depth.k; k += kDepth) {
        const int64_t rows = HWY_MIN(kTileBlock, m - i), words = HWY_MIN(kDepth, depth.k - k);
        TurnWords(reinterpret_cast<const uint32_t*>(a + i * a_row + k * a_column), a_column, words, rows,
                  turned, kDepth);
        MultiplyPairsInTiles<Unit>(rows, n, words, LeftTiles::of_rows(turned, kDepth), b + k * b_row, b_row,
                                   scale, c + i * c_row, c_row, add || k > 0);
      }
  }
}

// How Panel multiplies pairs of bfloat16 values in tiles.
struct TilePairs {};
template <>
ORTRAIN_ONCE inline void Panel<float, TilePairs>(int64_t m, int64_t n, const Depth& depth, const float* a,
                                                 int64_t a_row, int64_t a_column, const float* b,
                                                 int64_t b_row, float* c, int64_t c_row, bool add, bool spill,
                                                 float scale) {
  PanelInTiles(m, n, depth, a, a_row, a_column, b, b_row, c, c_row, add, spill, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();
#endif

#endif  // ORTRAIN_AMX_TILES_INL_H_
