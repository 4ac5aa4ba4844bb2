// AdamW whose moments have 8 bits and a scale for each block of 256 elements: T. Dettmers et al., "8-bit
// optimizers via block-wise quantization", 2022. As in the authors' package, parameters of fewer than 4096
// elements have moments of full precision. The codes, which eight_bit_codes.h defines, differ from the
// authors', which need a search for the nearest level. They hold the root of the second moment, which has
// half as many leading zeros as the moment.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adamw_8bit.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "backend/cpu/optimizer/rules/adamw_of_tensor.h"
#include "backend/cpu/optimizer/rules/eight_bit_codes.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_ADAMW_8BIT_BLOCK
#define ORTRAIN_ADAMW_8BIT_BLOCK
namespace ortrain {
namespace {

constexpr int64_t kBlock = 256, kLeastElements = 4096;

// Consecutive blocks.
template <typename T>
struct Blocks {
  T* w;
  const T* g;
  int8_t* first;
  uint8_t* second;
  float *first_scale, *second_scale;

  Blocks from(int64_t block) const {
    const int64_t at = block * kBlock;
    return {w + at, g + at, first + at, second + at, first_scale + block, second_scale + block};
  }
};

// The numbers of a step. Each moment is computed in a unit, 1 - beta1 for the first moment and the root of 1
// - beta2 for the root of the second one, so that gradients need not be multiplied by it.
template <typename T>
struct StepNumbers {
  T gradient_scale;
  T first_unit, root_unit;
  T first_kept, root_kept;  // times a scale and a level: the part of the earlier moment that is kept
  T root_factor, epsilon;   // the first moment is divided by root * root_factor + epsilon
  T decay;                  // of the weights
};

template <class Code, typename T>
T scale_of(T largest) {
  return largest < T(kLeastScale) ? T(0) : largest / T(Code::kLevels);
}

// A step of the first n elements of a block.
template <typename T>
void step_of_block(const Blocks<T>& b, int64_t n, const StepNumbers<T>& f) {
  T first[kBlock], root[kBlock], largest = 0, largest_root = 0;
  const T first_kept = f.first_kept * static_cast<T>(*b.first_scale);
  const T root_kept = f.root_kept * static_cast<T>(*b.second_scale);
  for (int64_t i = 0; i < n; ++i) {
    const T g = b.g[i] * f.gradient_scale;
    const T root_before = static_cast<T>(level_of<SecondRootCode>(b.second[i])) * root_kept;
    first[i] = static_cast<T>(level_of<FirstMomentCode>(b.first[i])) * first_kept + g;
    root[i] = std::sqrt(root_before * root_before + g * g);
    b.w[i] = b.w[i] * f.decay - first[i] / (root[i] * f.root_factor + f.epsilon);
    largest = std::max(largest, std::abs(first[i]));
    largest_root = std::max(largest_root, root[i]);
  }
  const T first_scale = scale_of<FirstMomentCode>(largest * f.first_unit);
  const T root_scale = scale_of<SecondRootCode>(largest_root * f.root_unit);
  *b.first_scale = static_cast<float>(first_scale);
  *b.second_scale = static_cast<float>(root_scale);
  const T first_inverse = first_scale > 0 ? f.first_unit / first_scale : 0;
  const T root_inverse = root_scale > 0 ? f.root_unit / root_scale : 0;
  for (int64_t i = 0; i < n; ++i) {
    b.first[i] = static_cast<int8_t>(code_of<FirstMomentCode>(static_cast<float>(first[i] * first_inverse)));
    b.second[i] = static_cast<uint8_t>(code_of<SecondRootCode>(static_cast<float>(root[i] * root_inverse)));
  }
}

}  // namespace
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

#if HWY_TARGET == HWY_SCALAR

void step_of_blocks(const Blocks<float>& b, size_t blocks, const StepNumbers<float>& numbers) {
  for (size_t block = 0; block < blocks; ++block)
    step_of_block(b.from(static_cast<int64_t>(block)), kBlock, numbers);
}

#else

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using D16 = hn::Repartition<uint16_t, D>;
using D8 = hn::Repartition<uint8_t, D>;
using DI8 = hn::Repartition<int8_t, D>;
using V = hn::Vec<D>;

constexpr int64_t kLanes = hn::MaxLanes(D()), kGroup = 4 * kLanes;

// Levels and shares are doubled, so that the floats of which codes are a part begin at 2, whose exponent is a
// bit that no code has.
template <class Code>
constexpr int32_t kBits = std::bit_cast<int32_t>(2.0f) + Code::kHalf;

// The bytes of codes of four vectors of elements, so that the four bytes of lane j are the codes of the
// elements j of the first, third, second and fourth vector.
HWY_INLINE hn::Vec<DU> load_codes(const uint8_t* from) {
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15};
  const DU du;
  auto codes = hn::BitCast(du, hn::LoadU(D8(), from));
  if constexpr (kLanes > 4) {
    HWY_ALIGN uint32_t lanes[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = i % 4 * (kLanes / 4) + i / 4;
    codes = hn::TableLookupLanes(codes, hn::SetTableIndices(du, lanes));
  }
  return hn::BitCast(du, hn::TableLookupBytes(hn::BitCast(D8(), codes), hn::LoadDup128(D8(), kOrder)));
}

// The opposite of load_codes.
HWY_INLINE void store_codes(hn::Vec<D8> codes, uint8_t* to) {
  HWY_ALIGN static constexpr uint8_t kOrder[16] = {0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15};
  const DU du;
  codes = hn::TableLookupBytes(codes, hn::LoadDup128(D8(), kOrder));
  if constexpr (kLanes > 4) {
    HWY_ALIGN uint32_t lanes[kLanes];
    for (uint32_t i = 0; i < kLanes; ++i) lanes[i] = i % (kLanes / 4) * 4 + i / (kLanes / 4);
    codes = hn::BitCast(D8(), hn::TableLookupLanes(hn::BitCast(du, codes), hn::SetTableIndices(du, lanes)));
  }
  hn::StoreU(codes, D8(), to);
}

// The byte of lanes that has the codes of a vector, shifted to the left by `kTo` bits.
template <int kTo, int kVector>
HWY_INLINE hn::Vec<DU> moved(hn::Vec<DU> codes) {
  constexpr int kFrom = kVector == 0 ? 0 : kVector == 1 ? 16 : kVector == 2 ? 8 : 24;
  if constexpr (kTo > kFrom) return hn::ShiftLeft<kTo - kFrom>(codes);
  if constexpr (kTo < kFrom) return hn::ShiftRight<kFrom - kTo>(codes);
  return codes;
}

// Levels plus the offset of the code, doubled.
template <class Code, int kVector>
HWY_INLINE V raised_levels(hn::Vec<DU> codes) {
  constexpr int32_t kMask = Code::kMost << Code::kShift;
  const DU du;
  return hn::BitCast(
      D(), hn::OrAnd(hn::Set(du, static_cast<uint32_t>(kBits<Code>)), moved<Code::kShift, kVector>(codes),
                     hn::Set(du, static_cast<uint32_t>(kMask))));
}

// The upper halves of lanes, of the first vector in the lanes with even numbers.
HWY_INLINE hn::Vec<D16> upper_halves(V even, V odd) {
  const auto lower = hn::ShiftRight<16>(hn::BitCast(DU(), even));
  return hn::OddEven(hn::BitCast(D16(), odd), hn::BitCast(D16(), lower));
}

// The codes of four vectors, in the order of load_codes, from their upper halves.
template <class Code>
HWY_INLINE hn::Vec<D8> codes_of(hn::Vec<D16> even, hn::Vec<D16> odd) {
  return hn::OddEven(hn::BitCast(D8(), hn::ShiftLeft<24 - Code::kShift>(odd)),
                     hn::BitCast(D8(), hn::ShiftRight<Code::kShift - 16>(even)));
}

// The moments of two blocks between their passes, and the factors by which the second pass multiplies them.
struct Moments {
  HWY_ALIGN float first[2 * kBlock], root[2 * kBlock];
  HWY_ALIGN float inverses[2][4];  // for the first moments and the roots; two are not used
};

struct Largest {
  V first, root;
};

// The factors of the levels of a block.
struct Kept {
  V first, root, root_offset;
};

// The codes of a group, as load_codes gives them.
struct Codes {
  hn::Vec<DU> first, first_magnitudes, root;
};

HWY_INLINE Codes codes_at(const Blocks<float>& b, size_t i) {
  const auto first = load_codes(reinterpret_cast<const uint8_t*>(b.first) + i);
  return {first, hn::BitCast(DU(), hn::Abs(hn::BitCast(DI8(), first))), load_codes(b.second + i)};
}

// The first pass over a vector adds the gradients to its moments.
template <int kVector>
HWY_INLINE void add_gradients(const float* gradients, const StepNumbers<float>& f, const Codes& codes,
                              const Kept& kept, Moments& to, size_t i, Largest& most) {
  const D d;
  const auto magnitude = hn::Sub(raised_levels<FirstMomentCode, kVector>(codes.first_magnitudes),
                                 hn::Set(d, 2 * FirstMomentCode::kOffset));
  const auto level = hn::CopySignToAbs(magnitude, hn::BitCast(d, moved<24, kVector>(codes.first)));
  const auto root_before =
      hn::MulSub(raised_levels<SecondRootCode, kVector>(codes.root), kept.root, kept.root_offset);
  const auto g = hn::Mul(hn::LoadU(d, gradients), hn::Set(d, f.gradient_scale));
  const auto first = hn::MulAdd(level, kept.first, g);
  const auto root = hn::Sqrt(hn::MulAdd(root_before, root_before, hn::Mul(g, g)));
  hn::Store(first, d, to.first + i);
  hn::Store(root, d, to.root + i);
  most.first = hn::Max(most.first, hn::Abs(first));
  most.root = hn::Max(most.root, root);
}

// Floats that contain the codes of the moments.
struct Coded {
  V first, root;
};

// The second pass over a vector changes the weights, and prepares the codes.
HWY_INLINE Coded change_weights(float* w, const StepNumbers<float>& f, const Moments& from,
                                const float* inverses, size_t i) {
  const D d;
  const auto first = hn::Load(d, from.first + i), root = hn::Load(d, from.root + i);
  const auto divisor = hn::MulAdd(root, hn::Set(d, f.root_factor), hn::Set(d, f.epsilon));
  hn::StoreU(hn::MulSub(hn::LoadU(d, w), hn::Set(d, f.decay), hn::Div(first, divisor)), d, w);
  const auto offset = hn::CopySignToAbs(hn::Set(d, 2 * FirstMomentCode::kOffset), first);
  return {hn::MulAdd(first, hn::Set(d, inverses[0]), offset),
          hn::MulAdd(root, hn::Set(d, inverses[1]), hn::Set(d, 2 * SecondRootCode::kOffset))};
}

HWY_INLINE void store_first(V a, V b, V c, V d, int8_t* to) {
  const D8 d8;
  const auto even = upper_halves(a, b), odd = upper_halves(c, d);
  const auto codes = hn::BitCast(DI8(), codes_of<FirstMomentCode>(even, odd));
  const auto signs = hn::OddEven(hn::BitCast(d8, odd), hn::BitCast(d8, hn::ShiftRight<8>(even)));
  const auto with_signs = hn::IfNegativeThenElse(hn::BitCast(DI8(), signs), hn::Neg(codes), codes);
  store_codes(hn::BitCast(d8, with_signs), reinterpret_cast<uint8_t*>(to));
}

HWY_INLINE void store_root(V a, V b, V c, V d, uint8_t* to) {
  store_codes(codes_of<SecondRootCode>(upper_halves(a, b), upper_halves(c, d)), to);
}

// The largest of the lanes with even numbers and of those with odd numbers, as the first two lanes.
template <class DF>
HWY_INLINE auto largest_pair(DF d, hn::Vec<DF> v) {
  if constexpr (hn::MaxLanes(d) == 4) {
    return hn::Max(v, hn::Shuffle1032(v));
  } else {
    const hn::Half<DF> half;
    return largest_pair(half, hn::Max(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// The scales of a block that has been updated.
HWY_INLINE void scale_block(const StepNumbers<float>& f, const Largest& most, float* first_scale,
                            float* second_scale, float* inverses) {
  const D d;
  const hn::CappedTag<float, 4> four;
  const auto pair = largest_pair(d, hn::Max(hn::InterleaveLower(d, most.first, most.root),
                                            hn::InterleaveUpper(d, most.first, most.root)));
  HWY_ALIGN const float units[4] = {f.first_unit, f.root_unit, 0, 0};
  HWY_ALIGN static constexpr float kLevels[4] = {FirstMomentCode::kLevels, SecondRootCode::kLevels, 1, 1};
  const auto moments = hn::Mul(pair, hn::Load(four, units)), levels = hn::Load(four, kLevels);
  const auto counts = hn::Ge(moments, hn::Set(four, kLeastScale));
  HWY_ALIGN float scales[4];
  hn::Store(hn::IfThenElseZero(counts, hn::Div(moments, levels)), four, scales);
  hn::Store(hn::IfThenElseZero(counts, hn::Div(hn::Add(levels, levels), pair)), four, inverses);
  *first_scale = scales[0];
  *second_scale = scales[1];
}

// The processor prefetches too late by itself, because the kernel reads little while it computes.
HWY_INLINE void prefetch(const Blocks<float>& b, size_t i) {
  constexpr size_t kAhead = 2 * kBlock, kLine = 64, kFloats = 16;
  for (size_t k = kAhead; k < kAhead + kGroup; k += kFloats) {
    hwy::Prefetch(b.w + i + k);
    hwy::Prefetch(b.g + i + k);
  }
  if (i % kLine != 0) return;
  hwy::Prefetch(b.first + i + kAhead);
  hwy::Prefetch(b.second + i + kAhead);
}

// The first pass over a group, and the second pass over the group that is kBehind groups earlier. With both,
// the processor has arithmetic to do while it waits for a root, a quotient, or the scales of a block.
constexpr size_t kGroups = kBlock / kGroup, kBehind = kGroups + 1;

template <bool kFirstPass, bool kSecondPass>
HWY_INLINE void step_of_group(const Blocks<float>& b, const StepNumbers<float>& f, size_t group,
                              Moments& moments, Largest& most, Kept& kept) {
  const D d;
  const size_t block = group / kGroups, i = group * kGroup, j = (group - kBehind) * kGroup;
  const size_t to = i % (2 * kBlock), from = j % (2 * kBlock);
  // gcc for arm64 does not compile default constructors of structs of vectors for the instructions of this
  // code.
  const hn::Vec<DU> none = hn::Zero(DU());
  Codes codes{none, none, none};
  if constexpr (kFirstPass) {
    if (i % kBlock == 0) {
      const float root_kept = f.root_kept * b.second_scale[block];
      kept = {hn::Set(d, f.first_kept / 2 * b.first_scale[block]), hn::Set(d, root_kept / 2),
              hn::Set(d, root_kept * SecondRootCode::kOffset)};
      most = {hn::Zero(d), hn::Zero(d)};
    }
    prefetch(b, i);
    codes = codes_at(b, i);
  }
  V first_codes[4], root_codes[4];
  const auto vector = [&](auto k) HWY_ATTR {
    constexpr int kVector = decltype(k)::value;
    constexpr size_t kAt = kVector * kLanes;
    if constexpr (kFirstPass) add_gradients<kVector>(b.g + i + kAt, f, codes, kept, moments, to + kAt, most);
    if constexpr (kSecondPass) {
      const Coded coded =
          change_weights(b.w + j + kAt, f, moments, moments.inverses[from / kBlock], from + kAt);
      first_codes[kVector] = coded.first, root_codes[kVector] = coded.root;
    }
  };
  vector(std::integral_constant<int, 0>());
  vector(std::integral_constant<int, 1>());
  vector(std::integral_constant<int, 2>());
  vector(std::integral_constant<int, 3>());
  if constexpr (kSecondPass) {
    store_first(first_codes[0], first_codes[1], first_codes[2], first_codes[3], b.first + j);
    store_root(root_codes[0], root_codes[1], root_codes[2], root_codes[3], b.second + j);
  }
  if constexpr (kFirstPass)
    if (group % kGroups == kGroups - 1)
      scale_block(f, most, b.first_scale + block, b.second_scale + block, moments.inverses[to / kBlock]);
}

void step_of_blocks(const Blocks<float>& given, size_t blocks, const StepNumbers<float>& numbers) {
  const Blocks<float> b = given;
  const StepNumbers<float> f = numbers;
  const size_t groups = blocks * kGroups;
  if (groups == 0) return;
  Moments moments;
  Largest most{hn::Zero(D()), hn::Zero(D())};
  Kept kept{most.root, most.root, most.root};
  size_t group = 0;
  for (; group < std::min(kBehind, groups); ++group)
    step_of_group<true, false>(b, f, group, moments, most, kept);
  for (; group < groups; ++group) step_of_group<true, true>(b, f, group, moments, most, kept);
  for (group = std::max(group, kBehind); group < groups + kBehind; ++group)
    step_of_group<false, true>(b, f, group, moments, most, kept);
}

#endif  // HWY_SCALAR

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

template <typename T>
StepNumbers<T> step_numbers(const AdamWFactors<double>& f, double gradient_scale) {
  const double first_unit = 1 - f.alpha, root_unit = std::sqrt(1 - f.beta), rate = f.step_size * first_unit;
  // A rate of zero divides by infinity, and never multiplies it by a root of zero.
  const double epsilon = rate == 0 ? std::numeric_limits<double>::infinity() : f.epsilon / rate;
  const double root_factor = std::min(f.root_scale * root_unit / rate, double{std::numeric_limits<T>::max()});
  const auto number = [](double x) { return static_cast<T>(x); };
  return {number(gradient_scale),
          number(first_unit),
          number(root_unit),
          number(f.alpha / first_unit),
          number(std::sqrt(f.beta) / root_unit),
          number(root_factor),
          number(epsilon),
          number(f.decay_before)};
}

void run_blocks(const Blocks<float>& b, int64_t n, const StepNumbers<float>& f) {
  ORTRAIN_DISPATCH(step_of_blocks)(b, static_cast<size_t>(n / kBlock), f);
  if (n % kBlock != 0) step_of_block(b.from(n / kBlock), n % kBlock, f);
}

void run_blocks(const Blocks<double>& b, int64_t n, const StepNumbers<double>& f) {
  for (int64_t at = 0; at < n; at += kBlock) step_of_block(b.from(at / kBlock), std::min(kBlock, n - at), f);
}

struct AdamW8bit {
  static Tensor state(const OptimizerStep&, DType dtype, const Shape& shape, size_t k) {
    const int64_t n = Tensor(dtype, shape, nullptr).size();
    if (n < kLeastElements) return Tensor(dtype, k < 2 ? shape : Shape{0}, nullptr);
    if (k < 2) return Tensor(k == 0 ? DType::kInt8 : DType::kUInt8, shape, nullptr);
    return Tensor(DType::kFloat, Shape{(n + kBlock - 1) / kBlock}, nullptr);
  }

  static int64_t work(const OptimizerStep&, const Shape&) { return 0; }

  template <typename T>
  static void step(const OptimizerStep& s, const TensorRun<T>& run) {
    if (run.n < kLeastElements) return run_adamw(s, run);
    const StepNumbers<T> numbers = step_numbers<T>(adamw_factors(s), s.gradient_scale);
    const auto& states = run.states;
    const Blocks<T> all{run.w,
                        run.g,
                        states[0].template data<int8_t>(),
                        states[1].template data<uint8_t>(),
                        states[2].template data<float>(),
                        states[3].template data<float>()};
    parallel_for((run.n + kBlock - 1) / kBlock, 16 * kBlock, [&](int64_t begin, int64_t end) {
      run_blocks(all.from(begin), std::min(end * kBlock, run.n) - begin * kBlock, numbers);
    });
  }
};

ORTRAIN_OPTIMIZER(
    AdamW8bit,
    {.name = "adamw_8bit",
     .title = "AdamW8bit",
     .formula =
         "m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; w = w(1 - lr·decay) - lr/(1-β₁ᵗ) m / (√(v/(1-β₂ᵗ)) + ε); "
         "m and √v are stored with 8 bits and a scale for 256 elements",
     .source = "Dettmers et al., 8-bit optimizers via block-wise quantization, 2022; with other codes",
     .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                  {"beta2", 0.999f, "decay of the second moment", 0, 1},
                  {"epsilon", 1e-8f, "added to the root of the second moment", 0},
                  {"weight_decay", 1e-2f, "decay of the weights, as a fraction of the learning rate"}},
     .states = {{"first_moment", "average of the gradients, in codes of 8 bits"},
                {"second_moment", "average of their squares; its root is stored in codes of 8 bits"},
                {"first_scale", "scale of the first moment of each block"},
                {"second_scale", "scale of the root of the second moment of each block"}},
     .of_tensor = tensor_rule<AdamW8bit>()});

}  // namespace
}  // namespace ortrain
#endif
