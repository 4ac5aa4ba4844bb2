#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/channels_last_depthwise.cpp"
#include <hwy/foreach_target.h>

#include <hwy/cache_control.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "backend/cpu/conv/channels_last_depthwise.h"
#include "backend/cpu/conv/clip.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/checked.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_CHANNELS_LAST_DEPTHWISE_TYPES
#define ORTRAIN_CHANNELS_LAST_DEPTHWISE_TYPES
namespace ortrain {

// A line of the source that results read, and the weights that belong to it.
struct DepthwiseLine {
  const float *x, *w;
};

// The same for the gradient of the weights, and the memory of its sums, which begin with zero.
struct DepthwiseProductLine {
  const float* x;
  float* totals;
};

// Results of one line, and the elements of the window along it: tap k of a line has its weights at
// w + weights[k] and reads element i * step + offsets[k] for result i.
struct DepthwiseResults {
  int64_t channels, target_channels;  // of an element of the source and of the target
  int64_t source, step, taps;
  const int64_t *offsets, *weights;
  int64_t first, past;              // of the results that are computed
  int64_t inner_first, inner_past;  // of those whose windows are inside
  int64_t every;                    // elements of the target from one result to the next
  float* y;                         // of result 0
  int64_t fresh;  // number of last lines that no earlier line of results has read; 0: do not prefetch

  int64_t next() const { return every * target_channels; }  // floats from one result to the next
};

// Whether the taps of a line read neighboring elements.
inline bool is_neighboring(const DepthwiseResults& r) {
  for (int64_t k = 1; k < r.taps; ++k)
    if (r.offsets[k] != r.offsets[k - 1] + 1) return false;
  return true;
}

// The operations after the sums: Y = bias + sums + addend, clipped to [low, high]; bias and addend may be
// null.
struct DepthwiseFinish {
  const float *bias, *addend;  // addend: of result 0
  float low, high;
};

// Lines of results, each from three lines of the source, with three neighboring taps and a step of 1 or 2.
// Line i of the results reads the source's lines[3 * i] to lines[3 * i + 2], and is i * pitch after line 0.
struct DepthwiseThreeLines {
  DepthwiseResults r;
  int64_t count, pitch;
  const float* const* lines;
  const float* weights[3];  // of each line of the window
  DepthwiseFinish finish;
  const float* after;  // the line of the source after the last one that line 0 of the results reads
};

struct ChannelsLastDepthwiseFunctions {
  // Y from the sums over `count` lines, for the channels [begin, end).
  void (*sums)(const DepthwiseResults& r, int64_t count, const DepthwiseLine* lines,
               const DepthwiseFinish& finish, int64_t begin, int64_t end);
  // The same for all channels, which are at least a vector. If the addend is Y, they are whole vectors.
  void (*three)(const DepthwiseThreeLines& g);
  int64_t lanes;
  // totals[weights[k] + c] of each line += the sum over all results of dy x, for the channels [begin, end);
  // r.y is dY.
  void (*products)(const DepthwiseResults& r, int64_t count, const DepthwiseProductLine* lines, int64_t begin,
                   int64_t end);
};

}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

using F32 = hn::ScalableTag<float>;

// Processors older than those with AVX2 get fewer functions: the size of the library matters more.
constexpr bool kFew = HWY_TARGET == HWY_SSE4;

// sum + weight x
HWY_INLINE Vec<F32> AddProduct(Vec<F32> weight, const float* x, Vec<F32> sum) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_TARGET == HWY_AVX2
  // gcc would load elements that two results read into registers, and keep weights in memory instead.
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(weight.raw), "m"(*reinterpret_cast<const __m256_u*>(x)));
  return sum;
#else
  const F32 d;
  return hn::MulAdd(weight, hn::LoadU(d, x), sum);
#endif
}

// sum + a b, all three in registers: gcc would read an operand that several products use from memory for
// each.
HWY_INLINE Vec<F32> AddProduct(Vec<F32> a, Vec<F32> b, Vec<F32> sum) {
#if HWY_COMPILER_GCC_ACTUAL && HWY_TARGET == HWY_AVX2
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum.raw) : "x"(a.raw), "x"(b.raw));
  return sum;
#else
  return hn::MulAdd(a, b, sum);
#endif
}

// Prefetches the elements [begin, end) into the second-level cache. This is not a lambda: gcc would find that
// a lambda that only prefetches has no effect, and remove it.
HWY_INLINE void PrefetchFloats(const float* from, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += 16) __builtin_prefetch(from + i, 0, 2);
}

// `count` is that of the channels, less than a vector unless kWhole.
template <bool kWhole>
HWY_INLINE Vec<F32> LoadChannels(const float* from, int64_t count) {
  const F32 d;
  if constexpr (kWhole) return hn::LoadU(d, from);
  return LoadUpTo(d, from, count);
}
template <bool kWhole>
HWY_INLINE void StoreChannels(Vec<F32> v, float* to, int64_t count) {
  const F32 d;
  if constexpr (kWhole)
    hn::StoreU(v, d, to);
  else
    StoreUpTo(v, d, to, count);
}

// Neighboring results of a line, `count` lines of the source, and the taps that are inside for all of these
// results. Functions take a copy: otherwise the compiler would assume that the vectors they store may change
// it.
struct Neighbors {
  DepthwiseResults r;
  const DepthwiseLine* lines;
  DepthwiseFinish finish;
  int64_t count, at, first_tap, past_tap;
};

#define ORTRAIN_EACH_RESULT(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)

// Stores the sums s0, s1, ... of R results.
#define ORTRAIN_STORE(i)                                                                          \
  if constexpr (R > i) {                                                                          \
    auto v = s##i;                                                                                \
    if (n.finish.addend)                                                                          \
      v = hn::Add(v, LoadChannels<kWhole>(n.finish.addend + (n.at + i) * next + channel, count)); \
    StoreChannels<kWhole>(ClipTo(d, v, low, high), n.r.y + (n.at + i) * next + channel, count);   \
  }

