// x86 processors without AVX2 get vectors here too. The list of targets of the build would leave them without
// vectors (Highway 1.0).
#if defined(__x86_64__)
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/matmul/multiply.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>

#include "backend/cpu/matmul/multiply.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/checked.h"
#include "runtime/division.h"
#include "runtime/dtype.h"
#include "runtime/thread_pool.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_MULTIPLY_TYPES
#define ORTRAIN_MULTIPLY_TYPES
namespace ortrain {

// How a product is computed. It depends only on the sizes of the whole product, so that every thread does the
// same.
enum class ProductWay {
  kDots,        // one row of A, or a few contiguous ones, times contiguous columns of B: dot products
  kDirect,      // few rows of A times rows of B: tiles that read B as it is stored
  kTransposed,  // few rows of A times contiguous columns of B: Cᵀ = Bᵀ Aᵀ by tiles that read A from packed
                // panels
  kPacked,  // tiles that read B from packed panels
};

// C = or += alpha A B.
template <typename T>
struct ProductPart {
  ProductWay way;
  int64_t m, n, k;
  T alpha;
  MatrixView<const T> a, b;
  MatrixView<T> c;  // its column stride is 1, or m is
  bool add;
};

template <typename T>
struct ProductKernel {
  int64_t lanes, panel;  // columns
  void (*run)(const ProductPart<T>&);
  // Functions of packed operands; null for integers.
  void (*pack)(int64_t k, int64_t n, MatrixView<const T> b, T* packed);
  void (*run_packed)(const ProductPart<T>&);  // b.data is packed
};

// Columns of a block of B.
template <typename T>
constexpr int64_t kBlockColumns = tuning::kBlockColumns / static_cast<int64_t>(sizeof(T));

// Whether elements that are so far apart have to be packed: they may all map to one cache set.
template <typename T>
constexpr bool is_far(int64_t elements) {
  return elements * static_cast<int64_t>(sizeof(T)) > tuning::kNearby;
}

using ProductKernels =
    std::tuple<ProductKernel<float>, ProductKernel<double>, ProductKernel<uint32_t>, ProductKernel<uint64_t>>;

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// Dot products of a row of A with columns of B, four columns at a time, over at most this many products.
constexpr int64_t kDotDepth = 1024;

// The thread's memory for packed operands: 436 KB for blocks of floats, 608 KB for blocks of doubles.
template <typename T>
T* PackingMemory(int64_t elements) {
  return static_cast<T*>(regions::memory(static_cast<size_t>(elements) * sizeof(T)));
}

template <typename T>
T SumOf(Vec<hn::ScalableTag<T>> v) {
  return hn::GetLane(hn::SumOfLanes(hn::ScalableTag<T>(), v));
}

template <typename T>
void Dots(const ProductPart<T>& p) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  HWY_ALIGN T gathered[kDotDepth];
  for (int64_t begin = 0; begin < p.k; begin += kDotDepth) {
    const int64_t depth = HWY_MIN(kDotDepth, p.k - begin);
    const bool add = p.add || begin > 0;
    for (int64_t j = 0; j < p.n; j += 4) {
      const int64_t columns = HWY_MIN(int64_t{4}, p.n - j);
      const T* b0 = p.b.data + begin + j * p.b.column;
      // Beyond the last column, the last one is read again.
      const T* b1 = b0 + HWY_MIN(int64_t{1}, columns - 1) * p.b.column;
      const T* b2 = b0 + HWY_MIN(int64_t{2}, columns - 1) * p.b.column;
      const T* b3 = b0 + HWY_MIN(int64_t{3}, columns - 1) * p.b.column;
      for (int64_t i = 0; i < p.m; ++i) {
        const T* a = p.a.data + i * p.a.row + begin * p.a.column;
        if (p.a.column != 1) {
          for (int64_t l = 0; j == 0 && l < depth; ++l) gathered[l] = a[l * p.a.column];
          a = gathered;
        }
        auto even0 = hn::Zero(d), even1 = even0, even2 = even0, even3 = even0;
        auto odd0 = even0, odd1 = even0, odd2 = even0, odd3 = even0;
        int64_t l = 0;
        for (; l + 2 * lanes <= depth; l += 2 * lanes) {
          const auto x = hn::LoadU(d, a + l), y = hn::LoadU(d, a + l + lanes);
          even0 = hn::MulAdd(x, hn::LoadU(d, b0 + l), even0);
          even1 = hn::MulAdd(x, hn::LoadU(d, b1 + l), even1);
          even2 = hn::MulAdd(x, hn::LoadU(d, b2 + l), even2);
          even3 = hn::MulAdd(x, hn::LoadU(d, b3 + l), even3);
          odd0 = hn::MulAdd(y, hn::LoadU(d, b0 + l + lanes), odd0);
          odd1 = hn::MulAdd(y, hn::LoadU(d, b1 + l + lanes), odd1);
          odd2 = hn::MulAdd(y, hn::LoadU(d, b2 + l + lanes), odd2);
          odd3 = hn::MulAdd(y, hn::LoadU(d, b3 + l + lanes), odd3);
        }
        for (; l < depth; l += lanes) {
          const int64_t count = HWY_MIN(lanes, depth - l);
          const auto x = LoadUpTo(d, a + l, count);
          even0 = hn::MulAdd(x, LoadUpTo(d, b0 + l, count), even0);
          even1 = hn::MulAdd(x, LoadUpTo(d, b1 + l, count), even1);
          even2 = hn::MulAdd(x, LoadUpTo(d, b2 + l, count), even2);
          even3 = hn::MulAdd(x, LoadUpTo(d, b3 + l, count), even3);
        }
        const T sums[4] = {SumOf<T>(hn::Add(even0, odd0)), SumOf<T>(hn::Add(even1, odd1)),
                           SumOf<T>(hn::Add(even2, odd2)), SumOf<T>(hn::Add(even3, odd3))};
        T* c = p.c.data + i * p.c.row + j * p.c.column;
        for (int64_t l = 0; l < columns; ++l, c += p.c.column) *c = (add ? *c : T{0}) + p.alpha * sums[l];
      }
    }
  }
}

