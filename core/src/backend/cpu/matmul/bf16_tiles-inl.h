// Matrix products of bfloat16 values on one thread with BFMMLA of arm64, which adds the product of a 2 x 4
// and a 4 x 2 matrix to a 2 x 2 matrix of floats: a micro-kernel of 6 rows x 4 vectors of sums, as in
// backend/cpu/matmul/product_tiles-inl.h. For how it is compiled see backend/cpu/simd/simd_math-inl.h.
//
// Four neighbors along k are a quad of 64 bits. Two rows of the left operand are stored together: the quads
// of both at k = 0, then at k = 4, and so on. The right operand is packed as panels of kPanel vectors of
// sums, in which the quads of all columns at k = 0 come first.
//
// Processors round the sum of two products, and then the sum of that and of the float, to odd instead of to
// nearest: to the neighbor whose last bit is one. Each of these roundings has an error of less than 2^-23 of
// its result, twice that of other additions, with a mean of zero. Numbers below 2^-126 count as zero.
// FEAT_EBF16 rounds to nearest if a program asks for that, which ortrain does not.

#if defined(ORTRAIN_BF16_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_BF16_TILES_INL_H_
#undef ORTRAIN_BF16_TILES_INL_H_
#else
#define ORTRAIN_BF16_TILES_INL_H_
#endif

#include <cstdint>

#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"

#undef ORTRAIN_HAS_BF16_TILES
#if HWY_ARCH_ARM_A64 && HWY_TARGET == HWY_NEON
#define ORTRAIN_HAS_BF16_TILES 1

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

using QuadSums = hn::FixedTag<float, 4>;

// sum [i, j] += row i of a · row j of b. Highway 1.0 does not have the instruction.
HWY_INLINE Vec<QuadSums> AddProducts(Vec<QuadSums> a, Vec<QuadSums> b, Vec<QuadSums> sum) {
  asm(".arch_extension bf16\n\tbfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum.raw) : "w"(a.raw), "w"(b.raw));
  return sum;
}

// The result of a product: C = or += scale A B, of which `rows` and `columns` remain.
struct QuadResult {
  float* c;
  int64_t c_row, rows, columns;
  float scale;
  bool add;
};

// P pairs of rows times V vectors of columns. Pairs of rows of A are `a_pair` floats apart, and b_row floats
// are from one quad of a column of B to the next.
template <int P, int V>
HWY_INLINE void QuadTile(int64_t quads, const float* a, int64_t a_pair, const float* b, int64_t b_row,
                         const QuadResult& to) {
  const QuadSums d;
  // s: the sums with the first two columns of a vector, t: with the last two.
#define ORTRAIN_EACH_OF(p) ORTRAIN_SUM(p, 0) ORTRAIN_SUM(p, 1) ORTRAIN_SUM(p, 2) ORTRAIN_SUM(p, 3)
#define ORTRAIN_EACH_SUM ORTRAIN_EACH_OF(0) ORTRAIN_EACH_OF(1) ORTRAIN_EACH_OF(2)
#define ORTRAIN_SUM(p, v) auto s##p##v = hn::Zero(d), t##p##v = s##p##v;
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
  for (int64_t q = 0; q < quads; ++q, a += 4, b += b_row) {
    const auto a0 = hn::LoadU(d, a);
    auto a1 = a0, a2 = a0;
    if constexpr (P > 1) a1 = hn::LoadU(d, a + a_pair);
    if constexpr (P > 2) a2 = hn::LoadU(d, a + 2 * a_pair);
#define ORTRAIN_VECTOR(v)                                                                             \
  if constexpr (V > v) {                                                                              \
    const auto first = hn::LoadU(d, b + 8 * v), last = hn::LoadU(d, b + 8 * v + 4);                   \
    s0##v = AddProducts(a0, first, s0##v), t0##v = AddProducts(a0, last, t0##v);                      \
    if constexpr (P > 1) s1##v = AddProducts(a1, first, s1##v), t1##v = AddProducts(a1, last, t1##v); \
    if constexpr (P > 2) s2##v = AddProducts(a2, first, s2##v), t2##v = AddProducts(a2, last, t2##v); \
  }
    ORTRAIN_VECTOR(0)
    ORTRAIN_VECTOR(1)
    ORTRAIN_VECTOR(2)
    ORTRAIN_VECTOR(3)
#undef ORTRAIN_VECTOR
  }
  const auto factor = hn::Set(d, to.scale);
  const auto store = [&](Vec<QuadSums> sum, int64_t row, int64_t column) HWY_ATTR {
    if (row >= to.rows) return;
    float* at = to.c + row * to.c_row + column;
    const int64_t count = HWY_MIN(4, to.columns - column);
    sum = hn::Mul(sum, factor);
    if (to.add) sum = hn::Add(sum, LoadUpTo(d, at, count));
    StoreUpTo(sum, d, at, count);
  };
#define ORTRAIN_SUM(p, v)                                               \
  if constexpr (P > p && V > v) {                                       \
    store(hn::ConcatLowerLower(d, t##p##v, s##p##v), 2 * p, 4 * v);     \
    store(hn::ConcatUpperUpper(d, t##p##v, s##p##v), 2 * p + 1, 4 * v); \
  }
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
#undef ORTRAIN_EACH_SUM
#undef ORTRAIN_EACH_OF
}

// Columns that fill V vectors, except possibly the last one.
template <int V>
HWY_NOINLINE void QuadRows(int64_t m, int64_t quads, const float* a, const float* b, int64_t b_row,
                           QuadResult to) {
  const int64_t a_pair = 4 * quads;
  const auto tile = [&](auto pairs) HWY_ATTR {
    constexpr int P = decltype(pairs)::value;
    for (; to.rows > 2 * (P - 1); a += P * a_pair, to.c += 2 * P * to.c_row, to.rows -= 2 * P)
      QuadTile<P, V>(quads, a, a_pair, b, b_row, to);
  };
  to.rows = m;
  tile(std::integral_constant<int, 3>());
  tile(std::integral_constant<int, 2>());
  tile(std::integral_constant<int, 1>());
}

// C [m, n] = or += scale A B of `quads` along k.
inline void MultiplyQuads(int64_t m, const float* a, const float* b, int64_t quads, int64_t n, float scale,
                          float* c, int64_t c_row, bool add) {
  for (int64_t panel = 0; panel < n; panel += 4 * kPanel) {
    const int64_t used = HWY_MIN(4 * kPanel, n - panel), b_row = 2 * ((used + 3) / 4 * 4);
    for (int64_t j = 0; j < used;) {
      const QuadResult to{c + panel + j, c_row, m, used - j, scale, add};
      const float* from = b + 2 * (panel * quads + j);
      if (used - j > 12) {
        QuadRows<4>(m, quads, a, from, b_row, to);
        j += 16;
      } else if (used - j > 4) {
        QuadRows<2>(m, quads, a, from, b_row, to);
        j += 8;
      } else {
        QuadRows<1>(m, quads, a, from, b_row, to);
        j += 4;
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();
#else
#define ORTRAIN_HAS_BF16_TILES 0
#endif

#endif  // ORTRAIN_BF16_TILES_INL_H_
