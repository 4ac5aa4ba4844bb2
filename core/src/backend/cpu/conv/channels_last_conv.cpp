// Compiled at -O3: gradients of weights of few channels take 0.7 of the time (CMakeLists.txt).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/channels_last_conv.cpp"
#include <hwy/foreach_target.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/cpu/bf16_conversion.h"
#include "backend/cpu/conv/channels_last_conv.h"
#include "backend/cpu/conv/clip.h"
#include "backend/cpu/matmul/amx_tiles-inl.h"
#include "backend/cpu/matmul/bf16_pairs-inl.h"
#include "backend/cpu/matmul/multiply.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/checked.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_CHANNELS_LAST_CONV_TYPES
#define ORTRAIN_CHANNELS_LAST_CONV_TYPES
namespace ortrain {

// Operands are floats, or words of two bfloat16 values in the place of floats.
struct ChannelsLastFunctions {
  int64_t lanes, panel;  // floats of a vector and of a row of a packed panel
  // C = or += A B, and then `end` if it is not null; product_tiles-inl.h describes panels, and rows in lines.
  // n is at most a panel; whole vectors of B's rows are read.
  void (*product)(const Lines& lines, int64_t n, const Depth& depth, const float* a, const float* b,
                  int64_t b_row, float* c, bool add, const TileEnd<float>* end);
  // The same for floats whose rows are at a constant distance, as are their elements; A may be stored by
  // tiles.
  void (*even_product)(int64_t m, int64_t n, const Depth& depth, const float* a, int64_t a_row,
                       int64_t a_column, const float* b, int64_t b_row, float* c, int64_t c_row, bool add);
  // Stores A [m, k], whose columns are `column` floats apart, by tiles that are `tile` floats apart.
  void (*store_by_tiles)(const float* a, int64_t column, int64_t m, int64_t k, float* to, int64_t tile);
  // Pack [k, n], at most a panel wide, with k elements: from columns, or rows, that are `row` floats apart.
  void (*pack_columns)(const float* b, int64_t row, int64_t k, int64_t n, float* packed);
  void (*pack_rows)(const float* b, int64_t row, int64_t k, int64_t n, float* packed);
  // See FinishSums; null in a build without kernels for bfloat16.
  void (*finish)(int64_t rows, int64_t n, float* sums, int64_t sums_pitch, const float* bias,
                 const BFloat16* addend, const Activation& activation, int64_t pitch, BFloat16* y);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

void EvenProduct(int64_t m, int64_t n, const Depth& depth, const float* a, int64_t a_row, int64_t a_column,
                 const float* b, int64_t b_row, float* c, int64_t c_row, bool add) {
  Panel<float>(m, n, depth, a, a_row, a_column, b, b_row, c, c_row, add, false, 1.0f);
}

// With operands in pairs.
template <class How>
void ProductInPairs(const Lines& lines, int64_t n, const Depth& depth, const float* a, const float* b,
                    int64_t b_row, float* c, bool add, const TileEnd<float>* end) {
  const hn::ScalableTag<float> d;
  for (const LinePlace* line = lines.lines; line < lines.lines + lines.count; ++line) {
    Panel<float, How>(lines.columns, n, depth, a + line->a, lines.a_row, 1, b, b_row, c + line->c,
                      lines.c_row, add, false, 1.0f);
    for (int64_t i = 0; end && i < lines.columns; ++i)
      ForVectors<float>(n, [&](int64_t j, int64_t count) HWY_ATTR {
        const int64_t place = line->c + i * lines.c_row + j;
        StoreUpTo(Ended(*end, LoadUpTo(d, c + place, count), place, j, count), d, c + place, count);
      });
  }
}

void PackColumnsInPairs(const float* b, int64_t row, int64_t k, int64_t n, float* packed) {
  const int64_t lanes = LanesOf<float>(), stored = (n + lanes - 1) / lanes * lanes;
  HWY_ALIGN uint32_t turned[kDepth * kPanel * hn::MaxLanes(hn::ScalableTag<uint32_t>())];
  for (int64_t p = 0; p < k; p += 2 * kDepth) {
    const int64_t count = HWY_MIN(2 * kDepth, k - p), words = (count + 1) / 2;
    for (int64_t j = 0; j < n; ++j)
      ToWords(b + j * row + p, count, reinterpret_cast<BFloat16*>(turned + j * words));
    PackAcross(turned, words, words, n, uint32_t{1}, reinterpret_cast<uint32_t*>(packed) + p / 2 * stored);
  }
}

void PackColumns(const float* b, int64_t row, int64_t k, int64_t n, float* packed) {
  PackAcross(b, row, k, n, 1.0f, packed);
}

// Y = activation(sums + bias + addend) on rows of n values; bias and addend may be null. Rows of Y and of the
// addend are `pitch` values apart. Overwrites the sums.
void FinishSums(int64_t rows, int64_t n, float* sums, int64_t sums_pitch, const float* bias,
                const BFloat16* addend, const Activation& activation, int64_t pitch, BFloat16* y) {
  const hn::ScalableTag<float> d;
  const Clip clip = clip_of(activation);
  const auto low = hn::Set(d, clip.low), high = hn::Set(d, clip.high);
  for (int64_t row = 0; row < rows; ++row, sums += sums_pitch, y += pitch, addend += addend ? pitch : 0) {
    ForVectors<float>(n, [&](int64_t i, int64_t count) HWY_ATTR {
      auto v = LoadUpTo(d, sums + i, count);
      if (bias) v = hn::Add(v, LoadUpTo(d, bias + i, count));
      if (addend) v = hn::Add(v, LoadUpTo(d, addend + i, count));
      v = ClipTo(d, v, low, high);
      if (clip.complete)
        StoreUpTo(v, d, y + i, count);
      else
        StoreUpTo(v, d, sums + i, count);
    });
    if (clip.complete) continue;
    activation.apply(n, sums);
    ForVectors<float>(n, [&](int64_t i, int64_t count)
                             HWY_ATTR { StoreUpTo(LoadUpTo(d, sums + i, count), d, y + i, count); });
  }
}

ChannelsLastFunctions FindChannelsLast([[maybe_unused]] bool pairs, [[maybe_unused]] Bf16Products with) {
  const int64_t lanes = LanesOf<float>();
  ChannelsLastFunctions f{lanes,
                          kPanel * lanes,
                          PanelOfLines<float>,
                          EvenProduct,
                          StoreByTiles<float>,
                          PackColumns,
                          PackAlong<float>,
                          nullptr};
  if constexpr (kHasKernels<BFloat16>) {
    f.finish = FinishSums;
    if (pairs) {
      f.product = with == Bf16Products::kNone ? ProductInPairs<WidenedPairs> : ProductInPairs<NativePairs>;
#if ORTRAIN_HAS_AMX_TILES
      if (with == Bf16Products::kTiles) f.product = ProductInPairs<TilePairs>;
#endif
      f.pack_columns = PackColumnsInPairs, f.pack_rows = PackPairsAlong<float>;
    }
  }
  return f;
}

bool HasPairs() { return kHasKernels<BFloat16> && kHasNativePairs; }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ChannelsLastFunctions functions(bool pairs = false) {
  static const Bf16Products with = bf16_products();
  return ORTRAIN_DISPATCH(FindChannelsLast)(pairs, with);
}

constexpr int64_t kLongest = 1 << 26;  // elements along an axis; then no size overflows
constexpr int64_t kSlack = 64;         // floats of the largest vector, which products read after the lines
constexpr int64_t kMostLines = 256;    // whose results are computed together

int64_t divided(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t rounded(int64_t n, int64_t to) { return divided(n, to) * to; }

// Floats of kConvPoints results of so many filters, stored by tiles.
int64_t tiles_size(int64_t filters) { return divided(filters, 6) * StoredTile<float>(tuning::kConvPoints); }

// Whether each result reads one point: the same point of X.
bool is_pointwise(const ConvSizes& s) {
  return std::all_of(s.window.begin(), s.window.end(), [](const WindowAxis& a) {
    return a.kernel == 1 && a.stride == 1 && a.before == 0 && a.output == a.input;
  });
}

// A pointwise convolution has one line of all points.
ConvSizes flattened(ConvSizes s) {
  if (!is_pointwise(s)) return s;
  const int64_t points = s.batch * s.output_points();
  s.batch = 1;
  for (WindowAxis& a : s.window) a.input = a.output = 1;
  s.window[2].input = s.window[2].output = points;
  return s;
}

bool is_possible(const ConvSizes& s) {
  if (s.batch <= 0 || s.channels <= 0 || s.filters <= 0) return false;
  return std::all_of(s.window.begin(), s.window.end(), [](const WindowAxis& a) {
    return a.input > 0 && a.output > 0 && a.kernel > 0 && a.input <= kLongest && a.output <= kLongest &&
           a.kernel <= kLongest && a.dilation <= kLongest && a.stride <= kLongest && a.before <= kLongest &&
           capped_product({a.kernel, a.dilation}) <= kLongest;
  });
}

// n values from element `at` on.
void copy_values(StoredInput from, int64_t at, int64_t n, float* to) {
  if (from.bf16)
    widen_bf16(from.halves() + at, to, n);
  else
    std::copy_n(from.floats() + at, n, to);
}
void copy_values(StoredInput from, int64_t at, int64_t n, BFloat16* to) {
  if (from.bf16)
    std::copy_n(from.halves() + at, n, to);
  else
    narrow_bf16(from.floats() + at, to, n);
}

// The number of parts into which each of `tasks` is cut, at most `most`, so that all workers have equal work.
int64_t cuts(int64_t tasks, int64_t workers, int64_t most) {
  if (tasks >= 4 * workers) return 1;
  return std::clamp<int64_t>(workers / std::gcd(tasks, workers), 1, std::max<int64_t>(most, 1));
}

// Whether all results are in one line that reads the source as it is stored.
bool is_in_place(const ConvPass& p) {
  return p.units == 1 && p.rows == 1 && std::all_of(p.axes, p.axes + 3, [](const PassAxis& a) {
           return a.sparse() && a.step == 1 && a.offsets[0] == 0 && a.source == a.count;
         });
}

// A part of the sums of a result: elements of the window that are consecutive in the copied lines, for
// `count` lines.
struct Segment {
  int64_t from, k, count,
      step;           // elements: its place in the copy, its length, the distance between its lines
  int64_t row, rows;  // its rows of the packed weights, and the distance between those of two lines
};

// How the sums of a result are divided into segments. Up to kConvDepth products are added up at once, so that
// the weights stay in the first-level cache while all lines are multiplied with them.
struct Partition {
  int64_t lines, columns;  // of the window
  int64_t runs, length;  // consecutive elements of a line of the window: how many times, and how many floats
  int64_t pieces;        // of a run
  bool merged;           // whether a segment has all lines

  explicit Partition(const ConvPass& p)
      : lines(std::ssize(p.axes[1].taps)), columns(std::ssize(p.axes[2].taps)) {
    const bool together = columns <= 1 || p.axes[2].copied_offset(1) == 1;
    runs = together ? 1 : columns, length = together ? columns * p.depth : p.depth;
    pieces = divided(length, tuning::kConvDepth);
    merged = lines * length <= tuning::kConvDepth;
  }
  int64_t segments(const ConvPass& p) const {
    return p.taps() == 0 ? 0 : std::ssize(p.axes[0].taps) * (merged ? 1 : lines) * runs * pieces;
  }
};

// One line of all results if they are at a constant distance.
Lines joined(const Lines& lines) {
  for (int64_t i = 1; i < lines.count; ++i)
    if (lines.lines[i].a != lines.lines[0].a + i * lines.columns * lines.a_row ||
        lines.lines[i].c != lines.lines[0].c + i * lines.columns * lines.c_row)
      return lines;
  return {lines.lines, 1, lines.count * lines.columns, lines.a_row, lines.c_row};
}

// Calls f(segment) for all sums of the pass. All numbers of elements are multiples of `unit`, like the depth,
// and those of pairs fill tiles of AMX if possible.
template <typename F>
void each_segment(const ConvPass& p, int64_t unit, F&& f) {
  if (p.segments == 0) return;
  const PassAxis &d = p.axes[0], &h = p.axes[1], &w = p.axes[2];
  const Partition by(p);
  const int64_t whole = unit == 2 && by.length % 32 == 0 ? 32 : unit;
  const int64_t pitch = p.width * p.depth, tap_line = by.columns * p.depth;
  const int64_t line_step = by.lines > 1 ? h.copied_offset(1) * pitch : 0;
  for (size_t o = 0; o < d.taps.size(); ++o)
    for (int64_t l = 0; l < (by.merged ? 1 : by.lines); ++l)
      for (int64_t r = 0; r < by.runs; ++r)
        for (int64_t piece = 0; piece < by.pieces; ++piece) {
          const int64_t begin = by.length / whole * piece / by.pieces * whole,
                        end = by.length / whole * (piece + 1) / by.pieces * whole;
          const int64_t from = d.copied_offset(o) * p.height * pitch + l * line_step +
                               w.copied_offset(static_cast<size_t>(r)) * p.depth + begin;
          const int64_t row = (static_cast<int64_t>(o) * by.lines + l) * tap_line + r * p.depth + begin;
          f(Segment{from, end - begin, by.merged ? by.lines : 1, line_step, row, tap_line});
        }
}

}  // namespace

ChannelsLastConvolution::ChannelsLastConvolution(const ConvSizes& sizes, bool pairs)
    : sizes_(flattened(sizes)) {
  if (!is_possible(sizes_)) return;
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t channels = sizes_.channels / sizes_.groups, filters = sizes_.filters / sizes_.groups;
  if (pairs && channels % 2 == 0 && filters % 2 == 0) unit_ = 2;
  const int64_t lanes = functions().lanes, panel = functions().panel;
  const int64_t work = capped_product({sizes_.batch, sizes_.output_points(), sizes_.column_rows(), filters});
  workers_ = std::clamp<int64_t>(work / tuning::kMultiplications / kGrain, 1, max_threads());
  forward_.axes[0] = forward_axis(d), forward_.axes[1] = forward_axis(h), forward_.axes[2] = forward_axis(w);
  weights_ = forward_;
  const bool together = w.kernel > 1 && w.dilation == 1;
  filters_across_ = filters % lanes == 0 && (together ? w.kernel : 1) * channels <= panel / 2;
  // With a stride, a product reads rows of X that are far apart, and a narrow panel needs a small part of
  // each.
  const bool apart = w.stride > 1 && lanes <= 8 && channels >= panel && filters >= tuning::kGatheredApart;
  gathers_ = !filters_across_ && (weights_.taps() == 1 || apart || filters >= tuning::kGatheredFilters);
  plan(forward_, channels, filters, workers_);
  if (gathers_)
    weights_.depth = std::min(channels, tuning::kGatheredChannels);
  else
    plan(weights_, std::min(channels, panel), filters, 1);
  const auto size = [&](const ConvPass& p) {
    return sizes_.groups * p.taps() * p.depth * rounded(p.columns, lanes);
  };
  packed_forward_ = size(forward_);
  int64_t largest =
      std::max(forward_.units * forward_.unit_floats(), weights_.units * weights_.unit_floats());
  for (int64_t i = 0; i < std::min(d.stride, d.input); ++i)
    for (int64_t j = 0; j < std::min(h.stride, h.input); ++j)
      for (int64_t k = 0; k < std::min(w.stride, w.input); ++k) {
        // There is a pass for each offset; more passes than this would take too long to plan.
        if (backward_.size() >= 64) return;
        ConvPass& pass = backward_.emplace_back();
        pass.axes[0] = backward_axis(d, i), pass.axes[1] = backward_axis(h, j),
        pass.axes[2] = backward_axis(w, k);
        plan(pass, filters, channels, workers_);
        pass.packed = packed_backward_;
        packed_backward_ += size(pass);
        largest = std::max(largest, pass.units * pass.unit_floats());
      }
  suits_ = largest <= tuning::kConvLargest;
}

void ChannelsLastConvolution::plan(ConvPass& p, int64_t depth, int64_t columns, int64_t parts) const {
  const PassAxis &d = p.axes[0], &h = p.axes[1], &w = p.axes[2];
  p.depth = depth, p.columns = columns;
  p.line = w.count, p.rows = h.count;
  p.segments = Partition(p).segments(p);
  if (p.taps() == 0) return;
  const auto divide = [](const PassAxis& a, int64_t elements, int64_t least, int64_t most, int64_t multiple) {
    const int64_t fitting = std::min((elements - a.copied(1)) / a.copied_step() + 1, most);
    const int64_t size = std::clamp(fitting, std::min(least, a.count), a.count);
    const int64_t blocks = std::min(rounded(divided(a.count, size), multiple), a.count);
    return divided(a.count, blocks);
  };
  p.outer = d.copied(1);
  // Rows of a tile of the product are results of one line.
  constexpr int64_t kShortest = 24;
  const int64_t images = sizes_.batch * d.count;
  p.line = divide(w, tuning::kConvBlock / std::max<int64_t>(p.outer * h.copied(1) * depth, 1), kShortest,
                  tuning::kConvResults, images * h.count == 1 ? parts : 1);
  p.width = w.copied(p.line);
  p.rows = divide(h, tuning::kConvBlock / std::max<int64_t>(p.outer * p.width * depth, 1), 1,
                  tuning::kConvResults / p.line, 1);
  p.height = h.copied(p.rows);
  if (p.rows < h.count || p.line < w.count) return;
  const int64_t fitting =
      std::clamp<int64_t>(tuning::kConvBlock / std::max<int64_t>(p.unit_floats(), 1), 1, images);
  p.units = divided(images, std::min(rounded(divided(images, fitting), parts), images));
}

int64_t ChannelsLastConvolution::blocks(const ConvPass& p) const {
  return divided(sizes_.batch * p.axes[0].count, p.units) * divided(p.axes[1].count, p.rows) *
         divided(p.axes[2].count, p.line);
}

ChannelsLastConvolution::Block ChannelsLastConvolution::block(const ConvPass& p, int64_t number) const {
  const int64_t across = divided(p.axes[2].count, p.line), down = divided(p.axes[1].count, p.rows);
  Block b;
  b.column = number % across * p.line;
  b.columns = std::min(p.line, p.axes[2].count - b.column);
  b.row = number / across % down * p.rows;
  b.rows = std::min(p.rows, p.axes[1].count - b.row);
  b.unit = number / across / down * p.units;
  b.units = std::min(p.units, sizes_.batch * p.axes[0].count - b.unit);
  return b;
}

template <typename T>
void ChannelsLastConvolution::copy_lines(const ConvPass& p, const Block& b, StoredInput source,
                                         int64_t channels, int64_t channel, int64_t depth, T* lines) const {
  const PassAxis &d = p.axes[0], &h = p.axes[1], &w = p.axes[2];
  const auto place = [](const PassAxis& a, int64_t first, int64_t i) {
    return a.sparse() ? (first + i) * a.step + a.offsets[0] : first * a.step + a.offsets[0] + i;
  };
  const int64_t width = w.copied(b.columns);
  for (int64_t u = 0; u < b.units; ++u) {
    const int64_t image = (b.unit + u) / d.count, result = (b.unit + u) % d.count;
    for (int64_t o = 0; o < p.outer; ++o)
      for (int64_t l = 0; l < h.copied(b.rows); ++l) {
        const int64_t at_d = place(d, result, o), at_h = place(h, b.row, l);
        T* to = lines + ((u * p.outer + o) * p.height + l) * p.width * depth;
        if (at_d < 0 || at_d >= d.source || at_h < 0 || at_h >= h.source) {
          std::fill_n(to, width * depth, T(0.0f));
          continue;
        }
        const int64_t from = ((image * d.source + at_d) * h.source + at_h) * w.source * channels + channel;
        if (w.sparse() || depth != channels) {
          for (int64_t i = 0; i < width; ++i) {
            const int64_t at = place(w, b.column, i);
            if (at >= 0 && at < w.source)
              copy_values(source, from + at * channels, depth, to + i * depth);
            else
              std::fill_n(to + i * depth, depth, T(0.0f));
          }
        } else {
          const int64_t start = place(w, b.column, 0);
          const int64_t first = std::clamp<int64_t>(-start, 0, width),
                        past = std::clamp(w.source - start, first, width);
          std::fill_n(to, first * depth, T(0.0f));
          if (first < past)
            copy_values(source, from + (start + first) * depth, (past - first) * depth, to + first * depth);
          std::fill_n(to + past * depth, (width - past) * depth, T(0.0f));
        }
      }
  }
}

template <typename F>
void ChannelsLastConvolution::each_line(const ConvPass& p, const Block& b, F&& f) const {
  const PassAxis &d = p.axes[0], &h = p.axes[1], &w = p.axes[2];
  for (int64_t u = 0; u < b.units; ++u) {
    const int64_t image = (b.unit + u) / d.count, result = (b.unit + u) % d.count;
    const int64_t plane = (image * d.target + d.first + result * d.every) * h.target + h.first;
    for (int64_t r = 0; r < b.rows; ++r)
      f((u * p.outer * p.height + r * h.copied_step()) * p.width * p.depth,
        (plane + (b.row + r) * h.every) * w.target + w.first + b.column * w.every);
  }
}

int64_t ChannelsLastConvolution::lines_together(const ConvPass& p) const {
  return std::clamp<int64_t>(tuning::kConvResults / std::max<int64_t>(p.line, 1), 1, kMostLines);
}

// Calls f(places, count) for the lines of a block, some at a time. The places of C are those of the target.
template <typename F>
void ChannelsLastConvolution::each_batch_of_lines(const ConvPass& p, const Block& b, F&& f) const {
  LinePlace places[kMostLines];
  const int64_t most = lines_together(p), results = p.columns * sizes_.groups;
  int64_t count = 0;
  each_line(p, b, [&](int64_t at, int64_t result) {
    places[count++] = {at / unit_, result * results};
    if (count == most) f(places, std::exchange(count, 0));
  });
  if (count > 0) f(places, count);
}

void ChannelsLastConvolution::multiply(const ConvPass& p, const Share& share, const LinePlace* places,
                                       int64_t count, int64_t panel, const float* packed, bool add,
                                       float* sums, int64_t pitch, const TileEnd<float>* end) const {
  const ChannelsLastFunctions f = functions(in_pairs());
  const int64_t column = panel * f.panel, n = std::min(f.panel, p.columns - column);
  const int64_t stored = rounded(n, f.lanes);
  const float* weights =
      packed + (p.packed + (share.group * rounded(p.columns, f.lanes) + column) * p.taps() * p.depth) / unit_;
  const Lines lines =
      joined({places, count, share.block.columns, p.axes[2].copied_step() * share.point / unit_, pitch});
  int64_t number = 0;
  each_segment(p, unit_, [&](const Segment& s) {
    // Only the first panel prefetches, and only lines that were not copied: all other lines are in the cache.
    const Depth depth{s.k / unit_, s.count, s.step / unit_, s.rows / unit_ * stored,
                      share.prefetches && panel == share.begin};
    ++number;
    f.product(lines, n, depth, share.lines + s.from / unit_, weights + s.row / unit_ * stored, stored, sums,
              add || number > 1, number == p.segments ? end : nullptr);
  });
}

void ChannelsLastConvolution::compute(const ConvPass& p, const Share& share, const float* packed,
                                      const Ending& ending, float* target) const {
  const int64_t panel_size = functions().panel, results = p.columns * sizes_.groups;
  const int64_t every = p.axes[2].every * results;
  const Clip clip = clip_of(ending.activation);
  // If Y already has the addend, the sums are added to it.
  const float* addend = ending.addend.floats();
  const bool in_target = addend == target, separate = addend && !in_target;
  const bool plain = !ending.bias && !separate && ending.activation.kind == Activation::Kind::kNone;
  each_batch_of_lines(p, share.block, [&](const LinePlace* places, int64_t count) {
    for (int64_t panel = share.begin; panel < share.end; ++panel) {
      const int64_t channel = share.group * p.columns + panel * panel_size;
      const TileEnd<float> end{ending.bias ? ending.bias + channel : nullptr,
                               separate ? addend + channel : nullptr, clip.low, clip.high};
      multiply(p, share, places, count, panel, packed, in_target, target + channel, every,
               plain ? nullptr : &end);
    }
  });
  if (clip.complete && p.segments > 0) return;
  const int64_t first = share.group * p.columns + share.begin * panel_size,
                n = std::min(share.end * panel_size, p.columns) - share.begin * panel_size;
  each_line(p, share.block, [&](int64_t, int64_t result) {
    for (int64_t i = 0; i < share.block.columns; ++i) {
      const int64_t at = result * results + i * every + first;
      for (int64_t c = 0; p.segments == 0 && c < n; ++c)  // no sums
        target[at + c] = (ending.bias ? ending.bias[first + c] : 0.0f) + (addend ? addend[at + c] : 0.0f);
      ending.activation.apply(n, target + at);
    }
  });
}

void ChannelsLastConvolution::compute_narrow(const ConvPass& p, const Share& share, const float* packed,
                                             const Ending& ending, BFloat16* target, float* kept) const {
  const ChannelsLastFunctions f = functions();
  const int64_t every = p.axes[2].every * p.columns * sizes_.groups, line_size = p.line * f.panel;
  each_batch_of_lines(p, share.block, [&](LinePlace* places, int64_t count) {
    int64_t in_target[kMostLines];
    for (int64_t line = 0; line < count; ++line)
      in_target[line] = std::exchange(places[line].c, line * line_size);
    for (int64_t panel = share.begin; panel < share.end; ++panel) {
      const int64_t column = panel * f.panel, channel = share.group * p.columns + column;
      multiply(p, share, places, count, panel, packed, false, kept, f.panel, nullptr);
      if (p.segments == 0) std::fill_n(kept, count * line_size, 0.0f);
      for (int64_t line = 0; line < count; ++line) {
        const int64_t at = in_target[line] + channel;
        f.finish(share.block.columns, std::min(f.panel, p.columns - column), kept + line * line_size, f.panel,
                 ending.bias ? ending.bias + channel : nullptr,
                 ending.addend.data ? ending.addend.halves() + at : nullptr, ending.activation, every,
                 target + at);
      }
    }
  });
}

void ChannelsLastConvolution::run(const ConvPass& p, StoredInput source, const float* packed,
                                  const Ending& ending, StoredOutput target, float* work) const {
  const int64_t channels = p.depth * sizes_.groups, panels = divided(p.columns, functions().panel);
  const int64_t count = blocks(p) * sizes_.groups, parts = cuts(count, workers_, panels),
                items = count * parts;
  const bool in_place = is_in_place(p) && source.bf16 == in_pairs();
  const int64_t size = lines_size(p) + results_size(p, target.bf16);
  share_among(workers_, items, [&](int64_t worker, int64_t first, int64_t past) {
    float *lines = work + worker * size, *kept = lines + lines_size(p);
    int64_t copied = -1;
    for (int64_t item = first; item < past; ++item) {
      const int64_t task = item / parts, part = item % parts, group = task % sizes_.groups;
      const Block b = block(p, task / sizes_.groups);
      // Of the source, if it is read in place.
      const int64_t point = (b.unit * p.axes[1].source + b.row) * p.axes[2].source + b.column;
      if (!in_place && p.segments > 0 && task != copied) {
        const int64_t channel = group * p.depth;
        if (in_pairs())
          copy_lines(p, b, source, channels, channel, p.depth, reinterpret_cast<BFloat16*>(lines));
        else
          copy_lines(p, b, source, channels, channel, p.depth, lines);
        copied = task;
      }
      const Share share{
          b,
          group,
          panels * part / parts,
          panels * (part + 1) / parts,
          in_place ? static_cast<const float*>(source.data) + (point * channels + group * p.depth) / unit_
                   : lines,
          in_place ? channels : p.depth,
          in_place};
      if (target.bf16)
        compute_narrow(p, share, packed, ending, target.halves(), kept);
      else
        compute(p, share, packed, ending, target.floats());
    }
  });
}

int64_t ChannelsLastConvolution::lines_size(const ConvPass& p) const {
  return rounded(p.units * p.unit_floats(), 16) + kSlack;
}

int64_t ChannelsLastConvolution::results_size(const ConvPass& p, bool bf16) const {
  return bf16 ? lines_together(p) * p.line * functions().panel : 0;
}

int64_t ChannelsLastConvolution::gathered_filters() const {
  return std::min(sizes_.filters / sizes_.groups, tuning::kTransposedFilters);
}

int64_t ChannelsLastConvolution::weights_size(bool bf16) const {
  const int64_t filters = gathers_ ? gathered_filters() : sizes_.filters / sizes_.groups;
  const int64_t widened = bf16 ? tuning::kConvPoints * filters + kSlack : 0;
  if (gathers_)
    return tiles_size(filters) + tuning::kConvPoints * rounded(weights_.depth, functions().lanes) + kSlack +
           widened;
  return lines_size(weights_) + (filters_across_ ? rounded(filters * sizes_.column_rows(), 16) : 0) + widened;
}

int64_t ChannelsLastConvolution::forward_work(bool bf16) const {
  return workers_ * (lines_size(forward_) + results_size(forward_, bf16));
}

int64_t ChannelsLastConvolution::backward_data_work(bool bf16) const {
  int64_t most = 0;
  for (const ConvPass& p : backward_) most = std::max(most, lines_size(p) + results_size(p, bf16));
  return workers_ * most;
}

int64_t ChannelsLastConvolution::backward_weights_work(bool bf16) const {
  return workers_ * weights_size(bf16);
}

void ChannelsLastConvolution::pack(const float* w, float* packed) const {
  const ChannelsLastFunctions f = functions(in_pairs());
  const int64_t sums = sizes_.column_rows(), filters = forward_.columns;
  const int64_t panels = divided(filters, f.panel), stored = rounded(filters, f.lanes);
  parallel_for(sizes_.groups * panels, f.panel * sums / 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t group = i / panels, column = i % panels * f.panel;
      f.pack_columns(w + (group * filters + column) * sums, sums, sums, std::min(f.panel, filters - column),
                     packed + (group * stored + column) * sums / unit_);
    }
  });
}