template <typename T>
void Direct(const ProductPart<T>& p) {
  if (p.c.column != 1) {
    HWY_ALIGN T line[kDotDepth];
    for (int64_t j = 0; j < p.n; j += kDotDepth) {
      const int64_t count = HWY_MIN(kDotDepth, p.n - j);
      Direct<T>({p.way, 1, count, p.k, p.alpha, p.a, {p.b.data + j, p.b.row, 1}, {line, 0, 1}, false});
      for (int64_t l = 0; l < count; ++l) {
        T& c = p.c.data[(j + l) * p.c.column];
        c = p.add ? c + line[l] : line[l];
      }
    }
    return;
  }
  // Rows are read in whole vectors, so a panel whose last vector is incomplete is packed.
  const int64_t lanes = LanesOf<T>(), width = kPanel * lanes;
  const int64_t whole = p.n % lanes == 0 ? p.n : p.n / width * width, packed = p.n - whole;
  const int64_t stored = (packed + lanes - 1) / lanes * lanes;
  T* rest = packed > 0 ? PackingMemory<T>(kDepth * stored) : nullptr;
  for (int64_t begin = 0; begin < p.k; begin += kDepth) {
    const int64_t depth = HWY_MIN(kDepth, p.k - begin);
    const bool add = p.add || begin > 0;
    const T *a = p.a.data + begin * p.a.column, *b = p.b.data + begin * p.b.row;
    for (int64_t j = 0; j < whole; j += width)
      Panel<T>(p.m, HWY_MIN(width, whole - j), {depth}, a, p.a.row, p.a.column, b + j, p.b.row, p.c.data + j,
               p.c.row, add, false, p.alpha);
    if (packed > 0) {
      PackAlong(b + whole, p.b.row, depth, packed, rest);
      Panel<T>(p.m, packed, {depth}, a, p.a.row, p.a.column, rest, stored, p.c.data + whole, p.c.row, add,
               false, p.alpha);
    }
  }
}

