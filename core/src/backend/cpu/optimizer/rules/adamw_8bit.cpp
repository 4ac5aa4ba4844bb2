// AdamW whose moments have 8 bits and a scale for each block of 256 elements: T. Dettmers et al., "8-bit
// optimizers via block-wise quantization", 2022. As in the authors' package, parameters of fewer than 4096
// elements have moments of full precision. The codes are not the authors', whose levels must be searched for:
// eight_bit_codes.h has them. They hold the root of the second moment, which has half as many digits before
// the first that counts.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adamw_8bit.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "backend/cpu/optimizer/rules/adamw_of_tensor.h"
#include "backend/cpu/optimizer/rules/eight_bit_codes.h"
#include "runtime/threads.h"

#ifndef ORTRAIN_ADAMW_8BIT_BLOCK
#define ORTRAIN_ADAMW_8BIT_BLOCK
namespace ortrain {
namespace {

constexpr int64_t kBlock = 256, kLeastElements = 4096;

// Up to kBlock elements.
template <typename T>
struct Block {
  T* w;
  const T* g;
  int8_t* first;
  uint8_t* second;
  float *first_scale, *second_scale;
  int64_t n;
};

template <class Code, typename T>
T scale_of(T largest) {
  return largest < T(kLeastScale) ? T(0) : largest / T(Code::kLevels);
}

}  // namespace
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace {

using D = hn::ScalableTag<float>;

// The moments of a block, while its weights change.
struct Moments {
  HWY_ALIGN float first[kBlock], root[kBlock];
};

template <class Code, class DF>
HWY_INLINE hn::Vec<DF> levels(DF d, hn::Vec<hn::RebindToSigned<DF>> codes) {
  const hn::RebindToSigned<DF> di;
  const auto bits = hn::Add(hn::ShiftLeft<Code::kShift>(codes), hn::Set(di, Code::kOne + Code::kHalf));
  return hn::Sub(hn::BitCast(d, bits), hn::Set(d, Code::kOffset));
}

template <class Code>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> codes(hn::Vec<D> magnitudes, hn::Vec<D> inverse) {
  const D d;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(di, hn::MulAdd(magnitudes, inverse, hn::Set(d, Code::kOffset)));
  return hn::Sub(hn::ShiftRight<Code::kShift>(bits), hn::Set(di, Code::kOne >> Code::kShift));
}

// Reads the moments, adds the gradients, and returns the scales of the results.
void add_gradients(const Block<float>& given, const AdamWFactors<float>& factors, float scale, Moments& to,
                   float& first_scale, float& second_scale) {
  const Block<float> b = given;
  const AdamWFactors<float> f = factors;
  const float kept = f.alpha * *b.first_scale, kept_square = f.beta * *b.second_scale * *b.second_scale;
  const auto at = [&](auto d, int64_t i, auto& most, auto& most_root) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto code = hn::PromoteTo(di, hn::LoadU(hn::Rebind<int8_t, decltype(d)>(), b.first + i));
    const auto magnitude = levels<FirstMomentCode>(d, hn::Abs(code));
    const auto level = hn::CopySignToAbs(magnitude, hn::BitCast(d, code));
    const auto root_level = levels<SecondRootCode>(
        d, hn::PromoteTo(di, hn::LoadU(hn::Rebind<uint8_t, decltype(d)>(), b.second + i)));
    const auto g = hn::Mul(hn::LoadU(d, b.g + i), hn::Set(d, scale));
    const auto first = hn::MulAdd(level, hn::Set(d, kept), hn::Mul(g, hn::Set(d, 1 - f.alpha)));
    const auto second = hn::MulAdd(hn::Mul(root_level, root_level), hn::Set(d, kept_square),
                                   hn::Mul(hn::Mul(g, hn::Set(d, 1 - f.beta)), g));
    const auto root = hn::Sqrt(second);
    hn::StoreU(first, d, to.first + i);
    hn::StoreU(root, d, to.root + i);
    most = hn::Max(most, hn::Abs(first));
    most_root = hn::Max(most_root, root);
  };
  const D d;
  const hn::CappedTag<float, 1> one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto most = hn::Zero(d), most_root = most;
  auto rest = hn::Zero(one), rest_root = rest;
  int64_t i = 0;
  for (; i + lanes <= b.n; i += lanes) at(d, i, most, most_root);
  for (; i < b.n; ++i) at(one, i, rest, rest_root);
  const float largest = std::max(hn::GetLane(hn::MaxOfLanes(d, most)), hn::GetLane(rest));
  const float largest_root = std::max(hn::GetLane(hn::MaxOfLanes(d, most_root)), hn::GetLane(rest_root));
  first_scale = scale_of<FirstMomentCode>(largest);
  second_scale = scale_of<SecondRootCode>(largest_root);
}

// The division of a weight is here and the root before, so that neither loop waits for both.
template <class DF>
HWY_INLINE void change_weights(DF d, const AdamWFactors<float>& f, float* w, hn::Vec<DF> first,
                               hn::Vec<DF> root) {
  const auto divisor = hn::MulAdd(root, hn::Set(d, f.root_scale), hn::Set(d, f.epsilon));
  const auto change = hn::Div(hn::Mul(first, hn::Set(d, f.step_size)), divisor);
  hn::StoreU(hn::MulSub(hn::LoadU(d, w), hn::Set(d, f.decay_before), change), d, w);
}

// The second pass over a block, whose moments are in the cache, prefetches the block after the next one,
// which the processor does not while nothing is loaded.
HWY_INLINE void prefetch(const Block<float>& b, int64_t i) {
  constexpr int64_t kLine = 64, kFloats = 16;
  if (i % kFloats != 0) return;
  hwy::Prefetch(b.w + 2 * kBlock + i);
  hwy::Prefetch(b.g + 2 * kBlock + i);
  if (i % kLine != 0) return;
  hwy::Prefetch(b.first + 2 * kBlock + i);
  hwy::Prefetch(b.second + 2 * kBlock + i);
}

// Changes the weights and stores the moments as codes.
void change_and_store(const Block<float>& given, const AdamWFactors<float>& factors, const Moments& moments) {
  const Block<float> b = given;
  const AdamWFactors<float> f = factors;
  const float inverse = *b.first_scale > 0 ? 1 / *b.first_scale : 0;
  const float root_inverse = *b.second_scale > 0 ? 1 / *b.second_scale : 0;
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint8_t, D> bytes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= b.n; i += lanes) {
    prefetch(b, i);
    const auto first = hn::LoadU(d, moments.first + i), root = hn::LoadU(d, moments.root + i);
    change_weights(d, f, b.w + i, first, root);
    const auto sign = hn::BroadcastSignBit(hn::BitCast(di, first));
    const auto code =
        hn::Sub(hn::Xor(codes<FirstMomentCode>(hn::Abs(first), hn::Set(d, inverse)), sign), sign);
    const auto low_byte = hn::And(hn::BitCast(du, code), hn::Set(du, 0xFF));
    hn::StoreU(hn::U8FromU32(low_byte), bytes, reinterpret_cast<uint8_t*>(b.first) + i);
    const auto root_code = hn::BitCast(du, codes<SecondRootCode>(root, hn::Set(d, root_inverse)));
    hn::StoreU(hn::U8FromU32(root_code), bytes, b.second + i);
  }
  for (; i < b.n; ++i) {
    const hn::CappedTag<float, 1> one;
    change_weights(one, f, b.w + i, hn::LoadU(one, moments.first + i), hn::LoadU(one, moments.root + i));
    b.first[i] = static_cast<int8_t>(code_of<FirstMomentCode>(moments.first[i] * inverse));
    b.second[i] = static_cast<uint8_t>(code_of<SecondRootCode>(moments.root[i] * root_inverse));
  }
}