void ChannelsLastConvolution::forward(StoredInput x, const float* packed, const float* bias,
                                      StoredInput addend, const Activation& activation, StoredOutput y,
                                      float* work) const {
  run(forward_, x, packed, {bias, addend, activation}, y, work);
}

void ChannelsLastConvolution::forward_points(int64_t points, const float* x, const float* packed,
                                             const float* bias, const Activation& activation, int64_t begin,
                                             int64_t end, float* y) const {
  // A separable convolution has just computed X, or reads it in order, so that processors prefetch it
  // themselves. With AVX2, tiles that prefetch are slower than those that do not.
  const int64_t size = panel();
  const Share share{{0, 1, 0, 1, 0, points}, 0, begin / size, divided(end, size), x, forward_.depth};
  const Clip clip = clip_of(activation);
  const bool plain = !bias && activation.kind == Activation::Kind::kNone;
  const LinePlace place{0, 0};
  for (int64_t i = share.begin; i < share.end; ++i) {
    const TileEnd<float> finish{bias ? bias + i * size : nullptr, nullptr, clip.low, clip.high};
    multiply(forward_, share, &place, 1, i, packed, false, y + i * size - begin, end - begin,
             plain ? nullptr : &finish);
  }
}

int64_t ChannelsLastConvolution::panel() { return functions().panel; }

