// Computes attention on tiles: products of packed operands (backend/cpu/matmul/product_tiles-inl.h), and the
// softmax of rows between the products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention/attention_kernel.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>
// After foreach_target.h
#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "backend/cpu/attention/attention_kernel.h"
#include "backend/cpu/dropout_random.h"
#include "backend/cpu/matmul/amx_tiles-inl.h"
#include "backend/cpu/matmul/bf16_pairs-inl.h"
#include "backend/cpu/matmul/product_tiles-inl.h"
#include "backend/cpu/product_instructions.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_ATTENTION_TYPES
#define ORTRAIN_ATTENTION_TYPES
namespace ortrain {

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Where a part of the work stores its data, in elements from the beginning of its memory.
struct AttentionTiles {
  int64_t lanes = 0;                       // elements of a vector
  int64_t block = 0;                       // queries processed together
  int64_t blocks = 0;                      // blocks of queries
  int64_t row = 0;                         // elements from one row of scores to the next
  bool few = false;                        // few queries: keys and values are read where they are stored
  int64_t size = 0, v_size = 0, keys = 0;  // rounded up to whole vectors
  int64_t scores = 0, ds = 0, capped = 0, kept = 0, wide = 0;
  int64_t keys_across = 0, values_across = 0, keys_along = 0, values_along = 0, q_along = 0, dy_along = 0;
  int64_t words = 0;
  // For products in bfloat16, whose packed operands hold words (backend/cpu/matmul/bf16_pairs-inl.h): words
  // of the rows of queries, of gradients of results, and of weights or gradients of scores; words of the
  // columns of weights or gradients of scores; a panel.
  bool pairs = false;
  int64_t q_words = 0, dy_words = 0, score_words = 0, turned_words = 0, turned = 0;
  int64_t total = 0;  // elements per part
};

// The keys that a query sees: [begin, end).
struct AttentionRange {
  int64_t begin = 0, end = 0;
};

// Memory of a part of the work, and the head for which it was last filled.
struct AttentionPart {
  void* memory = nullptr;
  int64_t packed = -1;     // batch and head of the packed keys and values
  double longest_key = 0;  // the largest length of a key of this head, if a mask may hide keys
  std::array<AttentionRange, tuning::kLargestQueries> ranges = {};  // of the queries of a block
};

// Where the gradients of keys and values are accumulated. `fresh`: no block has written to them yet.
struct AttentionSums {
  void *dk = nullptr, *dv = nullptr;
  int64_t dk_row = 0, dv_row = 0;
  bool fresh = false;
};

struct AttentionFunctions {
  int64_t lanes;
  // Both compute the queries [block * tiles.block, ...) of a head.
  void (*forward)(const Attention&, const AttentionForward&, const AttentionTiles&, AttentionPart&,
                  int64_t batch, int64_t head, int64_t block);
  void (*backward)(const Attention&, const AttentionBackward&, const AttentionTiles&, AttentionPart&,
                   int64_t batch, int64_t head, int64_t block, const AttentionSums&);
};

inline AttentionRange seen_keys(const Attention& a, const int64_t* lengths, int64_t batch, int64_t query) {
  int64_t keys = a.keys;
  if (lengths) keys = std::min(keys, lengths[batch]);
  if (a.mask != AttentionMask::kNone) keys = std::min(keys, a.mask_keys);
  const int64_t at = query + (a.offset_by_length && lengths ? lengths[batch] - a.queries : a.offset);
  const int64_t end = a.right < 0 ? keys : std::clamp<int64_t>(at + a.right + 1, 0, keys);
  const int64_t begin = a.left < 0 ? 0 : std::clamp<int64_t>(at - a.left, 0, end);
  return {begin, end};
}

// Whether a mask can hide keys from queries before their scores are computed.
inline bool narrows(const Attention& a, const AttentionTiles& t) {
  return !t.few && (a.mask == AttentionMask::kBool || (a.mask == AttentionMask::kAdded && a.mask_key == 1));
}

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// ---------------------------------------------------------------------------------------------------------
// Rows of scores. `s` holds the products of a query with all keys, of which those in `range` count.

// y = softmax(x); zeros where every score is -infinity. y may be x.
template <typename T>
void SoftmaxRow(const T* x, T* y, int64_t n) {
  const hn::ScalableTag<T> d;
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  auto largest = hn::Set(d, kLowest);
  ForVectors<T>(n, [&](int64_t i, int64_t count)
                       HWY_ATTR { largest = hn::Max(largest, LoadUpTo(d, x + i, count, kLowest)); });
  const T most = hn::GetLane(hn::MaxOfLanes(d, largest));
  if (most == kLowest && std::none_of(x, x + n, [](T v) { return v != v; })) {
    std::fill_n(y, n, T{0});
    return;
  }
  const auto m = hn::Set(d, most);
  const double sum = SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto e = math::ExpNegative(d, hn::Sub(LoadUpTo(d, x + i, count, kLowest), m));
    StoreUpTo(e, d, y + i, count);
    return e;
  });
  const auto scale = hn::Set(d, static_cast<T>(1 / sum));
  Map(y, y, n, [&](auto, auto v) HWY_ATTR { return hn::Mul(v, scale); });
}

template <typename T>
void WideSoftmaxRow(const Attention& a, const T* x, T* y, int64_t n, double* wide) {
  if constexpr (std::is_same_v<T, float>) {
    if (a.double_softmax) {
      std::copy_n(x, n, wide);
      SoftmaxRow(wide, wide, n);
      for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(wide[i]);
      return;
    }
  }
  SoftmaxRow(x, y, n);
}

template <typename T>
void CapRow(T* x, int64_t n, double cap) {
  const auto up = static_cast<T>(cap), down = static_cast<T>(1 / cap);
  Map(x, x, n, [&](auto d, auto v) HWY_ATTR {
    return hn::Mul(hn::Set(d, up), math::Tanh(d, hn::Mul(v, hn::Set(d, down))));
  });
}