// R results of a vector of channels.
template <int R, bool kWhole>
HWY_INLINE void SumsOf(const Neighbors& n, int64_t channel, int64_t count) {
  const F32 d;
  const auto low = hn::Set(d, n.finish.low), high = hn::Set(d, n.finish.high);
  const auto start = n.finish.bias ? LoadChannels<kWhole>(n.finish.bias + channel, count) : hn::Zero(d);
  auto s0 = start, s1 = start, s2 = start, s3 = start, s4 = start, s5 = start, s6 = start, s7 = start;
  const int64_t pitch = n.r.step * n.r.channels, next = n.r.next();
  for (int64_t l = 0; l < n.count; ++l)
    for (int64_t k = n.first_tap; k < n.past_tap; ++k) {
      const auto weight = LoadChannels<kWhole>(n.lines[l].w + n.r.weights[k] + channel, count);
      const float* x = n.lines[l].x + n.at * pitch + n.r.offsets[k] * n.r.channels + channel;
#define ORTRAIN_RESULT(i) \
  if constexpr (R > i) s##i = hn::MulAdd(weight, LoadChannels<kWhole>(x + i * pitch, count), s##i);
      ORTRAIN_EACH_RESULT(ORTRAIN_RESULT)
#undef ORTRAIN_RESULT
    }
  ORTRAIN_EACH_RESULT(ORTRAIN_STORE)
}

// Up to eight results of a vector of channels, with K neighboring taps and a step of 1. Each element of the
// source is loaded once for all results that read it, unless it is outside of the line.
template <int K>
HWY_NOINLINE void SumsOfElements(const Neighbors& n, int64_t results, int64_t channel) {
  constexpr int R = 8;
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d)), channels = n.r.channels, next = n.r.next(),
                tap = n.r.weights[1] - n.r.weights[0], column = n.at + n.r.offsets[0], first = -column,
                past = n.r.source - column;
  const auto start = n.finish.bias ? hn::LoadU(d, n.finish.bias + channel) : hn::Zero(d);
  Vec<F32> sums[R], weights[K];
  HWY_UNROLL(8)
  for (int i = 0; i < R; ++i) sums[i] = start;
  for (int64_t l = 0; l < n.count; ++l) {
    const float *x = n.lines[l].x + column * channels + channel, *w = n.lines[l].w + n.r.weights[0] + channel;
    HWY_UNROLL(8)
    for (int k = 0; k < K; ++k) weights[k] = hn::LoadU(d, w + k * tap);
    HWY_UNROLL(14)
    for (int j = 0; j < R - 1 + K; ++j) {
      if (j < first || j >= past) continue;
      const auto element = hn::LoadU(d, x + j * channels);
      HWY_UNROLL(8)
      for (int i = 0; i < R; ++i)
        if (j >= i && j < i + K) sums[i] = AddProduct(weights[j - i], element, sums[i]);
    }
  }
  HWY_ALIGN float ended[R * hn::MaxLanes(d)];
  HWY_UNROLL(8)
  for (int i = 0; i < R; ++i) hn::Store(sums[i], d, ended + i * lanes);
  const auto low = hn::Set(d, n.finish.low), high = hn::Set(d, n.finish.high);
  int64_t to = n.at * next + channel;
  HWY_UNROLL(1)
  for (int64_t i = 0; i < results; ++i, to += next) {
    auto sum = hn::Load(d, ended + i * lanes);
    if (n.finish.addend) sum = hn::Add(sum, hn::LoadU(d, n.finish.addend + to));
    hn::StoreU(ClipTo(d, sum, low, high), d, n.r.y + to);
  }
}

// A result of four vectors of channels: a single vector would wait for each of its sums.
HWY_INLINE void SumsOfFourVectors(const Neighbors& n, int64_t channel) {
  const F32 d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t from = n.at * n.r.step * n.r.channels + channel, to = n.at * n.r.next() + channel;
  const auto low = hn::Set(d, n.finish.low), high = hn::Set(d, n.finish.high);
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
#define ORTRAIN_EACH_VECTOR(F) F(0) F(1) F(2) F(3)
#define ORTRAIN_START(v) s##v = hn::LoadU(d, n.finish.bias + channel + v * lanes);
  if (n.finish.bias) {
    ORTRAIN_EACH_VECTOR(ORTRAIN_START)
  }
  for (int64_t l = 0; l < n.count; ++l)
    for (int64_t k = n.first_tap; k < n.past_tap; ++k) {
      const float* w = n.lines[l].w + n.r.weights[k] + channel;
      const float* x = n.lines[l].x + n.r.offsets[k] * n.r.channels + from;
#define ORTRAIN_TERM(v) s##v = hn::MulAdd(hn::LoadU(d, w + v * lanes), hn::LoadU(d, x + v * lanes), s##v);
      ORTRAIN_EACH_VECTOR(ORTRAIN_TERM)
    }
#define ORTRAIN_ADD(v) s##v = hn::Add(s##v, hn::LoadU(d, n.finish.addend + to + v * lanes));
  if (n.finish.addend) {
    ORTRAIN_EACH_VECTOR(ORTRAIN_ADD)
  }
#define ORTRAIN_END(v) hn::StoreU(ClipTo(d, s##v, low, high), d, n.r.y + to + v * lanes);
  ORTRAIN_EACH_VECTOR(ORTRAIN_END)
#undef ORTRAIN_END
#undef ORTRAIN_ADD
#undef ORTRAIN_TERM
#undef ORTRAIN_START
#undef ORTRAIN_EACH_VECTOR
}

#undef ORTRAIN_STORE
#undef ORTRAIN_EACH_RESULT

