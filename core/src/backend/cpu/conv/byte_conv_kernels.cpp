// x86 processors without AVX2 get vectors here too, as in multiply.cpp.
#if defined(__x86_64__)
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/conv/byte_conv_kernels.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backend/cpu/conv/byte_conv_kernels.h"
#include "backend/cpu/elementwise/requantize-inl.h"
#include "backend/cpu/matmul/integer_words-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// The most vectors of sums that a tile has.
template <typename How>
constexpr int64_t kSums = How::kVectors == 4 ? 24 : 12;
constexpr int64_t kMostLanes = hn::MaxLanes(I32());

// Points of a tile that is V vectors wide.
template <typename How, int V>
constexpr int kRows = How::kVectors == 4 ? (V == 1 ? 12 : 24 / V) : 6;

// Codes of `points` rows of sums, which are `vectors` vectors wide.
void StoreCodes(const int32_t* sums, int64_t points, int64_t vectors, int64_t filters,
                const FilterCodes& codes, uint8_t* y, int64_t y_row) {
  const I32 d;
  const hn::Rebind<uint8_t, I32> bytes;
  const int64_t lanes = Lanes();
  const CodeRange range = codes.range;
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t at = v * lanes, count = std::min(lanes, filters - at);
    const auto narrow = hn::LoadU(hn::Rebind<float, I32>(), codes.narrow + at);
    const auto store = [&](auto whole) HWY_ATTR {
      const int32_t* from = sums + at;
      uint8_t* to = y + at;
      for (int64_t p = 0; p < points; ++p, to += y_row, from += vectors * lanes) {
        const auto made =
            RequantizedBytes(d, hn::LoadU(d, from), narrow, codes.factors + at, 1, lanes, range);
        if constexpr (decltype(whole)::value)
          hn::StoreU(made, bytes, to);
        else
          StoreUpTo(made, bytes, to, count);
      }
    };
    if (count == lanes)
      store(std::true_type());
    else
      store(std::false_type());
  }
}

// Sums of words begin with the offsets of the filters. Those of pairs are in another order until Total(), so
// that their offsets are added at the end.
template <typename How>
HWY_INLINE V32 First(V32 offset) {
  return How::kGroup == 4 ? offset : hn::Zero(I32());
}
template <typename How>
HWY_INLINE V32 Last(V32 sum, V32 rest, V32 offset) {
  const V32 total = How::Total(sum, rest);
  return How::kGroup == 4 ? total : hn::Add(total, offset);
}

#define ORTRAIN_EACH_OF(r) ORTRAIN_SUM(r, 0) ORTRAIN_SUM(r, 1) ORTRAIN_SUM(r, 2) ORTRAIN_SUM(r, 3)
#define ORTRAIN_EACH_SUM \
  ORTRAIN_EACH_OF(0)     \
  ORTRAIN_EACH_OF(1)     \
  ORTRAIN_EACH_OF(2)     \
  ORTRAIN_EACH_OF(3)     \
  ORTRAIN_EACH_OF(4)     \
  ORTRAIN_EACH_OF(5)     \
  ORTRAIN_EACH_OF(6)     \
  ORTRAIN_EACH_OF(7) ORTRAIN_EACH_OF(8) ORTRAIN_EACH_OF(9) ORTRAIN_EACH_OF(10) ORTRAIN_EACH_OF(11)
#define ORTRAIN_EACH_ROW \
  ORTRAIN_ROW(0)         \
  ORTRAIN_ROW(1)         \
  ORTRAIN_ROW(2)         \
  ORTRAIN_ROW(3)         \
  ORTRAIN_ROW(4)         \
  ORTRAIN_ROW(5) ORTRAIN_ROW(6) ORTRAIN_ROW(7) ORTRAIN_ROW(8) ORTRAIN_ROW(9) ORTRAIN_ROW(10) ORTRAIN_ROW(11)

