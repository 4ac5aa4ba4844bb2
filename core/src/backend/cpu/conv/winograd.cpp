// Winograd's convolution: transforms of tiles, and the products between them
// (backend/cpu/matmul/product_tiles-inl.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/winograd.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <type_traits>

#include "backend/cpu/conv/winograd.h"
#include "backend/cpu/conv/winograd_transforms-inl.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_WINOGRAD_TYPES
#define ORTRAIN_WINOGRAD_TYPES
namespace ortrain {

// Matrices, one per element of a transformed tile: `step` elements from one to the next, `row` from row to
// row.
struct TileMatrices {
  float* data;
  int64_t step, row;
  TileMatrices at(int64_t r, int64_t c) const { return {data + r * row + c, step, row}; }
};

// Packed right operands [depth, columns], `step` elements apart; of weights, the rows from `first` on.
struct TilePanels {
  float* data;
  int64_t step, depth, first;
};

struct Interval {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

struct WinogradFunctions {
  int64_t lanes, panel;  // elements of a vector and of a row of a packed panel
  int64_t taps;          // elements of a transformed tile
  // Rows `depth` of the columns `columns` of G W Gᵀ, or with `transposed` of those with channels and filters
  // swapped and the windows rotated by half a turn.
  void (*weights)(const WinogradSizes&, const float* w, bool transposed, Interval depth, Interval columns,
                  const TilePanels& u);
  // Bᵀ X B of tiles.
  void (*data)(const WinogradSizes&, StoredInput x, Interval tiles, const TileMatrices& v);
  // M = or += V U, only the columns `columns` of U.
  void (*products)(int64_t tiles, Interval columns, const TileMatrices& v, const TilePanels& u, bool add,
                   const TileMatrices& m);
  // Aᵀ M A with the bias, if it is not null; added to Y if `add`; with Relu if `relu`.
  void (*results)(const WinogradSizes&, const TileMatrices& m, Interval tiles, Interval columns,
                  const float* bias, bool add, bool relu, StoredOutput y);
  // A dY Aᵀ of the filters `columns`.
  void (*output_gradients)(const WinogradSizes&, StoredInput dy, Interval tiles, Interval columns,
                           const TilePanels& z);
  // S = or += Vᵀ Z.
  void (*weight_products)(int64_t channels, int64_t tiles, Interval columns, const TileMatrices& v,
                          const TilePanels& z, bool add, const TileMatrices& s);
  // dW = or += Gᵀ S G, for the sum of `parts` of S that are `part` elements apart; row 0 of S is channel
  // `first`.
  void (*weight_results)(const WinogradSizes&, const TileMatrices& s, int64_t parts, int64_t part,
                         Interval channels, int64_t first, Interval columns, bool add, float* dw);
};

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// The number of tiles of `tile` x `tile` results.
inline int64_t tile_count(const WinogradSizes& s, int64_t tile) {
  return s.batch * divide_up(s.rows, tile) * divide_up(s.columns, tile);
}

// The position of tile t: its image, and the first row and column of its results.
struct TilePlace {
  int64_t image, row, column;
  TilePlace(const WinogradSizes& s, int64_t t);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// Where the panel of a column begins, and how wide its rows are, in an operand of `columns` columns.
HWY_INLINE float* PanelOf(const TilePanels& u, int64_t column, int64_t columns, int64_t& width) {
  const int64_t panel = kPanel * LanesOf<float>(), j = column / panel * panel;
  width = HWY_MIN(panel, columns - j);
  return u.data + j * u.depth + (column - j);
}

// The transform needs vectors of columns of U, which are filters, but neighbors in memory are channels:
// squares of weights are transposed first. Each is a few bytes of many rows, so the next cache line of each
// row is prefetched: 512 channels of 4 x 4 then take 0.88 of the time, the gradient of the data 0.81, and
// that of the weights, whose rows are prefetched too, 0.79 (16 images, one thread, Cascade Lake). If the next
// square is prefetched instead, the convolution takes 1.08 (Zen 3, weights in memory).
template <class Tile>
void ForwardWeights(const WinogradSizes& s, const float* w, Interval depth, Interval columns,
                    const TilePanels& u) {
  const F32 d;
  const int64_t lanes = LanesOf<float>(), square = lanes * lanes;
  constexpr int64_t kAhead = 64 / sizeof(float);
  HWY_ALIGN float across[9 * 16 * 16];
  for (int64_t i = depth.begin; i < depth.end; i += lanes)
    for (int64_t j = columns.begin; j < columns.end; j += lanes) {
      const float* next = w + j * 9 * s.channels + i + kAhead;
      for (int64_t tap = 0; tap < 9; ++tap) {
        PackAcross(w + (j * 9 + tap) * s.channels + i, 9 * s.channels, lanes, lanes, 1.0f,
                   across + tap * square);
        for (int64_t r = 0; r < lanes; ++r) hwy::Prefetch(next + (r * 9 + tap) * s.channels);
      }
      for (int64_t r = 0; r < lanes; ++r) {
        int64_t width;
        float* to = PanelOf(u, j - columns.begin, columns.size(), width) + (i + r - u.first) * width;
        StoreSquare<typename Tile::Window>(
            [&](int a, int b) HWY_ATTR { return hn::LoadU(d, across + (3 * a + b) * square + r * lanes); },
            to, u.step);
      }
    }
}

// The weights of a transposed convolution, whose windows are rotated. The columns are the channels of W.
template <class Tile>
void TransposedWeights(const WinogradSizes& s, const float* w, Interval depth, Interval columns,
                       const TilePanels& u) {
  const F32 d;
  const int64_t lanes = LanesOf<float>();
  constexpr int64_t kAhead = 4;  // with 1, the gradient of 512 channels of 4 x 4 takes 1.06 (Zen 3)
  for (int64_t i = depth.begin; i < depth.end; ++i)
    for (int64_t j = columns.begin; j < columns.end; j += lanes) {
      const float* from = w + i * 9 * s.filters + j;
      for (int64_t tap = 0; tap < 9; ++tap) hwy::Prefetch(from + (9 * kAhead + tap) * s.filters);
      int64_t width;
      float* to = PanelOf(u, j - columns.begin, columns.size(), width) + (i - u.first) * width;
      StoreSquare<typename Tile::Window>(
          [&](int r, int k) HWY_ATTR { return hn::LoadU(d, from + (8 - (3 * r + k)) * s.filters); }, to,
          u.step);
    }
}

template <class Tile>
void Weights(const WinogradSizes& s, const float* w, bool transposed, Interval depth, Interval columns,
             const TilePanels& u) {
  transposed ? TransposedWeights<Tile>(s, w, depth, columns, u)
             : ForwardWeights<Tile>(s, w, depth, columns, u);
}

// Prefetches `size` x `size` values with channels last at `channel`, in rows of `across`, for the next tile,
// without the columns before `first`. Processors do not foresee these addresses: with 64 channels of 32 x 32,
// the convolution and its gradients take 0.86 to 0.91 of the time (16 images, one thread, Zen 3). Not
// measured with longer vectors or bfloat16.
template <typename T>
HWY_INLINE void PrefetchTile(const T* next, int64_t across, int64_t channels, int first, int size,
                             int64_t channel) {
  if constexpr (HWY_MAX_BYTES <= 32 && std::is_same_v<T, float>) {
    if (channel % 16 != 0) return;  // in the line of the channels before
    HWY_UNROLL(1)
    for (int r = 0; r < size; ++r) {
      HWY_UNROLL(1)
      for (int k = first; k < size; ++k) hwy::Prefetch(next + (r * across + k) * channels + channel);
    }
  }
}

template <class Tile, typename T>
void DataOf(const WinogradSizes& s, const T* x, Interval tiles, const TileMatrices& v) {
  const F32 d;
  const int64_t lanes = LanesOf<float>();
  TilePlace after(s, tiles.begin);
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TilePlace place = after;
    after = TilePlace(s, t + 1);
    const int64_t h = place.row - s.top, l = place.column - s.left;
    const bool inside = h >= 0 && l >= 0 && h + Tile::kTaps <= s.height && l + Tile::kTaps <= s.width;
    const T* next =
        x + ((after.image * s.height + after.row - s.top) * s.width + after.column - s.left) * s.channels;
    for (int64_t c = 0; c < s.channels; c += lanes) {
      // The first two columns are mostly the last ones of this tile.
      PrefetchTile(next, s.width, s.channels, 2, Tile::kTaps, c);
      const T* image = x + place.image * s.height * s.width * s.channels + c;
      float* to = v.data + (t - tiles.begin) * v.row + c;
      const auto element = [&](int r, int k) HWY_ATTR {
        return LoadUpTo(d, image + ((h + r) * s.width + l + k) * s.channels, lanes);
      };
      if (inside) {
        StoreSquare<typename Tile::Data>(element, to, v.step);
      } else {
        StoreSquare<typename Tile::Data>(
            [&](int r, int k) HWY_ATTR {
              const bool there = h + r >= 0 && h + r < s.height && l + k >= 0 && l + k < s.width;
              return there ? element(r, k) : hn::Zero(d);
            },
            to, v.step);
      }
    }
  }
}

// Panels of U with kProducts rows stay in the first-level cache; they take 16 KiB with AVX2.
template <class Tile>
void Products(int64_t tiles, Interval columns, const TileMatrices& v, const TilePanels& u, bool add,
              const TileMatrices& m) {
  constexpr int64_t kProducts = HWY_TARGET == HWY_AVX2 ? kDepth : Tile::kDepth;
  for (int64_t e = 0; e < Tile::kTaps * Tile::kTaps; ++e)
    for (int64_t begin = 0; begin < u.depth; begin += kProducts)
      Multiply<float>(tiles, v.data + e * v.step + begin, v.row, 1,
                      {u.data + e * u.step, u.depth, columns.size(), begin,
                       HWY_MIN(begin + kProducts, u.depth), 0, columns.size()},
                      m.data + e * m.step, m.row, add || begin > 0, false, 1.0f, 0, Tile::kDepth);
}

template <class Tile, typename T>
void ResultsOf(const WinogradSizes& s, const TileMatrices& m, Interval tiles, Interval columns,
               const float* bias, bool add, bool relu, T* y) {
  const F32 d;
  const int64_t lanes = LanesOf<float>();
  TilePlace after(s, tiles.begin);
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TilePlace at = after;
    after = TilePlace(s, t + 1);
    const int64_t rows = s.rows - at.row, across = s.columns - at.column;
    const T* next = y + ((after.image * s.rows + after.row) * s.columns + after.column) * s.filters;
    for (int64_t c = columns.begin; c < columns.end; c += lanes) {
      PrefetchTile(next, s.columns, s.filters, 0, Tile::kResults, c);
      const float* from = m.data + (t - tiles.begin) * m.row + (c - columns.begin);
      const auto shift = bias ? hn::LoadU(d, bias + c) : hn::Zero(d);
      T* to = y + ((at.image * s.rows + at.row) * s.columns + at.column) * s.filters + c;
      const auto element = [&](int r, int k)
                               HWY_ATTR { return hn::LoadU(d, from + (Tile::kTaps * r + k) * m.step); };
      TransformSquare<typename Tile::Results>(element, [&](int r, int k, Vec<F32> value) HWY_ATTR {
        if (r >= rows || k >= across) return;
        T* place = to + (r * s.columns + k) * s.filters;
        value = hn::Add(value, shift);
        if (add) value = hn::Add(value, LoadUpTo(d, place, lanes));
        if (relu) value = hn::IfThenElse(hn::Lt(value, hn::Zero(d)), hn::Zero(d), value);
        StoreUpTo(value, d, place, lanes);
      });
    }
  }
}

template <class Tile, typename T>
void OutputGradientsOf(const WinogradSizes& s, const T* dy, Interval tiles, Interval columns,
                       const TilePanels& z) {
  const F32 d;
  const int64_t lanes = LanesOf<float>();
  TilePlace after(s, tiles.begin);
  for (int64_t t = tiles.begin; t < tiles.end; ++t) {
    const TilePlace at = after;
    after = TilePlace(s, t + 1);
    const int64_t rows = s.rows - at.row, across = s.columns - at.column;
    const T* next = dy + ((after.image * s.rows + after.row) * s.columns + after.column) * s.filters;
    for (int64_t c = columns.begin; c < columns.end; c += lanes) {
      PrefetchTile(next, s.columns, s.filters, 0, Tile::kResults, c);
      const T* from = dy + ((at.image * s.rows + at.row) * s.columns + at.column) * s.filters + c;
      int64_t width;
      float* to = PanelOf(z, c - columns.begin, columns.size(), width) + (t - tiles.begin) * width;
      StoreSquare<typename Tile::OutputGradient>(
          [&](int r, int k) HWY_ATTR {
            return r < rows && k < across ? LoadUpTo(d, from + (r * s.columns + k) * s.filters, lanes)
                                          : hn::Zero(d);
          },
          to, z.step);
    }
  }
}

template <class Tile>
void WeightProducts(int64_t channels, int64_t tiles, Interval columns, const TileMatrices& v,
                    const TilePanels& z, bool add, const TileMatrices& s) {
  for (int64_t e = 0; e < Tile::kTaps * Tile::kTaps; ++e)
    Multiply<float>(channels, v.data + e * v.step, 1, v.row,
                    {z.data + e * z.step, z.depth, columns.size(), 0, tiles, 0, columns.size()},
                    s.data + e * s.step, s.row, add, false);
}

// dW of one vector of filters: Gᵀ S G of a channel of S at `from`; tap t goes to `to + t * step`.
template <class Tile>
HWY_INLINE void ContractWindow(const TileMatrices& s, int64_t parts, int64_t part, const float* from,
                               float* to, int64_t step) {
  const F32 d;
  const auto element = [&](int r, int k) HWY_ATTR {
    const float* at = from + (Tile::kTaps * r + k) * s.step;
    auto sum = hn::LoadU(d, at);
    for (int64_t p = 1; p < parts; ++p) sum = hn::Add(sum, hn::LoadU(d, at + p * part));
    return sum;
  };
  StoreSquare<typename Tile::WeightGradient>(element, to, step);
}

template <class Tile>
void WeightResults(const WinogradSizes& sizes, const TileMatrices& s, int64_t parts, int64_t part,
                   Interval channels, int64_t first, Interval columns, bool add, float* dw) {
  const F32 d;
  const int64_t lanes = LanesOf<float>();
  const auto from = [&](int64_t m, int64_t c) { return s.data + (c - first) * s.row + (m - columns.begin); };
  // Vectors are filters, but neighbors in memory are channels: squares are transposed.
  HWY_ALIGN float taps[9 * 16 * 16], across[16 * 16];
  for (int64_t m = columns.begin; m < columns.end; m += lanes)
    for (int64_t c = channels.begin; c < channels.end; c += lanes) {
      for (int64_t i = 0; i < lanes; ++i) {
        for (int64_t tap = 0; tap < 9; ++tap) hwy::Prefetch(dw + ((m + i) * 9 + tap) * sizes.channels + c);
        ContractWindow<Tile>(s, parts, part, from(m, c + i), taps + i * lanes, lanes * lanes);
      }
      for (int64_t tap = 0; tap < 9; ++tap) {
        PackAcross(taps + tap * lanes * lanes, lanes, lanes, lanes, 1.0f, across);
        for (int64_t i = 0; i < lanes; ++i) {
          float* to = dw + ((m + i) * 9 + tap) * sizes.channels + c;
          auto sum = hn::LoadU(d, across + i * lanes);
          if (add) sum = hn::Add(sum, hn::LoadU(d, to));
          hn::StoreU(sum, d, to);
        }
      }
    }
}

// Calls f with the values in their stored type.
template <class F>
void Visit(StoredInput x, const F& f) {
  x.bf16 ? f(x.halves()) : f(x.floats());
}
template <class F>
void Visit(StoredOutput y, const F& f) {
  y.bf16 ? f(y.halves()) : f(y.floats());
}

template <class Tile>
void Data(const WinogradSizes& s, StoredInput x, Interval tiles, const TileMatrices& v) {
  Visit(x, [&](const auto* values) { DataOf<Tile>(s, values, tiles, v); });
}
template <class Tile>
void Results(const WinogradSizes& s, const TileMatrices& m, Interval tiles, Interval columns,
             const float* bias, bool add, bool relu, StoredOutput y) {
  Visit(y, [&](auto* values) { ResultsOf<Tile>(s, m, tiles, columns, bias, add, relu, values); });
}
template <class Tile>
void OutputGradients(const WinogradSizes& s, StoredInput dy, Interval tiles, Interval columns,
                     const TilePanels& z) {
  Visit(dy, [&](const auto* values) { OutputGradientsOf<Tile>(s, values, tiles, columns, z); });
}
template <class Tile>
WinogradFunctions FunctionsOf() {
  return {LanesOf<float>(),
          kPanel * LanesOf<float>(),
          Tile::kTaps * Tile::kTaps,
          Weights<Tile>,
          Data<Tile>,
          Products<Tile>,
          Results<Tile>,
          OutputGradients<Tile>,
          WeightProducts<Tile>,
          WeightResults<Tile>};
}
WinogradFunctions FindWinograd(int64_t tile) {
  return tile == SmallTile::kResults ? FunctionsOf<SmallTile>() : FunctionsOf<LargeTile>();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "runtime/threads.h"

namespace ortrain {

TilePlace::TilePlace(const WinogradSizes& s, int64_t t) {
  const int64_t across = divide_up(s.columns, s.tile), down = divide_up(s.rows, s.tile);
  image = t / (across * down), row = t / across % down * s.tile, column = t % across * s.tile;
}

namespace {

WinogradFunctions functions(const WinogradSizes& s) { return ORTRAIN_DISPATCH(FindWinograd)(s.tile); }

constexpr int64_t kPad = tuning::kWinogradPad;

int64_t round_up(int64_t n, int64_t to) { return divide_up(n, to) * to; }

// The size of the parts if n is cut into equal parts of at most `most`.
int64_t equal_part(int64_t n, int64_t most) {
  const int64_t parts = (n + most - 1) / std::max<int64_t>(1, most);
  return (n + parts - 1) / std::max<int64_t>(1, parts);
}

// Calls f(number, part of [0, n)) on all threads.
template <typename F>
void share(int64_t n, int threads, const F& f) {
  share_among(threads, n, [&](int64_t own, int64_t begin, int64_t end) { f(own, Interval{begin, end}); });
}

// As above, but calls f once for each part, because it has sums of its own.
template <typename F>
void share_sums(int64_t n, int threads, const F& f) {
  const int64_t parts = std::min<int64_t>(n, threads);
  parallel_for(parts, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) f(p, Interval{n * p / parts, n * (p + 1) / parts});
  });
}

// Calls f(part) for parts of at most `step`.
template <typename F>
void in_chunks(Interval all, int64_t step, const F& f) {
  for (int64_t i = all.begin; i < all.end; i += step) f(Interval{i, std::min(i + step, all.end)});
}

// Shares the pairs of parts of `outer` and of `inner` among the threads: f(number, part of outer, part of
// inner, whether the thread had another part of outer before).
template <typename F>
void share_pairs(Interval outer, int64_t outer_step, Interval inner, int64_t inner_step, int threads,
                 const F& f) {
  const auto part_of = [](Interval all, int64_t step, int64_t i) {
    return Interval{all.begin + i * step, std::min(all.begin + (i + 1) * step, all.end)};
  };
  const int64_t across = (inner.size() + inner_step - 1) / inner_step;
  share((outer.size() + outer_step - 1) / outer_step * across, threads, [&](int64_t number, Interval part) {
    for (int64_t i = part.begin; i < part.end; ++i)
      f(number, part_of(outer, outer_step, i / across), part_of(inner, inner_step, i % across),
        i == part.begin || i % across == 0);
  });
}

// How the work is divided. If the transformed weights fit in a cache, all of them are transformed first, and
// the tiles are divided among the threads. Otherwise many tiles of data are transformed first, and the
// columns of the weights are divided among the threads, which transform one slice at a time.
struct Plan {
  bool by_columns;
  // Numbers of tiles: all; those of one thread or transformed together; those whose products are computed
  // together.
  int64_t tiles, some, chunk;
  // How many of the weights' columns and rows are processed together; rows: `slice` in the gradient, else
  // `depth`.
  int64_t columns, slice, depth;
  int64_t row;  // of V
  // The distance from one matrix to the next: of data; of products or gradients.
  int64_t v_step, m_step;

  int64_t taps, unit;  // elements of a transformed tile; channels and filters are multiples of this many

  Plan(const WinogradSizes& s, int threads) : tiles(tile_count(s, s.tile)), row(s.channels + kPad) {
    constexpr int64_t kWidth = sizeof(float);
    const WinogradFunctions f = functions(s);
    taps = f.taps, unit = f.lanes;
    by_columns = taps * s.channels * s.filters * kWidth > 3 * tuning::kOwnCacheBytes;
    columns = by_columns ? std::min(f.panel, s.filters) : s.filters;
    some = by_columns ? equal_part(tiles, tuning::kSharedCacheBytes / (taps * row * kWidth))
                      : (tiles + threads - 1) / threads;
    const int64_t fitting =
        tuning::kOwnCacheBytes / (taps * ((by_columns ? 0 : row) + columns + kPad) * kWidth);
    chunk = round_up(equal_part(some, std::clamp(fitting, tuning::kLeastChunk, tuning::kLargestChunk)), 6);
    slice = depth = s.channels;
    if (by_columns) {
      const int64_t most = tuning::kOwnCacheBytes / 2 / (taps * columns * kWidth);
      slice = std::clamp(most / unit * unit, unit, s.channels);
      if (some <= chunk) depth = slice;  // otherwise every chunk would transform the weights again
    }
    v_step = (by_columns ? some : chunk) * row + kPad;
    m_step = chunk * (columns + kPad) + kPad;
  }

  int64_t u_step() const { return depth * columns + kPad; }         // of weights
  int64_t gradient_step() const { return slice * columns + kPad; }  // of their gradient
  // Elements of scratch memory: shared by all threads, and per thread.
  int64_t shared() const { return taps * (by_columns ? v_step : u_step()); }
  int64_t own() const { return taps * ((by_columns ? u_step() : v_step) + m_step); }
  int64_t gradient_shared() const { return by_columns ? taps * v_step : 0; }
  int64_t gradient_own() const { return taps * (gradient_step() + m_step + (by_columns ? 0 : v_step)); }
};

// V of the tiles, computed by all threads.
void share_data(const WinogradSizes& s, const WinogradFunctions& f, StoredInput x, Interval tiles,
                const TileMatrices& v, int threads) {
  share(tiles.size(), threads, [&](int64_t, Interval part) {
    f.data(s, x, {tiles.begin + part.begin, tiles.begin + part.end}, v.at(part.begin, 0));
  });
}

void convolve(const WinogradSizes& s, int threads, StoredInput x, const float* w, bool transposed,
              const float* bias, bool add, bool relu, StoredOutput y, float* scratch) {
  const WinogradFunctions f = functions(s);
  const Plan plan(s, threads);
  float* const own = scratch + plan.shared();
  if (!plan.by_columns) {
    const TilePanels u{scratch, plan.u_step(), s.channels, 0};
    const Interval columns{0, s.filters};
    share(s.channels / plan.unit, threads, [&](int64_t, Interval part) {
      f.weights(s, w, transposed, {part.begin * plan.unit, part.end * plan.unit}, columns, u);
    });
    share(plan.tiles, threads, [&](int64_t thread, Interval part) {
      const TileMatrices v{own + thread * plan.own(), plan.v_step, plan.row};
      const TileMatrices m{v.data + plan.taps * v.step, plan.m_step, s.filters + kPad};
      in_chunks(part, plan.chunk, [&](Interval tiles) {
        f.data(s, x, tiles, v);
        f.products(tiles.size(), columns, v, u, false, m);
        f.results(s, m, tiles, columns, bias, add, relu, y);
      });
    });
    return;
  }
  in_chunks({0, plan.tiles}, plan.some, [&](Interval some) {
    const TileMatrices v{scratch, plan.v_step, plan.row};
    share_data(s, f, x, some, v, threads);
    const auto work = [&](int64_t thread, Interval columns, Interval tiles, bool fresh) {
      float* const memory = own + thread * plan.own();
      const TileMatrices m{memory + plan.taps * plan.u_step(), plan.m_step, columns.size() + kPad};
      in_chunks({0, s.channels}, plan.depth, [&](Interval depth) {
        const TilePanels u{memory, plan.u_step(), depth.size(), depth.begin};
        if (fresh || plan.depth < s.channels) f.weights(s, w, transposed, depth, columns, u);
        f.products(tiles.size(), columns, v.at(tiles.begin - some.begin, depth.begin), u, depth.begin > 0, m);
      });
      f.results(s, m, tiles, columns, bias, add, relu, y);
    };
    share_pairs({0, s.filters}, plan.columns, some, plan.chunk, threads, work);
  });
}

}  // namespace

int64_t winograd_tile(const WinogradSizes& s, int threads) {
  const int64_t lanes = functions(s).lanes;
  if (lanes > 16) return 0;  // squares of weights are at most 16 x 16
  if (s.channels % lanes != 0 || s.filters % lanes != 0) return 0;
  const int64_t small = tile_count(s, 2), large = tile_count(s, 4), results = s.batch * s.rows * s.columns;
  if (std::min(s.channels, s.filters) < tuning::kLeastChannels ||
      s.channels * s.filters < tuning::kLeastPairs || small < tuning::kLeastTiles * threads ||
      small * s.channels * s.filters < tuning::kLeastProducts || small * tuning::kResultsPerTile > results)
    return 0;
  return large >= tuning::kLeastLargeTiles && large * tuning::kResultsPerLargeTile <= results ? 4 : 2;
}

WinogradSizes for_weight_gradient(WinogradSizes s) {
  if (s.columns < tuning::kLeastLine) s.tile = 2;
  return s;
}

size_t winograd_scratch(const WinogradSizes& s, int threads) {
  const Plan plan(s, threads);
  return static_cast<size_t>(plan.shared() + threads * plan.own()) * sizeof(float);
}

size_t winograd_weights_scratch(const WinogradSizes& s, int threads) {
  const Plan plan(s, threads);
  return static_cast<size_t>(plan.gradient_shared() + threads * plan.gradient_own()) * sizeof(float);
}

void winograd_forward(const WinogradSizes& s, int threads, StoredInput x, const float* w, const float* bias,
                      bool add, bool relu, StoredOutput y, void* scratch) {
  convolve(s, threads, x, w, false, bias, add, relu, y, static_cast<float*>(scratch));
}

void winograd_backward_data(const WinogradSizes& s, int threads, StoredInput dy, const float* w,
                            StoredOutput dx, void* scratch) {
  convolve(s.transposed(), threads, dy, w, true, nullptr, false, false, dx, static_cast<float*>(scratch));
}

void winograd_backward_weights(const WinogradSizes& s, int threads, StoredInput x, StoredInput dy, float* dw,
                               void* scratch) {
  const WinogradFunctions f = functions(s);
  const Plan plan(s, threads);
  float* const shared = static_cast<float*>(scratch);
  float* const own = shared + plan.gradient_shared();
  if (!plan.by_columns) {  // each thread sums over its tiles
    const Interval columns{0, s.filters};
    const TileMatrices first{own, plan.gradient_step(), s.filters};
    share_sums(plan.tiles, threads, [&](int64_t thread, Interval part) {
      const TileMatrices sums{own + thread * plan.gradient_own(), first.step, first.row};
      const TileMatrices v{sums.data + plan.taps * sums.step, plan.v_step, plan.row};
      const TilePanels z{v.data + plan.taps * v.step, plan.m_step, plan.chunk, 0};
      in_chunks(part, plan.chunk, [&](Interval tiles) {
        f.data(s, x, tiles, v);
        f.output_gradients(s, dy, tiles, columns, z);
        f.weight_products(s.channels, tiles.size(), columns, v, z, tiles.begin > part.begin, sums);
      });
    });
    const int64_t parts = std::min<int64_t>(plan.tiles, threads);
    share(s.channels / plan.unit, threads, [&](int64_t, Interval part) {
      f.weight_results(s, first, parts, plan.gradient_own(), {part.begin * plan.unit, part.end * plan.unit},
                       0, columns, false, dw);
    });
  } else {
    in_chunks({0, plan.tiles}, plan.some, [&](Interval some) {
      const TileMatrices v{shared, plan.v_step, plan.row};
      share_data(s, f, x, some, v, threads);
      const auto work = [&](int64_t thread, Interval columns, Interval channels, bool fresh) {
        const TileMatrices sums{own + thread * plan.gradient_own(), plan.gradient_step(), columns.size()};
        const TilePanels z{sums.data + plan.taps * sums.step, plan.m_step, plan.chunk, 0};
        in_chunks(some, plan.chunk, [&](Interval tiles) {
          if (fresh || plan.chunk < some.size()) f.output_gradients(s, dy, tiles, columns, z);
          f.weight_products(channels.size(), tiles.size(), columns,
                            v.at(tiles.begin - some.begin, channels.begin), z, tiles.begin > some.begin,
                            sums);
        });
        f.weight_results(s, sums, 1, 0, channels, channels.begin, columns, some.begin > 0, dw);
      };
      share_pairs({0, s.filters}, plan.columns, {0, s.channels}, plan.slice, threads, work);
    });
  }
}

}  // namespace ortrain
#endif