// Prefetches the elements of the fresh lines that later results read, and the memory of those results:
// processors prefetch the elements after those that are read, but R results read at R places. The order is
// that of the addresses, so that processors recognize the pattern.
template <int R>
struct Later {
  int64_t read, x;  // elements of the source for each channel, and the place of the first one in its line
  const float* y;

  explicit Later(const Neighbors& n) : read(n.r.taps > 0 ? R * n.r.step : 0) {
    const int64_t at = n.at + HWY_MAX(int64_t{R}, tuning::kDepthwiseAhead / n.r.channels);
    x = read > 0 ? (at * n.r.step + n.r.offsets[n.r.taps - 1]) * n.r.channels : 0;
    y = n.r.y + at * n.r.next();
  }
  // The share of `count` channels from `channel` on.
  HWY_INLINE void prefetch(const Neighbors& n, int64_t channel, int64_t count) const {
    const int64_t written = R * n.r.every;
    for (int64_t i = channel * written; i < (channel + count) * written; i += 16) hwy::Prefetch(y + i);
    for (int64_t l = n.count - n.r.fresh; l < n.count; ++l)
      for (int64_t i = channel * read; i < (channel + count) * read; i += 16)
        hwy::Prefetch(n.lines[l].x + x + i);
  }
};

// `results` results of less than a vector of channels: at most two at a time, which takes less code.
HWY_NOINLINE void SumsOfRest(const Neighbors& given, int64_t results, int64_t channel, int64_t count) {
  constexpr int R = kFew ? 1 : 2;
  Neighbors n = given;
  for (; results >= R; results -= R, n.at += R) SumsOf<R, false>(n, channel, count);
  if (results > 0) SumsOf<1, false>(n, channel, count);
}

// R results of the channels [begin, end).
template <int R>
HWY_NOINLINE void SumsOfChannels(const Neighbors& given, int64_t begin, int64_t end) {
  const Neighbors n = given;
  const Later<R> later(n);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  // The last vector may begin with channels of the vector before, unless the sums are added to the target.
  const bool overlaps = end >= lanes && n.finish.addend != n.r.y;
  int64_t channel = begin;
  while (channel + lanes <= end || (overlaps && channel < end)) {
    channel = HWY_MIN(channel, end - lanes);
    const bool four = R == 1 && channel + 4 * lanes <= end;
    const int64_t count = four ? 4 * lanes : lanes;
    if (n.r.fresh > 0) later.prefetch(n, channel, count);
    if (four)
      SumsOfFourVectors(n, channel);
    else
      SumsOf<R, true>(n, channel, lanes);
    channel += count;
  }
  if (channel < end) SumsOfRest(n, R, channel, end - channel);
}

// SumsOfElements for the taps and the step of a line, or null if there is no such function.
using ElementSums = void (*)(const Neighbors&, int64_t, int64_t);
ElementSums FindElementSums(const DepthwiseResults& r) {
  if constexpr (!kFew) {
    if (r.step == 1 && is_neighboring(r))
      return r.taps == 5 ? SumsOfElements<5> : r.taps == 7 ? SumsOfElements<7> : nullptr;
  }
  return nullptr;
}

void Sums(const DepthwiseResults& r, int64_t count, const DepthwiseLine* lines, const DepthwiseFinish& finish,
          int64_t begin, int64_t end) {
  Neighbors n{r, lines, finish, count, r.first, 0, r.taps};
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  // The last vector may begin with channels of the vector before, unless the sums are added to the target.
  if (end - begin >= lanes && (finish.addend != r.y || (end - begin) % lanes == 0)) {
    if (const ElementSums sums = FindElementSums(r)) {
      for (; n.at < r.past; n.at += 8) {
        const Later<8> later(n);
        for (int64_t channel = begin; channel < end; channel += lanes) {
          channel = HWY_MIN(channel, end - lanes);
          if (r.fresh > 0) later.prefetch(n, channel, lanes);
          sums(n, HWY_MIN(int64_t{8}, r.past - n.at), channel);
        }
      }
      return;
    }
  }
  const auto border = [&](int64_t past) HWY_ATTR {
    for (; n.at < past; ++n.at) {
      const auto column = [&](int64_t k) { return n.at * r.step + r.offsets[k]; };
      n.first_tap = 0, n.past_tap = r.taps;
      while (n.first_tap < r.taps && column(n.first_tap) < 0) ++n.first_tap;
      while (n.past_tap > n.first_tap && column(n.past_tap - 1) >= r.source) --n.past_tap;
      SumsOfChannels<1>(n, begin, end);
    }
    n.first_tap = 0, n.past_tap = r.taps;
  };
  border(r.inner_first);
  for (; n.at + 8 <= r.inner_past; n.at += 8) SumsOfChannels<8>(n, begin, end);
  for (; n.at < r.inner_past; ++n.at) SumsOfChannels<1>(n, begin, end);
  border(r.past);
}

// The results [r.first, r.past) of lines, for a vector of channels: the weights stay in registers.
#define ORTRAIN_EACH_TAP(F) \
  F(0, 0, 0) F(1, 0, 1) F(2, 0, 2) F(3, 1, 0) F(4, 1, 1) F(5, 1, 2) F(6, 2, 0) F(7, 2, 1) F(8, 2, 2)