void ChannelsLastConvolution::pack_backward(const float* w, float* packed) const {
  const ChannelsLastFunctions f = functions(in_pairs());
  const WindowAxis &kd = sizes_.window[0], &kh = sizes_.window[1], &kw = sizes_.window[2];
  const int64_t channels = sizes_.channels / sizes_.groups, filters = sizes_.filters / sizes_.groups;
  const int64_t panels = divided(channels, f.panel), stored = rounded(channels, f.lanes);
  const int64_t row = kd.kernel * kh.kernel * kw.kernel * channels;
  for (const ConvPass& p : backward_) {
    const auto &d = p.axes[0].taps, &h = p.axes[1].taps, &v = p.axes[2].taps;
    parallel_for(sizes_.groups * panels, f.panel * p.taps() * filters / 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t group = i / panels, column = i % panels * f.panel,
                      n = std::min(f.panel, channels - column);
        float* to = packed + (p.packed + (group * stored + column) * p.taps() * filters) / unit_;
        for (const int64_t a : d)
          for (const int64_t b : h)
            for (const int64_t c : v) {
              const int64_t tap = (a * kh.kernel + b) * kw.kernel + c;
              f.pack_rows(w + group * filters * row + tap * channels + column, row, filters, n, to);
              to += filters / unit_ * rounded(n, f.lanes);
            }
      }
    });
  }
}

