// AdamW whose moments have 8 bits: T. Dettmers et al., "8-bit optimizers via block-wise quantization", 2022.
// Blocks of 256 elements have a scale each, and the codes are those of the authors' dynamic tree
// quantization. Parameters of fewer than 4096 elements have moments of full precision, as in the authors'
// package.
#include <algorithm>
#include <array>
#include <type_traits>

#include "backend/cpu/optimizer/rules/adamw_of_tensor.h"
#include "backend/cpu/optimizer/rules/eight_bit_codes.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kBlock = 256, kLeastElements = 4096;

// `factors` are those of the passes of AdamW.
template <typename T>
void step_of_block(const T* factors, const TensorRun<T>& run, int64_t block, T scale) {
  const int64_t begin = block * kBlock, n = std::min(kBlock, run.n - begin);
  const auto at = [&](size_t k) { return run.states[k].template data<uint8_t>() + begin; };
  float &first_scale = run.states[2].template data<float>()[block],
        &second_scale = run.states[3].template data<float>()[block];
  T first[kBlock], second[kBlock];
  read_codes(eight_bit_codes(true), at(0), n, first_scale, first);
  read_codes(eight_bit_codes(false), at(1), n, second_scale, second);
  T* const moments[] = {first, second};
  if constexpr (std::is_same_v<T, float>)
    adamw_passes().of_float(run.w + begin, run.g + begin, moments, n, factors, scale);
  else
    adamw_passes().of_double(run.w + begin, run.g + begin, moments, n, factors, scale);
  first_scale = write_codes(eight_bit_codes(true), first, n, at(0));
  second_scale = write_codes(eight_bit_codes(false), second, n, at(1));
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