#define ORTRAIN_WEIGHT(t, l, k) const auto w##t = hn::LoadU(d, g.weights[l] + r.weights[k] + channel);
// Tap t, which is tap k of line l, of four results or one.
#define ORTRAIN_FOUR(t, l, k)                               \
  s0 = AddProduct(w##t, x##l + k * channels, s0);           \
  s1 = AddProduct(w##t, x##l + (S + k) * channels, s1);     \
  s2 = AddProduct(w##t, x##l + (2 * S + k) * channels, s2); \
  s3 = AddProduct(w##t, x##l + (3 * S + k) * channels, s3);
// Three taps of line l of four results, with a step of 1: each element is loaded once.
#define ORTRAIN_LINE(l, u, v, w)                                            \
  {                                                                         \
    const auto e0 = hn::LoadU(d, x##l), e1 = hn::LoadU(d, x##l + channels), \
               e2 = hn::LoadU(d, x##l + 2 * channels);                      \
    s0 = AddProduct(u, e0, s0);                                             \
    s1 = AddProduct(u, e1, s1);                                             \
    s0 = AddProduct(v, e1, s0);                                             \
    s2 = AddProduct(u, e2, s2);                                             \
    s1 = AddProduct(v, e2, s1);                                             \
    s0 = AddProduct(w, e2, s0);                                             \
    const auto e3 = hn::LoadU(d, x##l + 3 * channels);                      \
    s3 = AddProduct(u, e3, s3);                                             \
    s2 = AddProduct(v, e3, s2);                                             \
    s1 = AddProduct(w, e3, s1);                                             \
    const auto e4 = hn::LoadU(d, x##l + 4 * channels);                      \
    s3 = AddProduct(v, e4, s3);                                             \
    s2 = AddProduct(w, e4, s2);                                             \
    s3 = AddProduct(w, hn::LoadU(d, x##l + 5 * channels), s3);              \
  }
#define ORTRAIN_ONE(t, l, k) \
  if (inside##k) s0 = AddProduct(w##t, x##l + k * channels, s0);
#define ORTRAIN_STORE(i)                                                           \
  if (g.finish.addend) s##i = hn::Add(s##i, hn::LoadU(d, addend + at + i * next)); \
  hn::StoreU(ClipTo(d, s##i, low, high), d, r.y + at + i * next);
template <int S>
HWY_INLINE void ThreeLinesOfVector(const DepthwiseThreeLines& g, const DepthwiseResults& r, int64_t channel) {
  const F32 d;
  const int64_t channels = r.channels, pitch = S * channels, next = r.next();
  const float* const addend = g.finish.addend;
  const auto low = hn::Set(d, g.finish.low), high = hn::Set(d, g.finish.high);
  const auto start = g.finish.bias ? hn::LoadU(d, g.finish.bias + channel) : hn::Zero(d);
  ORTRAIN_EACH_TAP(ORTRAIN_WEIGHT)
  const int64_t inner_past = HWY_MIN(r.inner_past, r.past);
  for (int64_t line = 0; line < g.count; ++line) {
    const int64_t place = (r.first * S + r.offsets[0]) * channels + channel;
    const float* const* lines = g.lines + 3 * line;
    const float *x0 = lines[0] + place, *x1 = lines[1] + place, *x2 = lines[2] + place;
    int64_t at = line * g.pitch + r.first * next + channel, step = 0;
    for (int64_t i = r.first; i < r.past; i += step) {
      auto s0 = start;
      if (i >= r.inner_first && i + 4 <= inner_past) {
        auto s1 = start, s2 = start, s3 = start;
        if constexpr (S == 1) {
          ORTRAIN_LINE(0, w0, w1, w2)
          ORTRAIN_LINE(1, w3, w4, w5)
          ORTRAIN_LINE(2, w6, w7, w8)
        } else {
          ORTRAIN_EACH_TAP(ORTRAIN_FOUR)
        }
        ORTRAIN_STORE(0)
        ORTRAIN_STORE(1)
        ORTRAIN_STORE(2)
        ORTRAIN_STORE(3)
        step = 4;
      } else {
        const int64_t column = i * S + r.offsets[0];
        const bool inside0 = column >= 0 && column < r.source,
                   inside1 = column >= -1 && column + 1 < r.source,
                   inside2 = column >= -2 && column + 2 < r.source;
        ORTRAIN_EACH_TAP(ORTRAIN_ONE)
        ORTRAIN_STORE(0)
        step = 1;
      }
      x0 += step * pitch, x1 += step * pitch, x2 += step * pitch, at += step * next;
    }
  }
}
#undef ORTRAIN_STORE
#undef ORTRAIN_ONE
#undef ORTRAIN_LINE
#undef ORTRAIN_FOUR
#undef ORTRAIN_WEIGHT
#undef ORTRAIN_EACH_TAP

// Prefetches what the results after [r.first, r.past) read first and write, or those of the next line: the
// share of the channels [channel, channel + count).
HWY_INLINE void PrefetchThreeLines(const DepthwiseThreeLines& g, const DepthwiseResults& r, int64_t channel,
                                   int64_t count) {
  const int64_t results = r.past - r.first, columns = results * r.step, end = channel + count;
  for (int64_t l = 0; l < r.fresh; ++l)
    PrefetchFloats(r.past < g.r.past
                       ? g.lines[3 - r.fresh + l] + (r.past * r.step + r.offsets[2]) * r.channels
                       : g.after + l * r.source * r.channels,
                   channel * columns, end * columns);
  PrefetchFloats(r.y + r.past * r.next(), channel * results * r.every, end * results * r.every);
}

void ThreeLines(const DepthwiseThreeLines& given) {
  const DepthwiseThreeLines g = given;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  const bool in_order = g.r.step > 1 && g.r.past > tuning::kDepthwiseShort;
  const int64_t together = g.r.fresh == 0 ? g.r.past : in_order ? 4 : tuning::kDepthwiseTogether;
  DepthwiseResults r = g.r;
  for (; r.first < g.r.past; r.first = r.past) {
    r.past = HWY_MIN(r.first + together, g.r.past);
    for (int64_t channel = 0; channel < r.channels; channel += lanes) {
      channel = HWY_MIN(channel, r.channels - lanes);  // the last vector may overlap
      if (r.fresh > 0) PrefetchThreeLines(g, r, channel, lanes);
      if (r.step == 1)
        ThreeLinesOfVector<1>(g, r, channel);
      else
        ThreeLinesOfVector<2>(g, r, channel);
    }
  }
}

// K taps from tap `first` on.
template <int K, bool kWhole>
HWY_INLINE void ProductsOfTaps(const DepthwiseResults& r, const float* x, int64_t first, int64_t channel,
                               int64_t count, float* totals) {
  const F32 d;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0;
  const int64_t pitch = r.step * r.channels;
  const float* dy = r.y + channel;
  const auto border = [&](int64_t i) HWY_ATTR {
    const auto g = LoadChannels<kWhole>(dy + i * r.channels, count);
    const auto term = [&](int k, Vec<F32> sum) HWY_ATTR {
      const int64_t column = i * r.step + r.offsets[first + k];
      if (column < 0 || column >= r.source) return sum;
      return hn::MulAdd(g, LoadChannels<kWhole>(x + column * r.channels + channel, count), sum);
    };
    s0 = term(0, s0);
    if constexpr (K > 1) s1 = term(1, s1);
    if constexpr (K > 2) s2 = term(2, s2);
  };
  for (int64_t i = r.first; i < r.inner_first; ++i) border(i);
  const float* from = x + channel;
  const int64_t o0 = r.offsets[first] * r.channels, o1 = K > 1 ? r.offsets[first + 1] * r.channels : 0,
                o2 = K > 2 ? r.offsets[first + 2] * r.channels : 0;
  for (int64_t i = r.inner_first; i < r.inner_past; ++i) {
    const auto g = LoadChannels<kWhole>(dy + i * r.channels, count);
    const float* at = from + i * pitch;
    s0 = hn::MulAdd(g, LoadChannels<kWhole>(at + o0, count), s0);
    if constexpr (K > 1) s1 = hn::MulAdd(g, LoadChannels<kWhole>(at + o1, count), s1);
    if constexpr (K > 2) s2 = hn::MulAdd(g, LoadChannels<kWhole>(at + o2, count), s2);
  }
  for (int64_t i = r.inner_past; i < r.past; ++i) border(i);
  const auto add = [&](int k, Vec<F32> sum) HWY_ATTR {
    float* to = totals + r.weights[first + k] + channel;
    StoreChannels<kWhole>(hn::Add(LoadChannels<kWhole>(to, count), sum), to, count);
  };
  add(0, s0);
  if constexpr (K > 1) add(1, s1);
  if constexpr (K > 2) add(2, s2);
}

template <bool kWhole>
HWY_NOINLINE void ProductsOfChannels(const DepthwiseResults& r, const float* x, int64_t channel,
                                     int64_t count, float* totals) {
  int64_t k = 0;
  if constexpr (kFew && !kWhole) {
    for (; k < r.taps; ++k) ProductsOfTaps<1, false>(r, x, k, channel, count, totals);
    return;
  }
  for (; k + 3 <= r.taps; k += 3) ProductsOfTaps<3, kWhole>(r, x, k, channel, count, totals);
  if (k + 2 == r.taps) return ProductsOfTaps<2, kWhole>(r, x, k, channel, count, totals);
  if (k + 1 == r.taps) ProductsOfTaps<1, kWhole>(r, x, k, channel, count, totals);
}

// L lines with K neighboring taps each, for a vector of channels: enough sums to hide the latency of a
// multiply-add, and an element of dY is loaded once for all of them.
#define ORTRAIN_EACH_TAP(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9)
#define ORTRAIN_TAP(t)     \
  if constexpr (t < L * K) \
    s##t = hn::MulAdd(g, hn::LoadU(d, (t / K == 0 ? x0 : t / K == 1 ? x1 : x2) + t % K * channels), s##t);
#define ORTRAIN_TAP_INSIDE(t)          \
  if (t % K >= begin && t % K < end) { \
    ORTRAIN_TAP(t)                     \
  }
#define ORTRAIN_BORDER(past)                                                                    \
  for (; i < past; ++i, dy += channels, x0 += pitch, x1 += pitch, x2 += pitch) {                \
    const auto g = hn::LoadU(d, dy);                                                            \
    const int64_t column = i * r.step + r.offsets[0], begin = -column, end = r.source - column; \
    ORTRAIN_EACH_TAP(ORTRAIN_TAP_INSIDE)                                                        \
  }
template <int L, int K>
HWY_NOINLINE void ProductsOfLines(const DepthwiseResults& given, const DepthwiseProductLine* lines,
                                  int64_t channel) {
  static_assert(L * K <= 10);
  const F32 d;
  const DepthwiseResults r = given;
  const int64_t channels = r.channels, pitch = r.step * channels;
  const int64_t place = r.first * pitch + r.offsets[0] * channels + channel;
  const float *x0 = lines[0].x + place, *x1 = lines[1].x + place, *x2 = lines[L - 1].x + place;
  const float* dy = r.y + r.first * channels + channel;
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0;
  int64_t i = r.first;
  ORTRAIN_BORDER(r.inner_first)
  for (; i < r.inner_past; ++i, dy += channels, x0 += pitch, x1 += pitch, x2 += pitch) {
    const auto g = hn::LoadU(d, dy);
    ORTRAIN_EACH_TAP(ORTRAIN_TAP)
  }
  ORTRAIN_BORDER(r.past)
#undef ORTRAIN_BORDER
#undef ORTRAIN_TAP_INSIDE
#undef ORTRAIN_TAP
#define ORTRAIN_TAP(t)                                            \
  if constexpr (t < L * K) {                                      \
    float* to = lines[t / K].totals + r.weights[t % K] + channel; \
    hn::StoreU(hn::Add(hn::LoadU(d, to), s##t), d, to);           \
  }
  ORTRAIN_EACH_TAP(ORTRAIN_TAP)
#undef ORTRAIN_TAP
#undef ORTRAIN_EACH_TAP
}

// Prefetches the elements of dY that belong to `results` results from `first` on, and the elements of the
// fresh lines that these read: the share of one vector of channels, from `channel` on. The channels of a
// result are neighbors in memory, as are results.
HWY_INLINE void PrefetchProducts(const DepthwiseResults& r, int64_t count, const DepthwiseProductLine* lines,
                                 int64_t first, int64_t results, int64_t channel) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32()));
  if (r.fresh == 0) return;
  const float* const dy = r.y + first * r.channels;
  const int64_t columns = results * r.step, end = channel + lanes;
  PrefetchFloats(dy, channel * results, end * results);
  for (int64_t l = count - r.fresh; l < count; ++l)
    PrefetchFloats(lines[l].x + (first * r.step + r.offsets[r.taps - 1]) * r.channels, channel * columns,
                   end * columns);
}

void Products(const DepthwiseResults& r, int64_t count, const DepthwiseProductLine* lines, int64_t begin,
              int64_t end) {
  // Results whose elements stay in the first-level cache from one vector of channels to the next.
  constexpr int64_t kTogether = 32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(F32())), whole = begin + (end - begin) / lanes * lanes;
  const bool neighboring = is_neighboring(r), three = neighboring && r.taps == 3,
             five = neighboring && r.taps == 5;
  // Lines that are computed together, and how many lines belong to such groups.
  const int64_t group = three ? 3 : five ? 2 : 0, grouped = group > 0 ? count / group * group : 0;
  DepthwiseResults part = r;
  for (int64_t first = r.first; grouped > 0 && first < r.past; first = part.past) {
    part.first = first, part.past = HWY_MIN(first + kTogether, r.past);
    part.inner_first = HWY_MAX(first, HWY_MIN(r.inner_first, part.past));
    part.inner_past = HWY_MAX(part.inner_first, HWY_MIN(r.inner_past, part.past));
    for (int64_t channel = begin; channel < whole; channel += lanes) {
      PrefetchProducts(r, count, lines, part.past, part.past - first, channel);
      for (int64_t l = 0; l < grouped; l += group)
        three ? ProductsOfLines<3, 3>(part, lines + l, channel)
              : ProductsOfLines<2, 5>(part, lines + l, channel);
    }
  }
  for (int64_t l = 0; l < count; ++l) {
    for (int64_t channel = begin; l >= grouped && channel < whole; channel += lanes)
      ProductsOfChannels<true>(r, lines[l].x, channel, lanes, lines[l].totals);
    if (whole < end) ProductsOfChannels<false>(r, lines[l].x, whole, end - whole, lines[l].totals);
  }
}

ChannelsLastDepthwiseFunctions FindChannelsLastDepthwise() {
  return {Sums, ThreeLines, static_cast<int64_t>(hn::Lanes(F32())), Products};
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ChannelsLastDepthwiseFunctions functions() { return ORTRAIN_DISPATCH(FindChannelsLastDepthwise)(); }

constexpr int64_t kLongest = 1 << 26;  // elements along an axis; then no size overflows
constexpr int64_t kMostLines = 256;    // of the source that a result reads
constexpr int64_t kColumns = 256;      // results of a line that are computed together

bool is_depthwise(const ConvSizes& s) {
  if (s.groups != s.channels || s.groups != s.filters || s.batch * s.filters == 0) return false;
  if (s.window[0].kernel > kMostLines || s.window[1].kernel > kMostLines) return false;
  if (s.window[0].kernel * s.window[1].kernel > kMostLines) return false;
  return std::all_of(s.window.begin(), s.window.end(), [](const WindowAxis& a) {
    return a.output > 0 && a.input <= kLongest && a.output <= kLongest && a.kernel <= 4096 && a.stride <= 8 &&
           a.before <= kLongest && capped_product({a.kernel, a.dilation}) <= kLongest;
  });
}

// Calls f(source index, tap) for the elements of a window that are inside.
template <typename F>
void each_inside(const PassAxis& a, int64_t result, F&& f) {
  for (size_t k = 0; k < a.offsets.size(); ++k) {
    const int64_t at = result * a.step + a.offsets[k];
    if (at >= 0 && at < a.source) f(at, a.taps[k]);
  }
}

}  // namespace

DepthwiseResults ChannelsLastDepthwise::results_of(const Pass& p, const Share& share,
                                                   const DepthwiseSource& source) const {
  const PassAxis& a = p.axes[2];
  DepthwiseResults r{source.end - source.begin,
                     sizes_.channels,
                     a.source,
                     a.step,
                     std::ssize(a.taps),
                     a.offsets.data(),
                     p.places.data(),
                     share.first,
                     share.past,
                     share.first,
                     share.past,
                     a.every,
                     share.target + source.begin,
                     share.prefetches ? std::min<int64_t>(std::ssize(p.axes[1].taps), p.axes[1].step) : 0};
  if (a.offsets.empty()) return r;
  while (r.inner_first < r.past && r.inner_first * a.step + a.offsets.front() < 0) ++r.inner_first;
  while (r.inner_past > r.inner_first && (r.inner_past - 1) * a.step + a.offsets.back() >= a.source)
    --r.inner_past;
  return r;
}

ChannelsLastDepthwise::ChannelsLastDepthwise(const ConvSizes& sizes)
    : sizes_(sizes), suits_(is_depthwise(sizes)) {
  if (!suits_) return;
  taps_ = sizes_.column_rows();
  const WindowAxis &d = sizes_.window[0], &h = sizes_.window[1], &w = sizes_.window[2];
  const int64_t work = capped_product({sizes_.batch, sizes_.output_points(), sizes_.channels, taps_});
  workers_ = std::clamp<int64_t>(work / tuning::kMultiplications / kGrain, 1, max_threads());
  const auto pass = [&](PassAxis outer, PassAxis middle, PassAxis inner) {
    Pass p{{std::move(outer), std::move(middle), std::move(inner)}, {}};
    for (const int64_t tap : p.axes[2].taps) p.places.push_back(tap * sizes_.channels);
    return p;
  };
  forward_ = pass(forward_axis(d), forward_axis(h), forward_axis(w));
  for (int64_t i = 0; i < std::min(d.stride, d.input); ++i)
    for (int64_t j = 0; j < std::min(h.stride, h.input); ++j)
      for (int64_t k = 0; k < std::min(w.stride, w.input); ++k)
        backward_.push_back(pass(backward_axis(d, i), backward_axis(h, j), backward_axis(w, k)));
  const auto needs_zeros = [&](const Pass& p) { return has_three_lines(p, sizes_.channels, nullptr); };
  if (needs_zeros(forward_) || std::any_of(backward_.begin(), backward_.end(), needs_zeros))
    zeros_ = std::make_shared<std::vector<float>>(
        static_cast<size_t>(std::max(w.input, w.output) * sizes_.channels));
}

void ChannelsLastDepthwise::turn_weights(const float* w, float* turned) const {
  for (int64_t c = 0; c < sizes_.channels; ++c)
    for (int64_t tap = 0; tap < taps_; ++tap) turned[tap * sizes_.channels + c] = w[c * taps_ + tap];
}

bool ChannelsLastDepthwise::has_three_lines(const Pass& p, int64_t channels, const float* addend) const {
  const PassAxis &d = p.axes[0], &h = p.axes[1], &w = p.axes[2];
  const auto is_three = [](const PassAxis& a) { return a.taps.size() == 3; };
  const bool alone = d.taps.size() == 1 && d.source == 1 && d.count == 1 && d.offsets[0] == 0;
  const int64_t lanes = functions().lanes;
  return alone && is_three(h) && is_three(w) && w.offsets[1] == w.offsets[0] + 1 && w.step <= 2 &&
         channels >= lanes && (!addend || channels % lanes == 0);
}

void ChannelsLastDepthwise::compute_three_lines(const Pass& p, const Share& share, int64_t count,
                                                DepthwiseSource source, const float* weights,
                                                const Activation& activation) const {
  const PassAxis &h = p.axes[1], &w = p.axes[2];
  const int64_t line = w.source * (source.end - source.begin);
  const Clip clip = clip_of(activation);
  const DepthwiseResults r = results_of(p, share, source);
  constexpr int64_t kTogether = 16;
  const float* lines[3 * kTogether];
  DepthwiseThreeLines t{r,
                        0,
                        w.count * sizes_.channels,
                        lines,
                        {},
                        {share.bias ? share.bias + source.begin : nullptr,
                         share.addend ? share.addend + source.begin : nullptr, clip.low, clip.high},
                        nullptr};
  const auto line_of = [&](int64_t at, int64_t tap) {
    return at * h.step + h.offsets[static_cast<size_t>(tap)];
  };
  const int64_t weights_line = sizes_.window[2].kernel * sizes_.channels;
  for (size_t l = 0; l < 3; ++l) t.weights[l] = weights + h.taps[l] * weights_line + source.begin;
  for (int64_t at = share.at_h, past = at + count; at < past; at += t.count, t.r.y += t.count * t.pitch) {
    t.count = std::min(past - at, kTogether);
    for (int64_t i = 0; i < 3 * t.count; ++i) {
      const int64_t n = line_of(at + i / 3, i % 3);
      lines[i] = n >= 0 && n < h.source ? source.data + n % source.stored * line : zeros_->data();
    }
    t.after = source.data + (line_of(at, 2) + 1) * line;
    functions().three(t);
  }
}

void ChannelsLastDepthwise::compute(const Pass& p, const Share& share, DepthwiseSource source,
                                    const float* weights, const Activation& activation) const {
  const int64_t channels = source.end - source.begin;
  if (has_three_lines(p, channels, share.addend))
    return compute_three_lines(p, share, 1, source, weights, activation);
  const PassAxis &d = p.axes[0], &h = p.axes[1];
  DepthwiseLine lines[kMostLines];
  int64_t count = 0;
  each_inside(d, share.at_d, [&](int64_t i, int64_t tap_d) {
    each_inside(h, share.at_h, [&](int64_t j, int64_t tap_h) {
      lines[count++] = {
          source.data + (i * h.source + j) % source.stored * p.axes[2].source * channels,
          weights + (tap_d * sizes_.window[1].kernel + tap_h) * sizes_.window[2].kernel * sizes_.channels +
              source.begin};
    });
  });
  DepthwiseResults r = results_of(p, share, source);
  r.fresh = std::min(r.fresh, count);
  const Clip clip = clip_of(activation);
  const float* bias = share.bias ? share.bias + source.begin : nullptr;
  const int64_t together = tuning::kDepthwiseFloats / std::max<int64_t>(3 * taps_, 1) / 16 * 16 + 16;
  for (int64_t channel = 0; channel < channels; channel += together)
    functions().sums(r, count, lines, {bias, share.addend, clip.low, clip.high}, channel,
                     std::min(channel + together, channels));
}

void ChannelsLastDepthwise::run(std::span<const Pass> passes, const float* source, const float* weights,
                                const float* bias, const float* addend, const Activation& activation,
                                float* target) const {
  const PassAxis &d = passes[0].axes[0], &h = passes[0].axes[1];
  const int64_t channels = sizes_.channels, across = (passes[0].axes[2].count + kColumns - 1) / kColumns;
  const int64_t items = sizes_.batch * d.count * h.count * across;
  share_among(workers_, items, [&](int64_t, int64_t first, int64_t past) {
    for (int64_t item = first; item < past; ++item) {
      const int64_t line = item / across, image = line / h.count / d.count;
      const int64_t lines = d.source * h.source;
      bool prefetches = true;
      for (const Pass& p : passes) {
        const PassAxis& w = p.axes[2];
        Share s{line / h.count % d.count, line % h.count, item % across * kColumns, 0, bias};
        const int64_t result =
            ((image * d.target + d.first + s.at_d * d.every) * h.target + h.first + s.at_h * h.every) *
                w.target +
            w.first;
        s.past = std::min(s.first + kColumns, w.count);
        s.addend = addend ? addend + result * channels : nullptr;
        s.target = target + result * channels;
        s.prefetches = std::exchange(prefetches, false);
        compute(p, s, {source + image * lines * w.source * channels, lines, 0, channels}, weights,
                activation);
        // Only the forward pass has other activations, and its results of a line are consecutive.
        if (!clip_of(activation).complete)
          activation.apply((s.past - s.first) * channels, s.target + s.first * channels);
      }
    }
  });
}

void ChannelsLastDepthwise::forward_lines(int64_t first, int64_t past, DepthwiseSource x, const float* turned,
                                          const float* bias, const Activation& activation, float* y) const {
  const int64_t columns = forward_.axes[2].count;
  Share s{0, first, 0, columns, bias, nullptr, y, false};
  if (has_three_lines(forward_, x.end - x.begin, nullptr))
    return compute_three_lines(forward_, s, past - first, x, turned, activation);
  for (; s.at_h < past; ++s.at_h, s.target += columns * sizes_.channels)
    for (s.first = 0; s.first < columns; s.first += kColumns) {
      s.past = std::min(s.first + kColumns, columns);
      compute(forward_, s, x, turned, activation);
    }
}

void ChannelsLastDepthwise::forward(const float* x, const float* turned, const float* bias,
                                    const float* addend, const Activation& activation, float* y) const {
  run({&forward_, 1}, x, turned, bias, addend, activation, y);
}

void ChannelsLastDepthwise::backward_data(const float* dy, const float* turned, float* dx) const {
  // The passes that write a line take turns, as their results are next to each other.
  const size_t together = static_cast<size_t>(std::min(sizes_.window[2].stride, sizes_.window[2].input));
  for (size_t i = 0; i < backward_.size(); i += together)
    run({&backward_[i], together}, dy, turned, nullptr, nullptr, {}, dx);
}

void ChannelsLastDepthwise::backward_weights(const float* dy, const float* x, float* dw, float* work) const {
  constexpr int64_t kChannels = 64;
  const int64_t channels = sizes_.channels, chunks = (channels + kChannels - 1) / kChannels;
  // A task is an image, or a chunk of its channels if threads would be idle otherwise. Each image has
  // separate sums, so tasks do not change them.
  const int64_t parts = sizes_.batch >= workers_ ? 1 : chunks, size = taps_ * channels;
  share_among(workers_, sizes_.batch * parts, [&](int64_t, int64_t first, int64_t past) {
    for (int64_t task = first; task < past; ++task) {
      const int64_t image = task / parts, part = task % parts;
      add_products(image, dy, x, chunks * part / parts * kChannels,
                   std::min(chunks * (part + 1) / parts * kChannels, channels), work + image * size);
    }
  });
  parallel_for(chunks, kChannels * taps_ * sizes_.batch, [&](int64_t first, int64_t past) {
    for (int64_t chunk = first; chunk < past; ++chunk)
      for (int64_t tap = 0; tap < taps_; ++tap) {
        const int64_t begin = chunk * kChannels, n = std::min(kChannels, channels - begin);
        double totals[kChannels] = {};
        for (int64_t image = 0; image < sizes_.batch; ++image)
          for (int64_t c = 0; c < n; ++c) totals[c] += work[image * size + tap * channels + begin + c];
        for (int64_t c = 0; c < n; ++c) dw[(begin + c) * taps_ + tap] = static_cast<float>(totals[c]);
      }
  });
}

void ChannelsLastDepthwise::add_products(int64_t image, const float* dy, const float* x, int64_t begin,
                                         int64_t end, float* sums) const {
  const ChannelsLastDepthwiseFunctions f = functions();
  const PassAxis &d = forward_.axes[0], &h = forward_.axes[1], &w = forward_.axes[2];
  const int64_t channels = sizes_.channels;
  for (int64_t tap = 0; tap < taps_; ++tap)
    std::fill(sums + tap * channels + begin, sums + tap * channels + end, 0.0f);
  // Channels whose sums, and elements of a few results, fit into the first-level cache.
  const int64_t together = tuning::kDepthwiseFloats / std::max<int64_t>(2 * taps_, 1) / 16 * 16 + 16;
  for (int64_t line = 0; line < d.count * h.count; ++line) {
    DepthwiseProductLine lines[kMostLines];
    int64_t count = 0;
    each_inside(d, line / h.count, [&](int64_t i, int64_t tap_d) {
      each_inside(h, line % h.count, [&](int64_t j, int64_t tap_h) {
        lines[count++] = {
            x + ((image * d.source + i) * h.source + j) * w.source * channels,
            sums + (tap_d * sizes_.window[1].kernel + tap_h) * sizes_.window[2].kernel * channels};
      });
    });
    // Only if all channels are read, what is prefetched is contiguous. dY is only read.
    Share s{0, line % h.count, 0, w.count};
    s.target = const_cast<float*>(dy) + (image * d.count * h.count + line) * w.count * channels;
    DepthwiseResults r = results_of(forward_, s, {nullptr, 0, 0, channels});
    r.fresh = end - begin == channels ? std::min(count, h.step) : 0;
    for (int64_t channel = begin; channel < end; channel += together)
      f.products(r, count, lines, channel, std::min(channel + together, end));
  }
}

}  // namespace ortrain
#endif