// The sums [R, V vectors] of R points.
template <typename How, int R, int V>
HWY_NOINLINE void Tile(const BytePanel& p, const uint32_t* const* windows, int32_t* sums) {
  const I32 d;
  const int64_t lanes = Lanes();
  const int32_t* b = reinterpret_cast<const int32_t*>(p.weights);
  const auto offset_of = [&](int64_t v) HWY_ATTR { return hn::LoadU(d, p.codes.offsets + v * lanes); };
  const V32 o0 = offset_of(0), none = hn::Zero(d);
  [[maybe_unused]] V32 o1 = none, o2 = none, o3 = none;
  if constexpr (V > 1) o1 = offset_of(1);
  if constexpr (V > 2) o2 = offset_of(2);
  if constexpr (V > 3) o3 = offset_of(3);
#define ORTRAIN_SUM(r, v) [[maybe_unused]] V32 c##r##v = First<How>(o##v), e##r##v = none;
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
  for (int64_t run = 0; run < p.run_count; ++run) {
    const int64_t offset = p.runs[run];
#define ORTRAIN_ROW(r) \
  [[maybe_unused]] const int32_t* a##r = reinterpret_cast<const int32_t*>(windows[R > r ? r : 0]) + offset;
    ORTRAIN_EACH_ROW
#undef ORTRAIN_ROW
    for (int64_t w = 0; w < p.run_words; ++w, b += V * lanes) {
      const V32 b0 = hn::LoadU(d, b);
      [[maybe_unused]] V32 b1 = b0, b2 = b0, b3 = b0;
      if constexpr (V > 1) b1 = hn::LoadU(d, b + lanes);
      if constexpr (V > 2) b2 = hn::LoadU(d, b + 2 * lanes);
      if constexpr (V > 3) b3 = hn::LoadU(d, b + 3 * lanes);
#define ORTRAIN_ROW(r)                                         \
  if constexpr (R > r) {                                       \
    const V32 x = hn::Set(d, a##r[w]);                         \
    How::MulAdd(x, b0, c##r##0, e##r##0);                      \
    if constexpr (V > 1) How::MulAdd(x, b1, c##r##1, e##r##1); \
    if constexpr (V > 2) How::MulAdd(x, b2, c##r##2, e##r##2); \
    if constexpr (V > 3) How::MulAdd(x, b3, c##r##3, e##r##3); \
  }
      ORTRAIN_EACH_ROW
#undef ORTRAIN_ROW
    }
  }
#define ORTRAIN_SUM(r, v) \
  if constexpr (R > r && V > v) hn::StoreU(Last<How>(c##r##v, e##r##v, o##v), d, sums + (r * V + v) * lanes);
  ORTRAIN_EACH_SUM
#undef ORTRAIN_SUM
}
#undef ORTRAIN_EACH_ROW
#undef ORTRAIN_EACH_SUM
#undef ORTRAIN_EACH_OF

template <typename How, int V>
void Points(const BytePanel& p) {
  HWY_ALIGN int32_t sums[kSums<How> * kMostLanes];
  int64_t point = 0;
  const auto tiles = [&](auto rows) HWY_ATTR {
    constexpr int R = decltype(rows)::value;
    for (; point + R <= p.points; point += R) {
      Tile<How, R, V>(p, p.windows + point, sums);
      StoreCodes(sums, R, V, p.filters, p.codes, p.y + point * p.y_row, p.y_row);
    }
  };
  constexpr int kMost = kRows<How, V>;
  tiles(std::integral_constant<int, kMost>());
  if constexpr (kMost > 3) tiles(std::integral_constant<int, kMost / 3>());
  tiles(std::integral_constant<int, 1>());
}

template <typename How>
void Multiply(const BytePanel& p) {
  switch ((p.filters + Lanes() - 1) / Lanes()) {
    case 1:
      return Points<How, 1>(p);
    case 2:
      return Points<How, 2>(p);
    case 3:
      if constexpr (How::kVectors == 4) return Points<How, 3>(p);
      break;
    default:
      if constexpr (How::kVectors == 4) return Points<How, 4>(p);
  }
}

// The sums of this many points stay in registers, so that each weight is read once for all of them.
constexpr int64_t kAtOnce = 4;

// A line of sums of one vector of channels from `channel` on, for the points [first, first + count).
template <typename How>
void SumOfLine(const ByteLine& p, int64_t channel, int64_t first, int64_t count, int32_t* sums) {
  const I32 d;
  const int64_t lanes = Lanes(), step = p.stride * p.channels, gap = p.dilation * p.channels;
  const int64_t row = (p.channels + lanes - 1) / lanes * lanes;
  const int32_t* from = reinterpret_cast<const int32_t*>(p.words) + first * step + channel;
  const V32 offset = hn::LoadU(d, p.codes.offsets + channel), none = hn::Zero(d);
  for (int64_t i = 0; i < count; i += kAtOnce, from += kAtOnce * step) {
    const int64_t left = count - i;  // points past the end are computed again
    const int64_t s1 = left > 1 ? step : 0, s2 = left > 2 ? 2 * step : 0, s3 = left > 3 ? 3 * step : 0;
    V32 c0 = First<How>(offset), c1 = c0, c2 = c0, c3 = c0, e0 = none, e1 = e0, e2 = e0, e3 = e0;
    const int32_t* w = reinterpret_cast<const int32_t*>(p.weights) + channel;
    for (int64_t g = 0; g < p.groups; ++g) {
      const int32_t* x = from + g * p.group_words;
      for (int64_t k = 0; k < p.kernel; ++k, x += gap, w += row) {
        const V32 weight = hn::LoadU(d, w);
        How::MulAdd(hn::LoadU(d, x), weight, c0, e0);
        How::MulAdd(hn::LoadU(d, x + s1), weight, c1, e1);
        How::MulAdd(hn::LoadU(d, x + s2), weight, c2, e2);
        How::MulAdd(hn::LoadU(d, x + s3), weight, c3, e3);
      }
    }
    hn::StoreU(Last<How>(c0, e0, offset), d, sums + i * lanes);
    hn::StoreU(Last<How>(c1, e1, offset), d, sums + (i + 1) * lanes);
    hn::StoreU(Last<How>(c2, e2, offset), d, sums + (i + 2) * lanes);
    hn::StoreU(Last<How>(c3, e3, offset), d, sums + (i + 3) * lanes);
  }
}

template <typename How>
void SumLine(const ByteLine& p) {
  constexpr int64_t kPart = 32;  // points
  HWY_ALIGN int32_t sums[kPart * kMostLanes];
  const int64_t lanes = Lanes();
  for (int64_t channel = 0; channel < p.channels; channel += lanes)
    for (int64_t first = 0; first < p.points; first += kPart) {
      const int64_t count = std::min(kPart, p.points - first);
      SumOfLine<How>(p, channel, first, count, sums);
      StoreCodes(sums, count, 1, p.channels - channel, p.codes.from(channel),
                 p.y + first * p.channels + channel, p.channels);
    }
}

// Adding 128 to a byte, or subtracting it, inverts its highest bit.
template <typename How, typename Q>
constexpr uint32_t kFlip = How::kLeft.of(std::is_signed_v<Q>) ? 0x80808080u : 0;

// The bits of element x in a word, at the given place of the group.
template <typename How, typename Q>
uint32_t InWord(Q x, int64_t place) {
  if constexpr (How::kGroup == 4)
    return uint32_t{static_cast<uint8_t>(x)} << (8 * place);
  else
    return uint32_t{static_cast<uint16_t>(static_cast<int16_t>(x))} << (16 * place);
}

// The compiler vectorizes these loops.
template <typename How, typename Q>
void ToWordsOf(int64_t n, int64_t channels, const Q* HWY_RESTRICT x, uint32_t* HWY_RESTRICT to) {
  constexpr int64_t kGroup = How::kGroup;
  if (channels % kGroup == 0) {
    const int64_t words = n * channels / kGroup;
    for (int64_t i = 0; i < words; ++i) {
      uint32_t word = 0;
      if constexpr (kGroup == 4)
        std::memcpy(&word, x + 4 * i, 4);
      else
        word = InWord<How>(x[2 * i], 0) | InWord<How>(x[2 * i + 1], 1);
      to[i] = word ^ kFlip<How, Q>;
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i, x += channels)
    for (int64_t c = 0; c < channels; c += kGroup) {
      uint32_t word = 0;
      for (int64_t g = 0; g < std::min(kGroup, channels - c); ++g) word |= InWord<How>(x[c + g], g);
      *to++ = word ^ kFlip<How, Q>;
    }
}

template <typename How>
void ToWords(int64_t n, int64_t channels, const uint8_t* x, bool is_signed, uint32_t* to) {
  if (is_signed)
    ToWordsOf<How>(n, channels, reinterpret_cast<const int8_t*>(x), to);
  else
    ToWordsOf<How>(n, channels, x, to);
}

template <typename How, typename Q>
void CombineOf(int64_t n, const uint8_t* const* rows, uint32_t* HWY_RESTRICT to) {
  const Q *HWY_RESTRICT r0 = reinterpret_cast<const Q*>(rows[0]),
                        *HWY_RESTRICT r1 = reinterpret_cast<const Q*>(rows[1]);
  if constexpr (How::kGroup == 4) {
    const Q *HWY_RESTRICT r2 = reinterpret_cast<const Q*>(rows[2]),
                          *HWY_RESTRICT r3 = reinterpret_cast<const Q*>(rows[3]);
    for (int64_t i = 0; i < n; ++i)
      to[i] =
          (InWord<How>(r0[i], 0) | InWord<How>(r1[i], 1) | InWord<How>(r2[i], 2) | InWord<How>(r3[i], 3)) ^
          kFlip<How, Q>;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = InWord<How>(r0[i], 0) | InWord<How>(r1[i], 1);
  }
}

template <typename How>
void Combine(int64_t n, const uint8_t* const* rows, bool is_signed, uint32_t* to) {
  if (is_signed)
    CombineOf<How, int8_t>(n, rows, to);
  else
    CombineOf<How, uint8_t>(n, rows, to);
}

template <typename How>
ByteConvKernels KernelsOf() {
  return {How::kGroup,  Lanes(),      How::kVectors * Lanes(), How::kLeft,
          ToWords<How>, Combine<How>, Multiply<How>,           SumLine<How>};
}

ByteConvKernels FindByteConvKernels(bool quads) {
#if ORTRAIN_HAS_QUADS
  if (quads && MultipliesQuads()) return KernelsOf<Quads>();
#endif
  (void)quads;
  return KernelsOf<Pairs>();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {}

ByteConvKernels byte_conv_kernels(bool quads) { return ORTRAIN_DISPATCH(FindByteConvKernels)(quads); }

}  // namespace ortrain
#endif
