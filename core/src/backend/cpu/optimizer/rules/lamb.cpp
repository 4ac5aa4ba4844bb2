// LAMB: Y. You et al., "Large batch optimization for deep learning: training BERT in 76 minutes", 2020. The
// first pass updates the moments and sums the squares of weights and directions, the second computes the
// directions once more, which takes no memory for them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/lamb.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct Lamb {
  static constexpr size_t kStates = 2, kSums = 2;
  template <typename T>
  struct Factors {
    T rate, decay, beta1, beta2, scale, root_scale, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const double beta1 = s["beta1"], beta2 = s["beta2"];
    return {.rate = s.rate,
            .decay = s["weight_decay"],
            .beta1 = beta1,
            .beta2 = beta2,
            .scale = 1 / one_minus_power(beta1, s.step),
            .root_scale = 1 / sqrt(one_minus_power(beta2, s.step)),
            .epsilon = s["epsilon"]};
  }

  template <class E, class F>
  static auto direction(const E& e, const F& f) {
    const auto root = mul_add(sqrt(e.s[1]), f.root_scale, f.epsilon);
    return mul_add(f.decay, e.w, f.scale * e.s[0] / root);
  }

  template <class E, class F, class Sums>
  static void measure(E& e, const F& f, Sums& sums) {
    e.s[0] = mix(e.s[0], e.g, f.beta1);
    e.s[1] = mix_squares(e.s[1], e.g, f.beta2);
    const auto r = direction(e, f);
    sums[0] = mul_add(e.w, e.w, sums[0]);
    sums[1] = mul_add(r, r, sums[1]);
  }

  template <typename T>
  static void combine(const T* sums, Factors<T>& f) {
    const T ratio = choose(sums[1] > 0, sqrt(sums[0] / sums[1]), 1);
    f.rate = f.rate * choose(sums[0] > 0, ratio, 1);
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    e.w = e.w - f.rate * direction(e, f);
  }
};

ORTRAIN_PASSES(Lamb)
ORTRAIN_MEASURES(Lamb)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES_WITH_SUMS(Lamb)

ORTRAIN_OPTIMIZER(
    Lamb,
    {.name = "lamb",
     .title = "Lamb",
     .formula = "m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; r = m/(1-β₁ᵗ) / (√(v/(1-β₂ᵗ)) + ε) + decay·w; "
                "w = w - lr·‖w‖/‖r‖·r, for each parameter",
     .source = "You et al., Large batch optimization for deep learning: training BERT in 76 minutes, 2020",
     .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                  {"beta2", 0.999f, "decay of the second moment", 0, 1},
                  {"epsilon", 1e-6f, "added to the root of the second moment", 0},
                  {"weight_decay", 0, "multiple of the weights that is added to the direction"}},
     .states = {{"first_moment", "average of the gradients"}, {"second_moment", "average of their squares"}},
     .passes = {Lamb_passes()}});

}  // namespace
}  // namespace ortrain
#endif