// Adds or applies the mask to x[begin .. end).
template <typename T>
void MaskRow(const Attention& a, const void* mask, int64_t batch, int64_t head, int64_t query,
             const AttentionRange& range, T* x) {
  const int64_t at =
      batch * a.mask_batch + head * a.mask_head + query * a.mask_query + range.begin * a.mask_key;
  T* from = x + range.begin;
  const int64_t n = range.end - range.begin;
  if (a.mask == AttentionMask::kAdded) {
    const T* added = static_cast<const T*>(mask) + at;
    const auto add = [](auto, auto u, auto v) HWY_ATTR { return hn::Add(u, v); };
    if (a.mask_key == 1) {
      Map2<1, 1>(from, added, from, n, add);
    } else if (a.mask_key == 0) {
      Map2<1, 0>(from, added, from, n, add);
    } else {
      for (int64_t i = 0; i < n; ++i) from[i] += added[i * a.mask_key];
    }
  } else if (a.mask == AttentionMask::kBool) {
    const bool* kept = static_cast<const bool*>(mask) + at;
    const T replaced = static_cast<T>(a.replaced);
    if (a.mask_key == 1)
      for (int64_t i = 0; i < n; ++i) from[i] = kept[i] != a.inverted_mask ? from[i] : replaced;
    else
      for (int64_t i = 0; i < n; ++i) from[i] = kept[i * a.mask_key] != a.inverted_mask ? from[i] : replaced;
  }
}

// factors[i] = 1 / (1 - ratio) where element `first` + i is kept, else 0.
template <typename T>
void DropRow(const AttentionDropout& dropout, uint64_t first, int64_t n, uint32_t* words, T* factors) {
  const uint64_t block = first / 4;
  const int64_t skipped = static_cast<int64_t>(first % 4);
  random_words(dropout.key, dropout.high, block, (skipped + n + 3) / 4, words);
  const uint32_t limit = drop_limit(dropout.ratio);
  const T scale = static_cast<T>(1 / (1 - dropout.ratio));
  for (int64_t i = 0; i < n; ++i) factors[i] = is_kept(words[skipped + i], limit) ? scale : T{0};
}

// Outputs a row of scores: [begin, end) unchanged, `outside` elsewhere.
template <typename T>
void ShowRow(const Attention& a, const T* x, const AttentionRange& range, T outside, void* scores,
             int64_t batch, int64_t head, int64_t query) {
  T* to = static_cast<T*>(scores) + ((batch * a.heads + head) * a.queries + query) * a.keys;
  std::fill_n(to, range.begin, outside);
  std::copy(x + range.begin, x + range.end, to + range.begin);
  std::fill(to + range.end, to + a.keys, outside);
}

// Sets x to 0 in `all` except in `range`.
template <typename T>
HWY_INLINE void ZeroOutside(const AttentionRange& range, const AttentionRange& all, T* x) {
  const int64_t left = HWY_MIN(range.begin, all.end), right = HWY_MAX(range.end, all.begin);
  if (all.begin < left) std::fill(x + all.begin, x + left, T{0});
  if (right < all.end) std::fill(x + right, x + all.end, T{0});
}

// Elements from one head of an operand to the next; 0 for the last head.
inline int64_t NextHead(const HeadSteps& steps, int64_t batches, int64_t heads, int64_t batch, int64_t head) {
  if (head + 1 < heads) return steps.head;
  return batch + 1 < batches ? steps.batch - head * steps.head : 0;
}

// Prefetches a row into the cache. While the rows of scores of one head are computed, the operand rows of the
// next head are fetched: they are short and far apart, so hardware prefetching does not help.
template <typename T>
HWY_INLINE void FetchRow(const T* x, int64_t n) {
  constexpr int64_t kLine = 64 / sizeof(T);  // elements of a cache line
  for (int64_t i = 0; i < n; i += kLine) hwy::Prefetch(x + i);
}

// The operands of the next head, from the same queries on.
template <typename T>
struct NextRows {
  const T *q, *k, *v;
  NextRows(const Attention& a, int64_t batch, int64_t head, const T* q_at, const T* k_at, const T* v_at) {
    const int64_t kv_head = head / (a.heads / a.kv_heads);
    q = q_at + NextHead(a.q, a.batch, a.heads, batch, head);
    k = k_at + NextHead(a.k, a.batch, a.kv_heads, batch, kv_head);
    v = v_at + NextHead(a.v, a.batch, a.kv_heads, batch, kv_head);
  }
  // Row i of the queries, and the keys and values of the same number as the query.
  HWY_INLINE void Fetch(const Attention& a, int64_t i, int64_t query) const {
    FetchRow(q + i * a.q.row, a.size);
    if (query >= a.keys) return;
    FetchRow(k + query * a.k.row, a.size);
    FetchRow(v + query * a.v.row, a.v_size);
  }
};

// ---------------------------------------------------------------------------------------------------------
// The keys that queries see. Keys at both ends that a mask hides from a query are not seen: their probability
// is zero in T whatever their score is, since no score is larger than `bound`.

// exp(x) is zero for x below this.
template <typename T>
constexpr double kVanishes = std::is_same_v<T, float> ? -110 : -760;

template <typename T>
double LengthOf(const T* x, int64_t n) {
  return std::sqrt(SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto v = LoadUpTo(hn::ScalableTag<T>(), x + i, count);
    return hn::Mul(v, v);
  }));
}

template <typename T>
double LongestKey(const Attention& a, const T* k) {
  double longest = 0;
  for (int64_t i = 0; i < a.keys; ++i) {
    const double length = LengthOf(k + i * a.k.row, a.size);
    if (!std::isnan(longest) && !(length <= longest)) longest = length;
  }
  return longest;
}

