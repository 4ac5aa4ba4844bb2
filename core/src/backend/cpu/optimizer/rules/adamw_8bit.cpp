// AdamW whose moments have 8 bits: T. Dettmers et al., "8-bit optimizers via block-wise quantization", 2022.
// Blocks of 256 elements have a scale each, and the codes are those of the authors' dynamic tree
// quantization. Parameters of fewer than 4096 elements have moments of full precision, as in the authors'
// package.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "backend/cpu/optimizer/rules/adamw_of_tensor.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kBlock = 256, kLeastElements = 4096;

// The codes of numbers of one sign in [0, 1], given by their magnitudes. The upper half of a float's bits
// leads to the first of the two codes that its value can have. There is no branch, because no processor
// could predict it.
class Magnitudes {
 public:
  void add(float value, size_t code) {
    if (count_ > 0) middles_[count_ - 1] = (last_ + value) / 2;
    last_ = value;
    codes_[count_++] = static_cast<uint8_t>(code);
  }
  void finish() {
    middles_[count_ - 1] = std::numeric_limits<float>::infinity();
    uint8_t at = 0;
    for (uint32_t high = 0; high < kHalves; ++high) {
      while (std::bit_cast<float>(high << 16) > middles_[at]) ++at;
      first_[high] = at;
    }
  }
  uint8_t code(float magnitude) const {
    // NaN has no place in the table.
    size_t at = first_[std::min(std::bit_cast<uint32_t>(magnitude) >> 16, kHalves - 1)];
    at += size_t{magnitude > middles_[at]};
    return codes_[at];
  }

 private:
  static constexpr uint32_t kHalves = (std::bit_cast<uint32_t>(1.0f) >> 16) + 1;
  std::array<float, 256> middles_{};
  std::array<uint8_t, 256> codes_{};
  std::array<uint8_t, kHalves> first_{};
  size_t count_ = 0;
  float last_ = 0;
};

// 256 numbers, sorted: seven decades with ever more steps, 0 and 1; with a sign, half of them are negative.
struct Codes {
  explicit Codes(bool is_signed) {
    std::vector<float> sorted{0, 1};
    for (int decade = 0; decade < 7; ++decade) {
      const int steps = 1 << (is_signed ? decade : decade + 1);
      for (int i = 0; i < steps; ++i) {
        const double middle = 0.1 + 0.9 * (i + 0.5) / steps;
        const auto value = static_cast<float>(middle * std::pow(10.0, decade - 6));
        sorted.push_back(value);
        if (is_signed) sorted.push_back(-value);
      }
    }
    std::sort(sorted.begin(), sorted.end());
    std::copy(sorted.begin(), sorted.end(), values.begin());
    const auto zero = static_cast<size_t>(std::find(sorted.begin(), sorted.end(), 0.0f) - sorted.begin());
    for (size_t i = zero; i < values.size(); ++i) signs[0].add(values[i], i);
    for (size_t i = zero + 1; i-- > 0;) signs[1].add(-values[i], i);
    for (Magnitudes& each : signs) each.finish();
  }
  uint8_t code(float x) const { return signs[size_t{x < 0}].code(std::abs(x)); }

  std::array<float, 256> values{};
  std::array<Magnitudes, 2> signs;  // positive and negative
};

const Codes& codes(bool is_signed) {
  static const Codes with_sign(true), without(false);
  return is_signed ? with_sign : without;
}

template <typename T>
struct Block {
  T values[kBlock];
  int64_t n;

  void read(const Codes& map, const uint8_t* from, float scale) {
    for (int64_t i = 0; i < n; ++i) values[i] = static_cast<T>(map.values[from[i]]) * static_cast<T>(scale);
  }
  float write(const Codes& map, uint8_t* to) const {
    T largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(values[i]));
    if (largest < std::numeric_limits<T>::min()) largest = 0;
    const T inverse = largest > 0 ? 1 / largest : 0;
    for (int64_t i = 0; i < n; ++i)
      to[i] = map.code(static_cast<float>(std::clamp<T>(values[i] * inverse, -1, 1)));
    return static_cast<float>(largest);
  }
};

// `factors` are those of the passes of AdamW.
template <typename T>
void step_of_block(const T* factors, const TensorRun<T>& run, int64_t block, T scale) {
  const int64_t begin = block * kBlock;
  const auto at = [&](size_t k) { return run.states[k].template data<uint8_t>() + begin; };
  float &first_scale = run.states[2].template data<float>()[block],
        &second_scale = run.states[3].template data<float>()[block];
  Block<T> first, second;
  first.n = second.n = std::min(kBlock, run.n - begin);
  first.read(codes(true), at(0), first_scale);
  second.read(codes(false), at(1), second_scale);
  T* const moments[] = {first.values, second.values};
  if constexpr (std::is_same_v<T, float>)
    adamw_passes().of_float(run.w + begin, run.g + begin, moments, first.n, factors, scale);
  else
    adamw_passes().of_double(run.w + begin, run.g + begin, moments, first.n, factors, scale);
  first_scale = first.write(codes(true), at(0));
  second_scale = second.write(codes(false), at(1));
}

struct AdamW8bit {
  static Tensor state(const OptimizerStep&, DType dtype, const Shape& shape, size_t k) {
    const int64_t n = Tensor(dtype, shape, nullptr).size();
    if (n < kLeastElements) return Tensor(dtype, k < 2 ? shape : Shape{0}, nullptr);
    return k < 2 ? Tensor(DType::kUInt8, shape, nullptr)
                 : Tensor(DType::kFloat, Shape{(n + kBlock - 1) / kBlock}, nullptr);
  }

  static int64_t work(const OptimizerStep&, const Shape&) { return 0; }

  template <typename T>
  static void step(const OptimizerStep& s, const TensorRun<T>& run) {
    if (run.n < kLeastElements) return run_adamw(s, run);
    const auto exact = adamw_pass_factors(s);
    std::array<T, exact.size()> factors;
    std::transform(exact.begin(), exact.end(), factors.begin(), [](double x) { return static_cast<T>(x); });
    parallel_for((run.n + kBlock - 1) / kBlock, 16 * kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block)
        step_of_block(factors.data(), run, block, static_cast<T>(s.gradient_scale));
    });
  }
};

ORTRAIN_OPTIMIZER(
    AdamW8bit,
    {.name = "adamw_8bit",
     .title = "AdamW8bit",
     .formula =
         "m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; w = w(1 - lr·decay) - lr/(1-β₁ᵗ) m / (√(v/(1-β₂ᵗ)) + ε); "
         "m and v are stored with 8 bits and a scale for 256 elements",
     .source = "Dettmers et al., 8-bit optimizers via block-wise quantization, 2022",
     .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                  {"beta2", 0.999f, "decay of the second moment", 0, 1},
                  {"epsilon", 1e-8f, "added to the root of the second moment", 0},
                  {"weight_decay", 1e-2f, "decay of the weights, as a fraction of the learning rate"}},
     .states = {{"first_moment", "average of the gradients, codes of 8 bits"},
                {"second_moment", "average of their squares, codes of 8 bits"},
                {"first_scale", "largest first moment of each block"},
                {"second_scale", "largest second moment of each block"}},
     .of_tensor = tensor_rule<AdamW8bit>()});

}  // namespace
}  // namespace ortrain