template <typename T>
void Blocks(const ProductPart<T>& p) {
  const int64_t lanes = LanesOf<T>();
  const int64_t depth = HWY_MIN(kDepth, p.k), columns = HWY_MIN(kBlockColumns<T>, p.n);
  const int64_t rows = HWY_MIN(tuning::kBlockRows, p.m);
  // A single panel reads each element of A once, so that copying them first would take longer.
  const bool packs_a = is_far<T>(p.a.column) && p.n > kPanel * lanes;
  const int64_t b_elements = depth * ((columns + lanes - 1) / lanes * lanes);
  T* packed = PackingMemory<T>(b_elements + (packs_a ? (rows + 5) / 6 * StoredTile<T>(depth) : 0));
  T* packed_a = packed + b_elements;
  for (int64_t j = 0; j < p.n; j += columns)
    for (int64_t l = 0; l < p.k; l += depth) {
      const int64_t n = HWY_MIN(columns, p.n - j), k = HWY_MIN(depth, p.k - l);
      const T* b = p.b.data + l * p.b.row + j * p.b.column;
      if (p.b.column == 1)
        PackAlong(b, p.b.row, k, n, packed);
      else
        PackAcross(b, p.b.column, k, n, T{1}, packed);
      for (int64_t i = 0; i < p.m; i += rows) {
        const int64_t m = HWY_MIN(rows, p.m - i);
        const T* a = p.a.data + i * p.a.row + l * p.a.column;
        int64_t a_row = p.a.row, a_column = p.a.column;
        if (packs_a) {
          StoreByTiles(a, a_column, m, k, packed_a, StoredTile<T>(k));
          a = packed_a, a_row = 1, a_column = 6;
        }
        Multiply<T>(m, a, a_row, a_column, {packed, k, n, 0, k, 0, n}, p.c.data + i * p.c.row + j, p.c.row,
                    p.add || l > 0, false, p.alpha, packs_a ? StoredTile<T>(k) : 0);
      }
    }
}

// Columns of C are computed as rows of Cᵀ in memory of the thread, a few at a time.
template <typename T>
void Transposed(const ProductPart<T>& p) {
  constexpr int64_t kColumns = 48;
  const int64_t lanes = LanesOf<T>(), stored = (p.m + lanes - 1) / lanes * lanes;
  T* packed = PackingMemory<T>(p.k * stored + kColumns * stored);
  T* const block = packed + p.k * stored;
  if (p.a.row == 1)
    PackAlong(p.a.data, p.a.column, p.k, p.m, packed);
  else
    PackAcross(p.a.data, p.a.row, p.k, p.m, T{1}, packed);
  for (int64_t j = 0; j < p.n; j += kColumns) {
    const int64_t columns = HWY_MIN(kColumns, p.n - j);
    Multiply<T>(columns, p.b.data + j * p.b.column, p.b.column, p.b.row, {packed, p.k, p.m, 0, p.k, 0, p.m},
                block, stored, false, true, p.alpha);
    for (int64_t i = 0; i < p.m; ++i) {
      T* c = p.c.data + i * p.c.row + j * p.c.column;
      for (int64_t l = 0; l < columns; ++l, c += p.c.column)
        *c = p.add ? *c + block[l * stored + i] : block[l * stored + i];
    }
  }
}