void ChannelsLastConvolution::backward_data(StoredInput dy, const float* packed, const float* bias,
                                            StoredOutput dx, float* work) const {
  for (const ConvPass& p : backward_) run(p, dy, packed, {bias, {}, {}}, dx, work);
}

// Adds the share of `rows` lines of `points` results to the sums of the task; dY begins with the first
// result, which reads the copy from `at` on.
void ChannelsLastConvolution::add_weight_products(const WeightTask& t, const Gradients& g, const float* lines,
                                                  int64_t at, int64_t rows, int64_t points, bool add,
                                                  float* sums) const {
  const ChannelsLastFunctions f = functions();
  const ConvPass& p = weights_;
  const PassAxis &d = p.axes[0], &h = p.axes[1], &w = p.axes[2];
  const int64_t channels = sizes_.channels / sizes_.groups, taps = p.taps(), width = std::ssize(w.taps);
  const int64_t pitch = p.width * t.depth, line = h.copied_step() * pitch, step = w.copied_step() * t.depth;
  // Elements of a line of the window are consecutive if all channels are there.
  const bool together = width > 1 && t.depth == channels && w.copied_offset(1) == 1;
  const int64_t run = together ? width : 1, n = run * t.depth;
  int64_t tap = 0;
  for (int64_t o = 0; o < std::ssize(d.taps); ++o)
    for (int64_t l = 0; l < std::ssize(h.taps); ++l)
      for (int64_t k = 0; k < width; k += run, tap += run) {
        const int64_t lines_before =
            d.copied_offset(static_cast<size_t>(o)) * p.height + h.copied_offset(static_cast<size_t>(l));
        const float* x =
            lines + at + lines_before * pitch + w.copied_offset(static_cast<size_t>(k)) * t.depth;
        if (filters_across_) {
          for (int64_t j = 0; j < t.filters; j += f.panel)
            f.even_product(n, std::min(f.panel, t.filters - j), {points, rows, line, g.line}, x, 1, step,
                           g.dy + j, g.point, sums + tap * channels * t.filters + j, t.filters, add);
        } else {
          for (int64_t j = 0; j < n; j += f.panel)
            f.even_product(t.filters, std::min(f.panel, n - j), {points, rows, g.line, line}, g.dy, 1,
                           g.point, x + j, step, sums + tap * channels + j, taps * channels, add);
        }
      }
}

