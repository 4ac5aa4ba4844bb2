// Matrix products on one thread: a micro-kernel of 6 x 4 vectors of sums over a packed right operand. What
// attention, Winograd's convolution and the portable products stand on. Where it is compiled:
// ops/simd_math-inl.h.
//
// The right operand [k, n] is packed as panels of kPanel vectors, rows of a panel behind one another, so that
// the micro-kernel reads it in a line; the last panel is as narrow as it can be.

#if defined(ORTRAIN_PRODUCT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_PRODUCT_TILES_INL_H_
#undef ORTRAIN_PRODUCT_TILES_INL_H_
#else
#define ORTRAIN_PRODUCT_TILES_INL_H_
#endif

#include <cstdint>
#include <type_traits>

#include "ops/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

#if HWY_MAX_BYTES >= 64 || HWY_ARCH_ARM_A64
constexpr int64_t kPanel = 4;  // with 32 registers: 6 x 4 sums
#else
constexpr int64_t kPanel = 2;
#endif
constexpr int64_t kDepth = 128;  // products added up before the sums go to memory

template <typename T>
int64_t LanesOf() {
  return static_cast<int64_t>(hn::Lanes(hn::ScalableTag<T>()));
}

// packed = B, whose row i begins at b + i * row.
template <typename T>
void PackAlong(const T* b, int64_t row, int64_t k, int64_t n, T* packed) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>(), width = kPanel * lanes;
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j);
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t l = 0; l < used; l += lanes) {
        hn::StoreU(LoadUpTo(d, b + i * row + j + l, used - l), d, packed);
        packed += lanes;
      }
    }
  }
}

// packed = scale Bᵀ, where column j of Bᵀ begins at b + j * row.
template <typename T>
void PackAcross(const T* b, int64_t row, int64_t k, int64_t n, T scale, T* packed) {
  const int64_t lanes = LanesOf<T>(), width = kPanel * lanes;
  for (int64_t j = 0; j < n; j += width) {
    const int64_t used = HWY_MIN(width, n - j), stored = (used + lanes - 1) / lanes * lanes;
    const T* from = b + j * row;
    int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
    if constexpr (std::is_same_v<T, float>) {
      const hn::FixedTag<float, 4> d;
      const hn::Repartition<double, decltype(d)> pairs;
      const auto factor = hn::Set(d, scale);
      for (; c + 4 <= used; c += 4) {
        const float* at = from + c * row;
        int64_t i = 0;
        for (; i + 4 <= k; i += 4) {
          const auto a0 = hn::LoadU(d, at + i), a1 = hn::LoadU(d, at + row + i);
          const auto a2 = hn::LoadU(d, at + 2 * row + i), a3 = hn::LoadU(d, at + 3 * row + i);
          const auto lower0 = hn::BitCast(pairs, hn::InterleaveLower(d, a0, a1));
          const auto lower1 = hn::BitCast(pairs, hn::InterleaveLower(d, a2, a3));
          const auto upper0 = hn::BitCast(pairs, hn::InterleaveUpper(d, a0, a1));
          const auto upper1 = hn::BitCast(pairs, hn::InterleaveUpper(d, a2, a3));
          T* to = packed + i * stored + c;
          const auto store = [&](auto v, int64_t line) HWY_ATTR {
            hn::StoreU(hn::Mul(hn::BitCast(d, v), factor), d, to + line * stored);
          };
          store(hn::InterleaveLower(pairs, lower0, lower1), 0);
          store(hn::InterleaveUpper(pairs, lower0, lower1), 1);
          store(hn::InterleaveLower(pairs, upper0, upper1), 2);
          store(hn::InterleaveUpper(pairs, upper0, upper1), 3);
        }
        for (; i < k; ++i)
          for (int64_t l = 0; l < 4; ++l) packed[i * stored + c + l] = scale * at[l * row + i];
      }
    }
#endif
    for (; c < stored; ++c)
      for (int64_t i = 0; i < k; ++i) packed[i * stored + c] = c < used ? scale * from[c * row + i] : T{0};
    packed += stored * k;
  }
}

// C [R, V vectors] = or += A B over k products, A's element (i, p) at a[i * a_row + p * a_column], rows of B
// `b_row` apart. Only the first `columns` of C are written.
template <int R, int V, typename T>
HWY_INLINE void Tile(int64_t k, const T* a, int64_t a_row, int64_t a_column, const T* b, int64_t b_row, T* c,
                     int64_t c_row, int64_t columns, bool add) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
#define ORTRAIN_SUMS(r) auto c##r##0 = hn::Zero(d), c##r##1 = c##r##0, c##r##2 = c##r##0, c##r##3 = c##r##0;
  ORTRAIN_SUMS(0)
  ORTRAIN_SUMS(1)
  ORTRAIN_SUMS(2)
  ORTRAIN_SUMS(3)
  ORTRAIN_SUMS(4)
  ORTRAIN_SUMS(5)