// The largest absolute score of a query, with room for rounding its operands to bfloat16.
template <typename T>
double ScoreBound(const Attention& a, const AttentionPart& part, const T* q) {
  constexpr double kRoom = 1.02;
  const double bound = kRoom * std::abs(a.scale) * LengthOf(q, a.size) * part.longest_key;
  return a.cap > 0 ? HWY_MIN(bound, a.cap) : bound;
}

template <typename F>
HWY_INLINE AttentionRange Narrowed(AttentionRange range, const F& hidden) {
  while (range.end > range.begin && hidden(range.end - 1)) --range.end;
  while (range.begin < range.end && hidden(range.begin)) ++range.begin;
  return range;
}

// `range` without the elements at its ends that are less than `limit`.
template <typename T>
AttentionRange NotLess(const T* x, AttentionRange range, T limit) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  const auto all_less = [&](int64_t i) HWY_ATTR {
    return hn::AllTrue(d, hn::Lt(hn::LoadU(d, x + i), hn::Set(d, limit)));
  };
  while (range.end - range.begin >= lanes && all_less(range.end - lanes)) range.end -= lanes;
  while (range.end - range.begin >= lanes && all_less(range.begin)) range.begin += lanes;
  return Narrowed(range, [&](int64_t j) { return x[j] < limit; });
}