// dY of a few results as floats, in `widened` if it is stored in bfloat16.
ChannelsLastConvolution::Gradients ChannelsLastConvolution::gradients(const WeightTask& t, StoredInput dy,
                                                                      int64_t result, int64_t lines,
                                                                      int64_t points, float* widened) const {
  const int64_t width = weights_.axes[2].target, filters = sizes_.filters;
  if (!dy.bf16) return {dy.floats() + result * filters + t.filter, filters, width * filters};
  for (int64_t l = 0; l < lines; ++l)
    for (int64_t i = 0; i < points; ++i)
      widen_bf16(dy.halves() + (result + l * width + i) * filters + t.filter,
                 widened + (l * points + i) * t.filters, t.filters);
  return {widened, t.filters, points * t.filters};
}

// The gradient of some weights, summed over all blocks.
void ChannelsLastConvolution::weight_sums(const WeightTask& t, StoredInput dy, StoredInput x, float* dw,
                                          float* work) const {
  const ConvPass& p = weights_;
  const PassAxis &h = p.axes[1], &w = p.axes[2];
  const int64_t window = sizes_.column_rows(), pitch = p.width * t.depth;
  float* const to = dw + t.filter * window + t.channel;
  float* const sums = filters_across_ ? work + lines_size(p) : to;
  float* const widened = work + weights_size(false);
  bool add = false;
  for (int64_t number = 0; number < blocks(p); ++number) {
    const Block b = block(p, number);
    copy_lines(p, b, x, sizes_.channels, t.group * (sizes_.channels / sizes_.groups) + t.channel, t.depth,
               work);
    // As many results at a time as keep their lines in the first-level cache.
    const int64_t rows = std::max<int64_t>(1, tuning::kConvPoints / b.columns);
    const int64_t points = rows > 1 ? b.columns : std::min(b.columns, tuning::kConvPoints);
    for (int64_t u = 0; u < b.units; ++u)
      for (int64_t r = 0; r < b.rows; r += rows)
        for (int64_t c = 0; c < b.columns; c += points) {
          const int64_t result = ((b.unit + u) * h.target + b.row + r) * w.target + b.column + c;
          const int64_t at =
              (u * p.outer * p.height + r * h.copied_step()) * pitch + c * w.copied_step() * t.depth;
          const int64_t lines = std::min(rows, b.rows - r), count = std::min(points, b.columns - c);
          add_weight_products(t, gradients(t, dy, result, lines, count, widened), work, at, lines, count, add,
                              sums);
          add = true;
        }
  }
  if (!filters_across_) return;
  for (int64_t j = 0; j < t.filters; ++j)
    for (int64_t i = 0; i < window; ++i) to[j * window + i] = sums[i * t.filters + j];
}