// Integers wrap around. The compiler vectorizes these loops.
template <typename T>
void Integers(const ProductPart<T>& p) {
  for (int64_t i = 0; i < p.m; ++i) {
    const T* HWY_RESTRICT a = p.a.data + i * p.a.row;
    T* HWY_RESTRICT c = p.c.data + i * p.c.row;
    if (p.b.column != 1) {
      for (int64_t j = 0; j < p.n; ++j) {
        const T* HWY_RESTRICT b = p.b.data + j * p.b.column;
        T sum = 0;
        if (p.a.column == 1)
          for (int64_t l = 0; l < p.k; ++l) sum += a[l] * b[l];
        else
          for (int64_t l = 0; l < p.k; ++l) sum += a[l * p.a.column] * b[l];
        T& to = c[j * p.c.column];
        to = (p.add ? to : T{0}) + p.alpha * sum;
      }
      continue;
    }
    if (!p.add)
      for (int64_t j = 0; j < p.n; ++j) c[j * p.c.column] = 0;
    // Four rows of B at a time; those beyond the last one contribute nothing.
    for (int64_t l = 0; l < p.k; l += 4) {
      T x[4] = {};
      const T* b[4];
      for (int64_t r = 0; r < 4; ++r) {
        const int64_t at = HWY_MIN(l + r, p.k - 1);
        if (l + r < p.k) x[r] = p.alpha * a[at * p.a.column];
        b[r] = p.b.data + at * p.b.row;
      }
      if (p.c.column == 1)
        for (int64_t j = 0; j < p.n; ++j)
          c[j] += x[0] * b[0][j] + x[1] * b[1][j] + x[2] * b[2][j] + x[3] * b[3][j];
      else
        for (int64_t j = 0; j < p.n; ++j)
          c[j * p.c.column] += x[0] * b[0][j] + x[1] * b[1][j] + x[2] * b[2][j] + x[3] * b[3][j];
    }
  }
}

template <typename T>
void Compute(const ProductPart<T>& p) {
  if constexpr (std::is_integral_v<T>)
    Integers(p);
  else if (p.way == ProductWay::kDots)
    Dots(p);
  else if (p.way == ProductWay::kDirect)
    Direct(p);
  else if (p.way == ProductWay::kTransposed)
    Transposed(p);
  else
    Blocks(p);
}

template <typename T>
void PackOperand(int64_t k, int64_t n, MatrixView<const T> b, T* packed) {
  if (b.column == 1)
    PackAlong(b.data, b.row, k, n, packed);
  else
    PackAcross(b.data, b.column, k, n, T{1}, packed);
}

template <typename T>
void ComputePacked(const ProductPart<T>& p) {
  Multiply<T>(p.m, p.a.data, p.a.row, p.a.column, {p.b.data, p.k, p.n, 0, p.k, 0, p.n}, p.c.data, p.c.row,
              p.add, false);
}

template <typename T>
ProductKernel<T> KernelOf() {
  if constexpr (std::is_floating_point_v<T> && !kHasKernels<T>) return {};
  ProductKernel<T> kernel{LanesOf<T>(), kPanel * LanesOf<T>(), Compute<T>, nullptr, nullptr};
  if constexpr (!std::is_integral_v<T>) kernel.pack = PackOperand<T>, kernel.run_packed = ComputePacked<T>;
  return kernel;
}