template <typename T>
T LargestOf(const T* x, const AttentionRange& range) {
  const hn::ScalableTag<T> d;
  const T first = x[range.begin];
  auto largest = hn::Set(d, first);
  ForVectors<T>(range.end - range.begin, [&](int64_t i, int64_t count) HWY_ATTR {
    largest = hn::Max(largest, LoadUpTo(d, x + range.begin + i, count, first));
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// `range` without the keys at its ends that the mask hides from a query.
template <typename T>
AttentionRange WithoutHidden(const Attention& a, const void* mask, int64_t batch, int64_t head, int64_t query,
                             const AttentionRange& range, double bound) {
  const int64_t at = batch * a.mask_batch + head * a.mask_head + query * a.mask_query;
  constexpr double kRounding = 1e-6;
  if (a.mask == AttentionMask::kBool) {
    const bool* kept = static_cast<const bool*>(mask) + at;
    const AttentionRange narrow =
        Narrowed(range, [&](int64_t j) { return kept[j * a.mask_key] == a.inverted_mask; });
    const bool vanish =
        std::isinf(a.replaced) ? a.replaced < 0 : a.replaced * (1 - kRounding) < kVanishes<T> - bound;
    // If every score is replaced, no key is hidden: all have the same probability.
    return vanish && narrow.end > narrow.begin ? narrow : range;
  }
  const T* added = static_cast<const T*>(mask) + at;
  // Any of the added numbers is a valid start, and the largest hides the most keys. A first number of zero,
  // as most queries have, needs no search.
  const double first = static_cast<double>(added[range.begin]);
  const double most = first == 0 ? first : static_cast<double>(LargestOf(added, range));
  return NotLess(added, range, static_cast<T>(most + kVanishes<T> - 2 * bound - kRounding * std::abs(most)));
}

// Fills the ranges of the queries [first, first + rows), the first of which is `q`; returns the keys that
// some of them see.
template <typename T>
AttentionRange FindRanges(const Attention& a, const AttentionTiles& t, const int64_t* lengths,
                          const void* mask, int64_t batch, int64_t head, int64_t first, int64_t rows,
                          const T* q, AttentionPart& part) {
  AttentionRange all{a.keys, 0};
  for (int64_t i = 0; i < rows; ++i) {
    AttentionRange range = seen_keys(a, lengths, batch, first + i);
    if (mask && narrows(a, t) && range.end > range.begin)
      range = WithoutHidden<T>(a, mask, batch, head, first + i, range, ScoreBound(a, part, q + i * a.q.row));
    part.ranges[static_cast<size_t>(i)] = range;
    if (range.end <= range.begin) continue;
    all = {HWY_MIN(all.begin, range.begin), HWY_MAX(all.end, range.end)};
  }
  if (all.end <= all.begin) return {0, 0};
  // The range has whole words, each of two keys.
  return t.pairs ? AttentionRange{all.begin / 2 * 2, HWY_MIN(a.keys, (all.end + 1) / 2 * 2)} : all;
}

// ---------------------------------------------------------------------------------------------------------
// Products for so few queries that packing keys and values takes longer than the products.

// C [m, range] = scale A Bᵀ over k products.
template <typename T>
void MultiplyRows(int64_t m, const T* a, int64_t a_row, const T* b, int64_t b_row, int64_t k, T scale,
                  const AttentionRange& range, T* c, int64_t c_row) {
  const hn::ScalableTag<T> d;
  for (int64_t j = range.begin; j < range.end; ++j)
    for (int64_t i = 0; i < m; ++i) {
      const T *u = a + i * a_row, *v = b + j * b_row;
      auto sum = hn::Zero(d);
      ForVectors<T>(k, [&](int64_t p, int64_t count) HWY_ATTR {
        sum = hn::MulAdd(LoadUpTo(d, u + p, count), LoadUpTo(d, v + p, count), sum);
      });
      c[i * c_row + j] = scale * hn::GetLane(hn::SumOfLanes(d, sum));
    }
}

// C [m, n] = A B over the k in `range`.
template <typename T>
void AddRows(int64_t m, const T* a, int64_t a_row, const T* b, int64_t b_row, int64_t n,
             const AttentionRange& range, T* c, int64_t c_row) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf<T>();
  for (int64_t begin = range.begin; begin < range.end; begin += kDepth) {
    const int64_t k = HWY_MIN(kDepth, range.end - begin);
    const bool add = begin > range.begin;
    for (int64_t i = 0; i < m; ++i) {
      const T *factors = a + i * a_row + begin, *rows = b + begin * b_row;
      T* to = c + i * c_row;
      int64_t j = 0;
      for (; j + 4 * lanes <= n; j += 4 * lanes)
        Tile<1, 4>({k}, factors, EvenRows{a_row, c_row}, 1, rows + j, b_row, to + j, 4 * lanes, add);
      for (; j < n; j += lanes) {
        auto sum = hn::Zero(d);
        for (int64_t p = 0; p < k; ++p)
          sum = hn::MulAdd(hn::Set(d, factors[p]), LoadUpTo(d, rows + p * b_row + j, n - j), sum);
        if (add) sum = hn::Add(sum, LoadUpTo(d, to + j, n - j));
        StoreUpTo(sum, d, to + j, n - j);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------

// How the products of a head multiply: elements, or words of two bfloat16 values.
template <class How>
inline constexpr bool kInPairs = !std::is_same_v<How, MultiplyAdd>;

// Packs keys, values, queries or gradients [rows, size] as the right operand B of A B, where rows of A are as
// long as B has rows.
template <class How, typename T>
void PackRows(const T* from, int64_t row, int64_t rows, int64_t size, T* packed) {
  if constexpr (kInPairs<How>)
    PackPairsAlong(from, row, rows, size, packed);
  else
    PackAlong(from, row, rows, size, packed);
}

// Packs them as the right operand of scale A Bᵀ, for MultiplyColumns with the same scale. Elements are scaled
// here, but of words MultiplyColumns scales the sums: values in bfloat16 are then not rounded again.
template <class How, typename T>
void PackColumns(const AttentionTiles& t, const T* from, int64_t row, int64_t size, int64_t rows, T scale,
                 T* memory, T* packed) {
  if constexpr (kInPairs<How>)
    PackPairsAcross(from, row, size, rows, memory + t.turned, packed);
  else
    PackAcross(from, row, size, rows, scale, packed);
}

// C [m, range] = scale A Bᵀ with B [n, k] packed by PackColumns; `words` is memory for A in words.
template <class How, typename T>
void MultiplyColumns(int64_t m, const T* a, int64_t a_row, const T* packed, int64_t k, int64_t n,
                     const AttentionRange& range, T scale, T* words, T* c, int64_t c_row) {
  if (k == 0) {
    std::fill_n(c, m * c_row, T{0});
    return;
  }
  if constexpr (kInPairs<How>) {
    const int64_t length = (k + 1) / 2;
    for (int64_t i = 0; i < m; ++i)
      ToWords(a + i * a_row, k, reinterpret_cast<BFloat16*>(words + i * length));
    Multiply<T, How>(m, words, length, 1, {packed, length, n, 0, length, range.begin, range.end}, c, c_row,
                     false, true, scale);
  } else {
    Multiply<T>(m, a, a_row, 1, {packed, k, n, 0, k, range.begin, range.end}, c, c_row, false, true);
  }
}

// C [m, n] = A B over the rows of B in `range`, with B [k, n] packed by PackRows.
template <class How, typename T>
void MultiplyRange(int64_t m, const T* a, int64_t a_row, const T* packed, int64_t k, int64_t n,
                   const AttentionRange& range, T* words, T* c, int64_t c_row) {
  if constexpr (kInPairs<How>) {
    const int64_t length = (range.end - range.begin + 1) / 2;
    for (int64_t i = 0; i < m; ++i)
      ToWords(a + i * a_row + range.begin, range.end - range.begin,
              reinterpret_cast<BFloat16*>(words + i * length));
    Multiply<T, How>(m, words, length, 1,
                     {packed, (k + 1) / 2, n, range.begin / 2, range.begin / 2 + length, 0, n}, c, c_row,
                     false, false);
  } else {
    Multiply<T>(m, a + range.begin, a_row, 1, {packed, k, n, range.begin, range.end, 0, n}, c, c_row, false,
                false);
  }
}

// Rows `range` of C = or += Aᵀ B, with A [k, ...] and B [k, n] packed by PackRows.
template <class How, typename T>
void MultiplyTurned(int64_t k, const T* a, int64_t a_row, const AttentionRange& range, const T* packed,
                    int64_t n, T* words, T* c, int64_t c_row, bool add) {
  const int64_t m = range.end - range.begin;
  const T* from = a + range.begin;
  T* to = c + range.begin * c_row;
  if constexpr (kInPairs<How>) {
    const int64_t length = (k + 1) / 2;
    for (int64_t w = 0; w < length; ++w)
      JoinRows(from + 2 * w * a_row, 2 * w + 1 < k ? from + (2 * w + 1) * a_row : nullptr, m,
               reinterpret_cast<uint32_t*>(words + w * a_row));
    Multiply<T, How>(m, words, 1, a_row, {packed, length, n, 0, length, 0, n}, to, c_row, add, false);
  } else {
    Multiply<T>(m, from, 1, a_row, {packed, k, n, 0, k, 0, n}, to, c_row, add, false);
  }
}

// Products of the queries of a block with the keys in a range.
template <class How, typename T>
void ScoresOfBlock(const Attention& a, const AttentionTiles& t, int64_t rows, const T* q, const T* k,
                   const AttentionRange& range, T* memory) {
  T* scores = memory + t.scores;
  const T scale = static_cast<T>(a.scale);
  if (t.few)
    MultiplyRows(rows, q, a.q.row, k, a.k.row, a.size, scale, range, scores, t.row);
  else
    MultiplyColumns<How>(rows, q, a.q.row, memory + t.keys_across, a.size, a.keys, range, scale,
                         memory + t.q_words, scores, t.row);
}

template <typename T, class How = MultiplyAdd>
void Forward(const Attention& a, const AttentionForward& f, const AttentionTiles& t, AttentionPart& part,
             int64_t batch, int64_t head, int64_t block) {
  T* memory = static_cast<T*>(part.memory);
  const int64_t kv_head = head / (a.heads / a.kv_heads), filled = batch * a.kv_heads + kv_head;
  const T* k = static_cast<const T*>(f.k) + batch * a.k.batch + kv_head * a.k.head;
  const T* v = static_cast<const T*>(f.v) + batch * a.v.batch + kv_head * a.v.head;
  if (!t.few && part.packed != filled) {
    PackColumns<How>(t, k, a.k.row, a.size, a.keys, static_cast<T>(a.scale), memory, memory + t.keys_across);
    PackRows<How>(v, a.v.row, a.keys, a.v_size, memory + t.values_along);
    if (narrows(a, t)) part.longest_key = LongestKey(a, k);
    part.packed = filled;
  }
  const int64_t first = block * t.block, rows = HWY_MIN(t.block, a.queries - first);
  const bool shows = f.scores && f.shown != AttentionScores::kProbabilities;
  const T* q = static_cast<const T*>(f.q) + batch * a.q.batch + head * a.q.head + first * a.q.row;
  const AttentionRange seen =
      FindRanges(a, t, f.lengths, shows ? nullptr : f.mask, batch, head, first, rows, q, part);
  const AttentionRange made = shows ? AttentionRange{0, a.keys} : seen;
  T* scores = memory + t.scores;
  ScoresOfBlock<How>(a, t, rows, q, k, made, memory);
  // Probabilities that are an output are computed in the output's memory, and read from there. They are zero
  // for keys that the query does not see: for all such keys if they are an output, else for the keys that the
  // second product reads.
  const auto place = static_cast<uint64_t>(((batch * a.heads + head) * a.queries + first) * a.keys);
  const bool gives = f.scores && f.shown == AttentionScores::kProbabilities, drops = f.dropout.ratio > 0;
  T* made_at = gives ? static_cast<T*>(f.scores) + place : scores;
  const int64_t made_row = gives ? a.keys : t.row;
  const AttentionRange zeroed = gives ? AttentionRange{0, a.keys} : seen;
  T* factors = memory + t.kept;
  const NextRows<T> next(a, batch, head, q, k, v);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t query = first + i;
    next.Fetch(a, i, query);
    const AttentionRange range = part.ranges[static_cast<size_t>(i)];
    T *s = scores + i * t.row, *p = made_at + i * made_row;
    const auto show = [&](AttentionScores what, const AttentionRange& all, T outside) {
      if (f.scores && f.shown == what) ShowRow<T>(a, s, all, outside, f.scores, batch, head, query);
    };
    show(AttentionScores::kProduct, made, T{0});
    if (a.cap > 0) CapRow(s + made.begin, made.end - made.begin, a.cap);
    show(AttentionScores::kCapped, made, T{0});
    MaskRow<T>(a, f.mask, batch, head, query, range, s);
    show(AttentionScores::kMasked, range, -std::numeric_limits<T>::infinity());
    const int64_t n = range.end - range.begin;
    if (n > 0)
      WideSoftmaxRow<T>(a, s + range.begin, p + range.begin, n, reinterpret_cast<double*>(memory + t.wide));
    ZeroOutside(range, zeroed, p);
    if (drops) {
      if (gives) ZeroOutside(range, seen, s);
      if (n <= 0) continue;
      DropRow(f.dropout, place + static_cast<uint64_t>(i * a.keys + range.begin), n,
              reinterpret_cast<uint32_t*>(memory + t.words), factors);
      Map2<1, 1>(p + range.begin, factors, s + range.begin, n,
                 [](auto, auto u, auto v) HWY_ATTR { return hn::Mul(u, v); });
    }
  }
  const T* weights = drops ? scores : made_at;
  const int64_t weights_row = drops ? t.row : made_row;
  T* y = static_cast<T*>(f.y) + batch * a.y.batch + head * a.y.head + first * a.y.row;
  if (seen.end <= seen.begin) {
    for (int64_t i = 0; i < rows; ++i) std::fill_n(y + i * a.y.row, a.v_size, T{0});
    return;
  }
  if (t.few)
    AddRows(rows, weights, weights_row, v, a.v.row, a.v_size, seen, y, a.y.row);
  else
    MultiplyRange<How>(rows, weights, weights_row, memory + t.values_along, a.keys, a.v_size, seen,
                       memory + t.score_words, y, a.y.row);
}

// dS from dP for the n keys that a query sees: g becomes scale P (g - sum P g), and without the scale the
// gradient of the mask, where that is wanted. With a cap, `capped` is what the scores were capped to.
// `kept`: the mask, where it makes a score constant.
template <typename T>
void ScoreGradientsRow(const Attention& a, const bool* kept, const T* p, const T* capped, int64_t n, T* dmask,
                       T* g) {
  const hn::ScalableTag<T> d;
  const T sum = static_cast<T>(SumOver<T>(n, [&](int64_t j, int64_t count) HWY_ATTR {
    return hn::Mul(LoadUpTo(d, g + j, count), LoadUpTo(d, p + j, count));
  }));
  if (kept)
    for (int64_t j = 0; j < n; ++j) g[j] = kept[j * a.mask_key] != a.inverted_mask ? g[j] : sum;
  const auto mean = hn::Set(d, sum), scale = hn::Set(d, static_cast<T>(a.scale));
  if (!dmask && a.cap <= 0) {
    Map2<1, 1>(g, p, g, n,
               [&](auto, auto u, auto v) HWY_ATTR { return hn::Mul(hn::Mul(v, hn::Sub(u, mean)), scale); });
    return;
  }
  Map2<1, 1>(g, p, g, n, [&](auto, auto u, auto v) HWY_ATTR { return hn::Mul(v, hn::Sub(u, mean)); });
  if (dmask) std::copy_n(g, n, dmask);
  if (a.cap > 0) {
    const auto down = hn::Set(d, static_cast<T>(1 / a.cap));
    Map2<1, 1>(g, capped, g, n, [&](auto, auto u, auto v) HWY_ATTR {
      const auto tanh = hn::Mul(v, down);
      return hn::NegMulAdd(hn::Mul(tanh, tanh), u, u);
    });
  }
  Map(g, g, n, [&](auto, auto v) HWY_ATTR { return hn::Mul(v, scale); });
}

// Packs the keys and values of a head if the thread's memory has those of another head.
template <class How, typename T>
void PackBackward(const Attention& a, const AttentionBackward& b, const AttentionTiles& t,
                  AttentionPart& part, const T* k, const T* v, int64_t filled, bool needs_ds) {
  if (t.few || part.packed == filled) return;
  T* memory = static_cast<T*>(part.memory);
  if (!b.probabilities || a.cap > 0)
    PackColumns<How>(t, k, a.k.row, a.size, a.keys, static_cast<T>(a.scale), memory, memory + t.keys_across);
  if (needs_ds) PackColumns<How>(t, v, a.v.row, a.v_size, a.keys, T{1}, memory, memory + t.values_across);
  if (b.dq) PackRows<How>(k, a.k.row, a.keys, a.size, memory + t.keys_along);
  if (b.mask && narrows(a, t)) part.longest_key = LongestKey(a, k);
  part.packed = filled;
}

// Sets the sums for dK and dV to zero. A block of queries adds only to the rows of the keys that it sees.
template <typename T>
void ZeroSums(const Attention& a, const AttentionSums& sums) {
  T *dk = static_cast<T*>(sums.dk), *dv = static_cast<T*>(sums.dv);
  for (int64_t i = 0; i < a.keys; ++i) {
    if (dk) std::fill_n(dk + i * sums.dk_row, a.size, T{0});
    if (dv) std::fill_n(dv + i * sums.dv_row, a.v_size, T{0});
  }
}

// The operands of a block of queries, from which its part of the gradients follows.
template <typename T>
struct BlockOperands {
  const T *q, *k, *dy;
  const T* weights;  // D
  int64_t weights_row;
  const T* ds;
  T* dq;  // null where it is not needed
};

// Adds what a block of queries contributes to dK and dV, and writes its dQ.
template <class How, typename T>
void AddGradients(const Attention& a, const AttentionTiles& t, const AttentionSums& sums, int64_t rows,
                  const AttentionRange& seen, bool add, const BlockOperands<T>& b, T* memory) {
  T *dk = static_cast<T*>(sums.dk), *dv = static_cast<T*>(sums.dv);
  if (dv) {
    PackRows<How>(b.dy, a.y.row, rows, a.v_size, memory + t.dy_along);
    MultiplyTurned<How>(rows, b.weights, b.weights_row, seen, memory + t.dy_along, a.v_size,
                        memory + t.turned_words, dv, sums.dv_row, add);
  }
  if (dk) {
    PackRows<How>(b.q, a.q.row, rows, a.size, memory + t.q_along);
    MultiplyTurned<How>(rows, b.ds, t.row, seen, memory + t.q_along, a.size, memory + t.turned_words, dk,
                        sums.dk_row, add);
  }
  if (b.dq && t.few)
    AddRows(rows, b.ds, t.row, b.k, a.k.row, a.size, seen, b.dq, a.q.row);
  else if (b.dq)
    MultiplyRange<How>(rows, b.ds, t.row, memory + t.keys_along, a.keys, a.size, seen, memory + t.score_words,
                       b.dq, a.q.row);
}

// With P = softmax(S), D = drop(P), Y = D V:
//     dV = Dᵀ dY,  dP = drop(dY Vᵀ),  dS = P (dP - sum_j P dP),  dQ = scale dS K,  dK = scale dSᵀ Q
template <typename T, class How = MultiplyAdd>
void Backward(const Attention& a, const AttentionBackward& b, const AttentionTiles& t, AttentionPart& part,
              int64_t batch, int64_t head, int64_t block, const AttentionSums& sums) {
  T* memory = static_cast<T*>(part.memory);
  const int64_t kv_head = head / (a.heads / a.kv_heads), filled = batch * a.kv_heads + kv_head;
  const bool needs_ds = b.dq || sums.dk || b.dmask;  // dS is needed
  const T* k = static_cast<const T*>(b.k) + batch * a.k.batch + kv_head * a.k.head;
  const T* v = static_cast<const T*>(b.v) + batch * a.v.batch + kv_head * a.v.head;
  PackBackward<How>(a, b, t, part, k, v, filled, needs_ds);
  const int64_t first = block * t.block, rows = HWY_MIN(t.block, a.queries - first);
  const T* q = static_cast<const T*>(b.q) + batch * a.q.batch + head * a.q.head + first * a.q.row;
  const AttentionRange seen = FindRanges(a, t, b.lengths, b.mask, batch, head, first, rows, q, part);
  const bool whole = seen.begin == 0 && seen.end == a.keys;
  if (sums.fresh && !whole) ZeroSums<T>(a, sums);
  const bool add = !sums.fresh || !whole;
  T* dq = b.dq ? static_cast<T*>(b.dq) + batch * a.q.batch + head * a.q.head + first * a.q.row : nullptr;
  const int64_t line = (batch * a.heads + head) * a.queries + first, place = line * a.keys;
  T* dmask = b.dmask ? static_cast<T*>(b.dmask) + line * a.mask_keys : nullptr;
  if (dmask) std::fill_n(dmask, rows * a.mask_keys, T{0});
  if (seen.end <= seen.begin) {
    for (int64_t i = 0; dq && i < rows; ++i) std::fill_n(dq + i * a.q.row, a.size, T{0});
    return;
  }
  T *scores = memory + t.scores, *ds = memory + t.ds, *factors = memory + t.kept;
  // Stored probabilities are read where they are.
  const bool drops = b.dropout.ratio > 0, as_kept = b.probabilities && !drops;
  const T* kept = b.probabilities ? static_cast<const T*>(b.probabilities) + place : scores;
  const int64_t kept_row = b.probabilities ? a.keys : t.row;
  const T* dy = static_cast<const T*>(b.dy) + batch * a.y.batch + head * a.y.head + first * a.y.row;
  const bool again = !b.probabilities || a.cap > 0;  // the scores are needed
  if (again) ScoresOfBlock<How>(a, t, rows, q, k, seen, memory);
  if (needs_ds && t.few)
    MultiplyRows(rows, dy, a.y.row, v, a.v.row, a.v_size, T{1}, seen, ds, t.row);
  else if (needs_ds)
    MultiplyColumns<How>(rows, dy, a.y.row, memory + t.values_across, a.v_size, a.keys, seen, T{1},
                         memory + t.dy_words, ds, t.row);
  const T* next_dy = dy + NextHead(a.y, a.batch, a.heads, batch, head);
  const NextRows<T> next(a, batch, head, q, k, v);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t query = first + i;
    next.Fetch(a, i, query);
    FetchRow(next_dy + i * a.y.row, a.v_size);
    const AttentionRange range = part.ranges[static_cast<size_t>(i)];
    const int64_t n = range.end - range.begin;
    T *own = scores + i * t.row, *g = ds + i * t.row;
    if (!as_kept) ZeroOutside(range, seen, own);
    if (needs_ds) ZeroOutside(range, seen, g);
    if (n <= 0) continue;
    own += range.begin, g += range.begin;
    T* capped = memory + t.capped;
    if (a.cap > 0) {
      CapRow(own, n, a.cap);
      std::copy_n(own, n, capped);
    }
    if (!b.probabilities) {
      MaskRow<T>(a, b.mask, batch, head, query, range, scores + i * t.row);
      WideSoftmaxRow<T>(a, own, own, n, reinterpret_cast<double*>(memory + t.wide));
    }
    const T* p = kept + i * kept_row + range.begin;
    const auto product = [](auto, auto u, auto v) HWY_ATTR { return hn::Mul(u, v); };
    if (drops) {
      DropRow(b.dropout, static_cast<uint64_t>(place + i * a.keys + range.begin), n,
              reinterpret_cast<uint32_t*>(memory + t.words), factors);
      if (needs_ds) Map2<1, 1>(g, factors, g, n, product);
    }
    if (needs_ds) {
      // A score that the mask replaced does not depend on Q and K.
      const bool* mask = nullptr;
      if (a.mask == AttentionMask::kBool && std::isfinite(a.replaced))
        mask = static_cast<const bool*>(b.mask) + batch * a.mask_batch + head * a.mask_head +
               query * a.mask_query + range.begin * a.mask_key;
      ScoreGradientsRow<T>(a, mask, p, capped, n, dmask ? dmask + i * a.mask_keys + range.begin : nullptr, g);
    }
    if (drops) Map2<1, 1>(p, factors, own, n, product);
  }
  const T* weights = as_kept ? kept : scores;  // D
  AddGradients<How, T>(a, t, sums, rows, seen, add, {q, k, dy, weights, as_kept ? kept_row : t.row, ds, dq},
                       memory);
}

bool TakesPairs() { return kHasKernels<BFloat16> && kHasNativePairs; }

AttentionFunctions FindAttention(DType dtype, bool pairs) {
  if (kHasKernels<double> && dtype == DType::kDouble)
    return {LanesOf<double>(), Forward<double>, Backward<double>};
  if constexpr (kHasKernels<BFloat16> && kHasNativePairs)
    if (pairs) {
#if ORTRAIN_HAS_AMX_TILES
      static const bool tiles = bf16_products() == Bf16Products::kTiles;
      if (tiles) return {LanesOf<float>(), Forward<float, TilePairs>, Backward<float, TilePairs>};
#endif
      return {LanesOf<float>(), Forward<float, NativePairs>, Backward<float, NativePairs>};
    }
  return {LanesOf<float>(), Forward<float>, Backward<float>};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kAlign = 16;  // elements: 64 bytes of float

AttentionFunctions functions_of(const Attention& a) {
  return ORTRAIN_DISPATCH(FindAttention)(a.dtype, a.pairs);
}

AttentionTiles tiles_of(const Attention& a, int64_t lanes, bool backward) {
  const int64_t width = static_cast<int64_t>(size_of(a.dtype));
  AttentionTiles t;
  t.lanes = lanes;
  t.size = round_up(a.size, lanes), t.v_size = round_up(a.v_size, lanes), t.keys = round_up(a.keys, lanes);
  // Room after the last vector for a tile that spills, and so that rows do not map to one cache set.
  t.row = round_up(t.keys + 4 * lanes, kAlign) + kAlign;
  t.block = std::clamp(tuning::kScoreBytes / (t.row * width) / 6 * 6, tuning::kLeastQueries,
                       tuning::kLargestQueries);
  t.block = std::max<int64_t>(1, std::min(t.block, a.queries));
  t.blocks = (a.queries + t.block - 1) / t.block;
  const auto take = [&](int64_t elements) {
    const int64_t at = t.total;
    t.total += round_up(elements, kAlign);
    return at;
  };
  t.few = a.queries <= tuning::kFewQueries;
  t.pairs = a.pairs && a.dtype == DType::kFloat && !t.few;
  const auto take_packed = [&](int64_t elements) { return take(t.few ? 0 : elements); };
  t.scores = take(t.block * t.row);
  t.keys_across = take_packed(a.size * t.keys);
  if (backward) {
    t.ds = take(t.block * t.row);
    t.values_across = take_packed(a.v_size * t.keys);
    t.keys_along = take_packed(a.keys * t.size);
    t.q_along = take(t.block * t.size);
    t.dy_along = take(t.block * t.v_size);
    t.capped = take(t.row);
  } else {
    t.values_along = take_packed(a.keys * t.v_size);
  }
  if (t.pairs) {
    constexpr int64_t kLargestPanel = 64;  // columns
    const int64_t size = (a.size + 1) / 2, v_size = (a.v_size + 1) / 2;
    t.q_words = take(t.block * size);
    t.score_words = take(t.block * ((a.keys + 1) / 2));
    t.turned = take(kLargestPanel * std::max(size, v_size));
    if (backward) t.dy_words = take(t.block * v_size);
    if (backward) t.turned_words = take((t.block + 1) / 2 * std::max(t.row, a.keys));
  }
  t.kept = take(t.row);
  t.words = take(t.row);
  t.wide = take(2 * t.row);
  return t;
}

// The number of runs into which the queries that share a head of keys are divided: more than one if there are
// fewer such heads than threads. Each run then has separate sums.
int64_t cuts_of(const Attention& a, int threads) {
  const int64_t heads = a.batch * a.kv_heads;
  return heads == 0 || heads >= threads ? 1 : (threads + heads - 1) / heads;
}

int64_t sums_of(const Attention& a) { return round_up(a.keys * (a.size + a.v_size), kAlign); }

void zero_rows(void* data, int64_t rows, int64_t row, int64_t size, int64_t width) {
  if (!data) return;
  for (int64_t i = 0; i < rows; ++i)
    std::fill_n(static_cast<std::byte*>(data) + i * row * width, size * width, std::byte{0});
}

template <typename T>
void add_rows(const T* from, int64_t rows, int64_t size, T* to, int64_t row, bool add) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < size; ++j) to[i * row + j] = (add ? to[i * row + j] : T{0}) + from[i * size + j];
}

// How many threads are worth n pieces of work with `cost` multiplications each.
int64_t workers_for(int64_t n, int64_t cost, int threads) {
  return std::clamp<int64_t>(n * (cost / 16 + 1) / kGrain, 1, threads);
}

}  // namespace

bool attention_takes_pairs() {
  static const bool takes = has_bf16_instructions() && ORTRAIN_DISPATCH(TakesPairs)();
  return takes;
}

size_t attention_scratch(const Attention& a, bool backward, int threads) {
  const AttentionTiles t = tiles_of(a, functions_of(a).lanes, backward);
  int64_t elements = t.total * threads;
  if (const int64_t cuts = cuts_of(a, threads); backward && cuts > 1)
    elements += a.batch * a.kv_heads * cuts * sums_of(a);
  return static_cast<size_t>(elements) * size_of(a.dtype);
}

void run_attention(const Attention& a, const AttentionForward& f, int threads, void* scratch) {
  const AttentionFunctions functions = functions_of(a);
  const AttentionTiles t = tiles_of(a, functions.lanes, false);
  const int64_t width = static_cast<int64_t>(size_of(a.dtype));
  const int64_t cost = t.block * a.keys * (a.size + a.v_size);
  const int64_t n = a.batch * a.heads * t.blocks;
  share_among(workers_for(n, cost, threads), n, [&](int64_t number, int64_t begin, int64_t end) {
    AttentionPart part{static_cast<std::byte*>(scratch) + number * t.total * width};
    for (int64_t i = begin; i < end; ++i)
      functions.forward(a, f, t, part, i / t.blocks / a.heads, i / t.blocks % a.heads, i % t.blocks);
  });
}

void run_attention_gradient(const Attention& a, const AttentionBackward& b, int threads, void* scratch) {
  const AttentionFunctions functions = functions_of(a);
  const AttentionTiles t = tiles_of(a, functions.lanes, true);
  const int64_t width = static_cast<int64_t>(size_of(a.dtype)), group = a.heads / a.kv_heads;
  const int64_t cuts = cuts_of(a, threads), units = group * t.blocks;
  std::byte *memory = static_cast<std::byte*>(scratch), *sums = memory + t.total * threads * width;
  const auto at = [&](void* base, const HeadSteps& steps, int64_t head) {
    return base ? static_cast<std::byte*>(base) +
                      (head / a.kv_heads * steps.batch + head % a.kv_heads * steps.head) * width
                : nullptr;
  };
  const int64_t cost = t.block * a.keys * (2 * a.size + 2 * a.v_size) * units;
  const int64_t n = a.batch * a.kv_heads * cuts;
  share_among(workers_for(n, cost / cuts, threads), n, [&](int64_t number, int64_t begin, int64_t end) {
    AttentionPart part{memory + number * t.total * width};
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / cuts, cut = i % cuts;
      AttentionSums to{at(b.dk, a.k, head), at(b.dv, a.v, head), a.k.row, a.v.row};
      if (cuts > 1) {
        std::byte* own = sums + i * sums_of(a) * width;
        if (to.dk) to.dk = own, to.dk_row = a.size;
        if (to.dv) to.dv = own + a.keys * a.size * width, to.dv_row = a.v_size;
      }
      const int64_t first = units * cut / cuts, last = units * (cut + 1) / cuts;
      if (first == last) {
        zero_rows(to.dk, a.keys, to.dk_row, a.size, width);
        zero_rows(to.dv, a.keys, to.dv_row, a.v_size, width);
      }
      for (int64_t u = first; u < last; ++u) {
        to.fresh = u == first;
        functions.backward(a, b, t, part, head / a.kv_heads, head % a.kv_heads * group + u / t.blocks,
                           u % t.blocks, to);
      }
    }
  });
  if (cuts == 1) return;
  visit_floating(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t head = 0; head < a.batch * a.kv_heads; ++head)
      for (int64_t cut = 0; cut < cuts; ++cut) {
        const T* own = reinterpret_cast<const T*>(sums) + (head * cuts + cut) * sums_of(a);
        if (b.dk) add_rows(own, a.keys, a.size, reinterpret_cast<T*>(at(b.dk, a.k, head)), a.k.row, cut > 0);
        if (b.dv)
          add_rows(own + a.keys * a.size, a.keys, a.v_size, reinterpret_cast<T*>(at(b.dv, a.v, head)),
                   a.v.row, cut > 0);
      }
  });
}

}  // namespace ortrain
#endif