// Packs the elements of X with which an element of the window, `offsets` from the first element that a result
// reads along each axis, multiplies `count` results: a row for each result. Outside X they are zeros.
void ChannelsLastConvolution::gather(const WeightTask& t, StoredInput x, int64_t first, int64_t count,
                                     const int64_t* offsets, float* to) const {
  const PassAxis &d = weights_.axes[0], &h = weights_.axes[1], &w = weights_.axes[2];
  const ChannelsLastFunctions f = functions();
  const int64_t channels = sizes_.channels, channel = t.group * (channels / sizes_.groups) + t.channel;
  // Calls put(column, columns, panel) for each panel, whose rows begin with that of the result `at`.
  const auto each_panel = [&](int64_t at, const auto& put) {
    for (int64_t j = 0; j < t.depth; j += f.panel) {
      const int64_t columns = std::min(f.panel, t.depth - j);
      put(j, columns, to + j * count + (at - first) * rounded(columns, f.lanes));
    }
  };
  for (int64_t result = first; result < first + count;) {
    const int64_t line = result / w.target, plane = line / h.target, column = result % w.target;
    const int64_t at_d = plane % d.target * d.step + offsets[0], at_h = line % h.target * h.step + offsets[1];
    const int64_t from = ((plane / d.target * d.source + at_d) * h.source + at_h) * w.source;
    const bool inside = at_d >= 0 && at_d < d.source && at_h >= 0 && at_h < h.source;
    const int64_t past = std::min(w.target, column + first + count - result);
    // The results [begin, end) of this line read X from its column `at` on.
    const int64_t begin =
        inside ? std::clamp(divided(std::max<int64_t>(-offsets[2], 0), w.step), column, past) : past;
    const int64_t end =
        w.source > offsets[2] ? std::clamp(divided(w.source - offsets[2], w.step), begin, past) : begin;
    const int64_t at = from + begin * w.step + offsets[2];
    each_panel(result, [&](int64_t j, int64_t columns, float* packed) {
      const int64_t row = rounded(columns, f.lanes);
      std::fill_n(packed, (begin - column) * row, 0.0f);
      packed += (begin - column) * row;
      if (x.bf16) {
        std::fill_n(packed, (end - begin) * row, 0.0f);
        for (int64_t i = 0; i < end - begin; ++i)
          widen_bf16(x.halves() + (at + i * w.step) * channels + channel + j, packed + i * row, columns);
      } else if (begin < end) {
        f.pack_rows(x.floats() + at * channels + channel + j, w.step * channels, end - begin, columns,
                    packed);
      }
      std::fill_n(packed + (end - begin) * row, (past - end) * row, 0.0f);
    });
    result += past - column;
  }
}