ProductKernels FindKernels() {
  return {KernelOf<float>(), KernelOf<double>(), KernelOf<uint32_t>(), KernelOf<uint64_t>()};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

namespace {

template <typename T>
ProductKernel<T> kernel_of() {
  return std::get<ProductKernel<T>>(ORTRAIN_DISPATCH(FindKernels)());
}

// C = beta C
template <typename T>
void scale_rows(int64_t m, int64_t n, T beta, T* c, int64_t c_row) {
  if (beta == T{1}) return;
  for (int64_t i = 0; i < m; ++i, c += c_row) {
    if (beta == T{0})
      std::fill_n(c, n, T{0});
    else
      for (int64_t j = 0; j < n; ++j) c[j] *= beta;
  }
}

// How the result is divided among threads: rows of parts and columns of parts.
struct Grid {
  int64_t rows = 1, columns = 1;
};

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr int64_t kTileRows = 6;

// Each part packs its own B, which costs about as much as multiplying it with 6 rows. A is read as it is
// stored, or packed for each block of B, which costs as much as 6 columns.
Grid grid_of(int64_t m, int64_t n, int64_t panel, int64_t a_block, int64_t threads) {
  Grid best;
  int64_t least = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const int64_t columns = threads / rows;
    const int64_t own_rows = ceil_divide(ceil_divide(m, kTileRows), rows) * kTileRows;
    const int64_t own_columns = ceil_divide(ceil_divide(n, panel), columns) * panel;
    const int64_t a_columns = a_block > 0 ? ceil_divide(own_columns, a_block) * kTileRows : 0;
    const int64_t cost = (own_rows + kTileRows) * own_columns + own_rows * a_columns;
    if (rows == 1 || cost < least) best = {rows, columns}, least = cost;
  }
  return best;
}

// Up to so many rows, a B with contiguous rows is read as it is stored.
int64_t few_rows(int64_t n, int64_t panel, size_t element) {
  const bool narrow = panel * static_cast<int64_t>(element) <= tuning::kNarrowPanel;
  return narrow && n > tuning::kFewPanels * panel ? tuning::kFewNarrowRows : tuning::kFewRows;
}

template <typename T>
void multiply_typed(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b,
                    T beta, T* c, int64_t c_row, int threads) {
  if (m <= 0 || n <= 0) return;
  if (k <= 0 || beta != T{0}) scale_rows(m, n, beta, c, c_row);
  if (k <= 0) return;
  MatrixView<T> to{c, c_row, 1};
  if (n == 1) {  // Cᵀ = Bᵀ Aᵀ, a row
    std::swap(a, b);
    std::swap(a.row, a.column), std::swap(b.row, b.column), std::swap(to.row, to.column);
    std::swap(m, n);
  }
  // The stride of an axis of size 1 is meaningless, so any convenient one can be used.
  if (k == 1) a.column = 1;
  if (m == 1) a.row = 1;
  if (n == 1) b.column = 1;
  if (k == 1 && b.column != 1) b.row = 1;
  const bool rows = b.column == 1;
  const ProductKernel<T> kernel = kernel_of<T>();
  ProductWay way = ProductWay::kPacked;
  if (rows && m <= few_rows(n, kernel.panel, sizeof(T))) way = ProductWay::kDirect;
  const int64_t moved = capped_product({tuning::kTransposedGain, m, k + n});  // instead of k n
  if (!rows && (m == 1 || (m <= tuning::kFewDots && a.column == 1)))
    way = ProductWay::kDots;
  else if (!rows && m * k <= tuning::kTransposedOperand && moved <= n * k)
    way = ProductWay::kTransposed;
  const int64_t work = m * n * k / tuning::kMultiplications + m * k + k * n + m * n;
  const bool packs_a = way == ProductWay::kPacked && is_far<T>(a.column) && n > kernel.panel;
  // Columns of parts are whole panels, or whole tiles of Cᵀ.
  const int64_t unit = way == ProductWay::kTransposed ? kTileRows : kernel.panel;
  // Rounded, so that two threads share one and a half grains: products of 64 x 500 x 10 elements then take 7
  // to 17 us instead of 13 to 20 (Zen 3).
  const int64_t a_block = packs_a ? kBlockColumns<T> : 0;
  const Grid grid =
      grid_of(m, n, unit, a_block, std::clamp<int64_t>((work + kGrain / 2) / kGrain, 1, threads));
  const int64_t parts = grid.rows * grid.columns;
  // A part is computed as a whole, or in pieces if it is divided (runtime/division.h).
  const Grid within = grid_of(m / grid.rows, n / grid.columns, unit, a_block,
                              std::clamp<int64_t>(work / kGrain / (4 * parts), 1, Division::kPieces));
  const int64_t pieces = within.rows * within.columns;
  const int64_t tiles = ceil_divide(m, kTileRows), units = ceil_divide(n, unit);
  share_among(parts, parts * pieces, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end;) {
      const int64_t part = at / pieces, piece = at % pieces;
      int64_t x = part / grid.columns, y = part % grid.columns;
      Grid of = grid;
      if (piece == 0 && end - at >= pieces) {
        at += pieces;
      } else {
        x = x * within.rows + piece / within.columns, y = y * within.columns + piece % within.columns;
        of.rows *= within.rows, of.columns *= within.columns;
        ++at;
      }
      const int64_t row = tiles * x / of.rows * kTileRows, column = units * y / of.columns * unit;
      const int64_t row_end = std::min(m, tiles * (x + 1) / of.rows * kTileRows);
      const int64_t column_end = std::min(n, units * (y + 1) / of.columns * unit);
      if (row >= row_end || column >= column_end) continue;
      kernel.run({way,
                  row_end - row,
                  column_end - column,
                  k,
                  alpha,
                  {a.data + row * a.row, a.row, a.column},
                  {b.data + column * b.column, b.row, b.column},
                  {to.data + row * to.row + column * to.column, to.row, to.column},
                  beta != T{0}});
    }
  });
}

}  // namespace