void step_of_block(const Block<float>& b, const AdamWFactors<float>& f, float scale) {
  Moments moments;
  float first_scale, second_scale;
  add_gradients(b, f, scale, moments, first_scale, second_scale);
  *b.first_scale = first_scale;
  *b.second_scale = second_scale;
  change_and_store(b, f, moments);
}

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

HWY_EXPORT(step_of_block);

void run_block(const Block<float>& b, const AdamWFactors<double>& f, double scale) {
  const auto number = [](double x) { return static_cast<float>(x); };
  const AdamWFactors<float> factors{number(f.alpha),        number(f.beta),        number(f.epsilon),
                                    number(f.decay_before), number(f.decay_after), number(f.root_scale),
                                    number(f.step_size)};
  HWY_DYNAMIC_DISPATCH(step_of_block)(b, factors, number(scale));
}

void run_block(const Block<double>& b, const AdamWFactors<double>& f, double scale) {
  double first[kBlock], root[kBlock], largest = 0, largest_root = 0;
  const double first_scale = static_cast<double>(*b.first_scale);
  const double second_scale = static_cast<double>(*b.second_scale);
  for (int64_t i = 0; i < b.n; ++i) {
    const double g = b.g[i] * scale;
    const double before = static_cast<double>(level_of<FirstMomentCode>(b.first[i])) * first_scale;
    const double root_before = static_cast<double>(level_of<SecondRootCode>(b.second[i])) * second_scale;
    first[i] = f.alpha * before + (1 - f.alpha) * g;
    root[i] = std::sqrt(f.beta * root_before * root_before + (1 - f.beta) * g * g);
    b.w[i] = b.w[i] * f.decay_before - f.step_size * first[i] / (root[i] * f.root_scale + f.epsilon);
    largest = std::max(largest, std::abs(first[i]));
    largest_root = std::max(largest_root, root[i]);
  }
  const double scale_after = scale_of<FirstMomentCode>(largest);
  const double root_scale_after = scale_of<SecondRootCode>(largest_root);
  *b.first_scale = static_cast<float>(scale_after);
  *b.second_scale = static_cast<float>(root_scale_after);
  const auto over = [](double x, double by) { return by > 0 ? static_cast<float>(x / by) : 0.0f; };
  for (int64_t i = 0; i < b.n; ++i) {
    b.first[i] = static_cast<int8_t>(code_of<FirstMomentCode>(over(first[i], scale_after)));
    b.second[i] = static_cast<uint8_t>(code_of<SecondRootCode>(over(root[i], root_scale_after)));
  }
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
    const AdamWFactors<double> factors = adamw_factors(s);
    const auto& states = run.states;
    parallel_for((run.n + kBlock - 1) / kBlock, 16 * kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t at = block * kBlock;
        run_block(Block<T>{run.w + at, run.g + at, states[0].template data<int8_t>() + at,
                           states[1].template data<uint8_t>() + at, states[2].template data<float>() + block,
                           states[3].template data<float>() + block, std::min(kBlock, run.n - at)},
                  factors, s.gradient_scale);
      }
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
     .source = "Dettmers et al., 8-bit optimizers via block-wise quantization, 2022; other codes",
     .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                  {"beta2", 0.999f, "decay of the second moment", 0, 1},
                  {"epsilon", 1e-8f, "added to the root of the second moment", 0},
                  {"weight_decay", 1e-2f, "decay of the weights, as a fraction of the learning rate"}},
     .states = {{"first_moment", "average of the gradients, codes of 8 bits"},
                {"second_moment", "average of their squares, codes of 8 bits of its root"},
                {"first_scale", "scale of the first moment of each block"},
                {"second_scale", "scale of the root of the second moment of each block"}},
     .of_tensor = tensor_rule<AdamW8bit>()});

}  // namespace
}  // namespace ortrain
#endif