// The same from gathered elements of X: a product adds up `kConvPoints` results, also of several lines and
// images. dY is stored by tiles once for all elements of the window, because its columns map to few sets of a
// cache.
void ChannelsLastConvolution::gathered_weight_sums(const WeightTask& t, StoredInput dy, StoredInput x,
                                                   float* dw, float* work) const {
  const ChannelsLastFunctions f = functions();
  const PassAxis &d = weights_.axes[0], &h = weights_.axes[1], &w = weights_.axes[2];
  const int64_t results = sizes_.batch * sizes_.output_points(), window = sizes_.column_rows();
  float *const gathered = work + tiles_size(t.filters), *const widened = work + weights_size(false);
  for (int64_t first = 0; first < results; first += tuning::kConvPoints) {
    const int64_t count = std::min(tuning::kConvPoints, results - first), tile = StoredTile<float>(count);
    const Gradients g = gradients(t, dy, first, 1, count, widened);
    f.store_by_tiles(g.dy, g.point, t.filters, count, work, tile);
    float* to = dw + t.filter * window + t.channel;
    for (const int64_t o : d.offsets)
      for (const int64_t l : h.offsets)
        for (const int64_t c : w.offsets) {
          const int64_t offsets[] = {o, l, c};
          gather(t, x, first, count, offsets, gathered);
          for (int64_t j = 0; j < t.depth; j += f.panel) {
            const int64_t columns = std::min(f.panel, t.depth - j);
            f.even_product(t.filters, columns, {.k = count, .a_tile = tile}, work, 1, 6, gathered + j * count,
                           rounded(columns, f.lanes), to + j, window, first > 0);
          }
          to += sizes_.channels / sizes_.groups;
        }
  }
}