template <typename T>
void multiply(int64_t m, int64_t n, int64_t k, T alpha, MatrixView<const T> a, MatrixView<const T> b, T beta,
              T* c, int64_t c_row, int threads) {
  if constexpr (std::is_integral_v<T>) {
    // Signed integers wrap around like unsigned ones.
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    const auto bits = [](MatrixView<const T> v) {
      return MatrixView<const U>{reinterpret_cast<const U*>(v.data), v.row, v.column};
    };
    multiply_typed<U>(m, n, k, static_cast<U>(alpha), bits(a), bits(b), static_cast<U>(beta),
                      reinterpret_cast<U*>(c), c_row, threads);
  } else {
    multiply_typed<T>(m, n, k, alpha, a, b, beta, c, c_row, threads);
  }
}

template <typename T>
int64_t packed_size(int64_t k, int64_t n) {
  const int64_t lanes = kernel_of<T>().lanes;
  return k * ceil_divide(n, lanes) * lanes;
}

template <typename T>
void pack(int64_t k, int64_t n, MatrixView<const T> b, T* packed) {
  const ProductKernel<T> kernel = kernel_of<T>();
  parallel_for(ceil_divide(n, kernel.panel), kernel.panel * k, [&](int64_t begin, int64_t end) {
    const int64_t column = begin * kernel.panel, columns = std::min(n, end * kernel.panel) - column;
    kernel.pack(k, columns, {b.data + column * b.column, b.row, b.column}, packed + column * k);
  });
}

template <typename T>
void multiply_packed(int64_t m, int64_t n, int64_t k, MatrixView<const T> a, const T* packed, bool add, T* c,
                     int64_t c_row) {
  kernel_of<T>().run_packed({ProductWay::kPacked, m, n, k, T{1}, a, {packed, 0, 0}, {c, c_row, 1}, add});
}

#define ORTRAIN_PACKED(T)                                                                              \
  template int64_t packed_size<T>(int64_t, int64_t);                                                   \
  template void pack<T>(int64_t, int64_t, MatrixView<const T>, T*);                                    \
  template void multiply_packed<T>(int64_t, int64_t, int64_t, MatrixView<const T>, const T*, bool, T*, \
                                   int64_t)
ORTRAIN_PACKED(float);
ORTRAIN_PACKED(double);

#define ORTRAIN_MULTIPLY(T)                                                                                \
  template void multiply<T>(int64_t, int64_t, int64_t, T, MatrixView<const T>, MatrixView<const T>, T, T*, \
                            int64_t, int)
ORTRAIN_MULTIPLY(float);
ORTRAIN_MULTIPLY(double);
ORTRAIN_MULTIPLY(int32_t);
ORTRAIN_MULTIPLY(int64_t);
ORTRAIN_MULTIPLY(uint32_t);
ORTRAIN_MULTIPLY(uint64_t);

}  // namespace ortrain
#endif