#undef ORTRAIN_SUMS
  for (int64_t p = 0; p < k; ++p) {
    const auto b0 = hn::LoadU(d, b);
    auto b1 = b0, b2 = b0, b3 = b0;
    if constexpr (V > 1) b1 = hn::LoadU(d, b + lanes);
    if constexpr (V > 2) b2 = hn::LoadU(d, b + 2 * lanes);
    if constexpr (V > 3) b3 = hn::LoadU(d, b + 3 * lanes);
#define ORTRAIN_ROW(r)                                         \
  if constexpr (R > r) {                                       \
    const auto x = hn::Set(d, a[r * a_row]);                   \
    c##r##0 = hn::MulAdd(x, b0, c##r##0);                      \
    if constexpr (V > 1) c##r##1 = hn::MulAdd(x, b1, c##r##1); \
    if constexpr (V > 2) c##r##2 = hn::MulAdd(x, b2, c##r##2); \
    if constexpr (V > 3) c##r##3 = hn::MulAdd(x, b3, c##r##3); \
  }
    ORTRAIN_ROW(0)
    ORTRAIN_ROW(1)
    ORTRAIN_ROW(2)
    ORTRAIN_ROW(3)
    ORTRAIN_ROW(4)
    ORTRAIN_ROW(5)
#undef ORTRAIN_ROW
    a += a_column;
    b += b_row;
  }
#define ORTRAIN_STORE(r) ORTRAIN_PUT(r, 0) ORTRAIN_PUT(r, 1) ORTRAIN_PUT(r, 2) ORTRAIN_PUT(r, 3)
  if (columns >= V * lanes) {
#define ORTRAIN_PUT(r, v)                                                  \
  if constexpr (R > r && V > v) {                                          \
    T* to = c + r * c_row + v * lanes;                                     \
    hn::StoreU(add ? hn::Add(c##r##v, hn::LoadU(d, to)) : c##r##v, d, to); \
  }
    ORTRAIN_STORE(0)
    ORTRAIN_STORE(1)
    ORTRAIN_STORE(2)
    ORTRAIN_STORE(3)
    ORTRAIN_STORE(4)
    ORTRAIN_STORE(5)
#undef ORTRAIN_PUT
    return;
  }
#define ORTRAIN_PUT(r, v)                                \
  if constexpr (R > r && V > v) {                        \
    T* to = c + r * c_row + v * lanes;                   \
    const int64_t count = columns - v * lanes;           \
    auto sum = c##r##v;                                  \
    if (add) sum = hn::Add(sum, LoadUpTo(d, to, count)); \
    StoreUpTo(sum, d, to, count);                        \
  }
  ORTRAIN_STORE(0)
  ORTRAIN_STORE(1)
  ORTRAIN_STORE(2)
  ORTRAIN_STORE(3)
  ORTRAIN_STORE(4)
  ORTRAIN_STORE(5)
#undef ORTRAIN_PUT
#undef ORTRAIN_STORE
}

template <int V, typename T>
void Rows(int64_t m, int64_t k, const T* a, int64_t a_row, int64_t a_column, const T* b, int64_t b_row, T* c,
          int64_t c_row, int64_t columns, bool add) {
  int64_t i = 0;
  const auto tile = [&](auto rows) HWY_ATTR {
    constexpr int R = decltype(rows)::value;
    for (; i + R <= m; i += R)
      Tile<R, V>(k, a + i * a_row, a_row, a_column, b, b_row, c + i * c_row, c_row, columns, add);
  };
  tile(std::integral_constant<int, 6>());
  tile(std::integral_constant<int, 3>());
  tile(std::integral_constant<int, 1>());
}

// A packed right operand, and which part of it a product reads: rows [k_begin, k_end), columns from the panel
// of n_begin to n_end.
template <typename T>
struct Packed {
  const T* data;
  int64_t k, n;
  int64_t k_begin, k_end, n_begin, n_end;
};

// C = or += A B. A begins at B's row k_begin, C at B's column 0. Columns of C from n_end up to the next whole
// vector are written too where `spill` says that they are there.
template <typename T>
void Multiply(int64_t m, const T* a, int64_t a_row, int64_t a_column, const Packed<T>& b, T* c, int64_t c_row,
              bool add, bool spill) {
  const int64_t lanes = LanesOf<T>(), width = kPanel * lanes;
  for (int64_t begin = b.k_begin; begin < b.k_end; begin += kDepth) {
    const int64_t depth = HWY_MIN(kDepth, b.k_end - begin);
    const bool sum = add || begin > b.k_begin;
    const T* from = a + (begin - b.k_begin) * a_column;
    for (int64_t j = b.n_begin / width * width; j < b.n_end; j += width) {
      // Of this panel's vectors those are computed that n_end needs.
      const int64_t stored = (HWY_MIN(width, b.n - j) + lanes - 1) / lanes * lanes;
      const int64_t used = HWY_MIN(stored, b.n_end - j);
      const T* panel = b.data + j * b.k + begin * stored;
      for (int64_t l = 0; l < used;) {
        const int64_t left = (used - l + lanes - 1) / lanes;
        const int64_t columns = spill ? width : used - l;
        T* to = c + j + l;
        if (kPanel >= 4 && left >= 4) {
          Rows<4>(m, depth, from, a_row, a_column, panel + l, stored, to, c_row, columns, sum);
          l += 4 * lanes;
        } else if (left >= 2) {
          Rows<2>(m, depth, from, a_row, a_column, panel + l, stored, to, c_row, columns, sum);
          l += 2 * lanes;
        } else {
          Rows<1>(m, depth, from, a_row, a_column, panel + l, stored, to, c_row, columns, sum);
          l += lanes;
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#endif  // ORTRAIN_PRODUCT_TILES_INL_H_