void ChannelsLastConvolution::backward_weights(StoredInput dy, StoredInput x, float* dw, float* work) const {
  const int64_t channels = sizes_.channels / sizes_.groups, filters = sizes_.filters / sizes_.groups;
  // Compared with the other ways, which copy X, gradients of 8 to 960 channels take 0.65 to 0.97 of the time
  // with one thread and 0.40 to 0.94 with two, and those of 1 or 4 filters 0.20 to 0.71 (AVX2, Zen 3). Fewer
  // channels would leave vectors incomplete: with 4 channels and 64 filters, it takes 1.7.
  const bool complete = !filters_across_ || channels >= functions().lanes;
  if (sizes_.groups == 1 && !dy.bf16 && !x.bf16 && is_pointwise(sizes_) && complete) {
    ortrain::multiply<float>(filters, channels, sizes_.output_points(), 1.0f, {dy.floats(), 1, filters},
                             {x.floats(), channels, 1}, 0.0f, dw, channels, static_cast<int>(workers_));
    return;
  }
  // Vectors of filters stay whole: products read no further.
  const int64_t vector = filters_across_ ? functions().lanes : 1;
  const int64_t chunks = divided(channels, weights_.depth), tasks = sizes_.groups * chunks;
  const int64_t parts = cuts(tasks, workers_, filters / std::max<int64_t>(vector, 6)), items = tasks * parts;
  share_among(workers_, items, [&](int64_t worker, int64_t first, int64_t past) {
    for (int64_t item = first; item < past; ++item) {
      const int64_t task = item / parts, part = item % parts;
      const auto cut = [&](int64_t i) { return filters / vector * i / parts * vector; };
      WeightTask t;
      t.group = task / chunks;
      t.channel = task % chunks * weights_.depth, t.depth = std::min(weights_.depth, channels - t.channel);
      float* const own = work + worker * weights_size(dy.bf16);
      const int64_t end = cut(part + 1), most = gathers_ ? gathered_filters() : filters;
      for (int64_t filter = cut(part); filter < end; filter += most) {
        t.filter = t.group * filters + filter, t.filters = std::min(most, end - filter);
        gathers_ ? gathered_weight_sums(t, dy, x, dw, own) : weight_sums(t, dy, x, dw, own);
      }
    }
  });
}

bool convolutions_gain_from_pairs() {
  static const bool gain = bf16_products() >= Bf16Products::kFast && ORTRAIN_DISPATCH(HasPairs)();
  return gain;
}

}  // namespace ortrain
#endif
