// RAdam: L. Liu et al., "On the variance of the adaptive learning rate and beyond", 2020. As in PyTorch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/radam.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct RAdam {
  static constexpr size_t kStates = 2;
  template <typename T>
  struct Factors {
    T plain, adaptive, kept, decay, beta1, beta2, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const double beta1 = s["beta1"], beta2 = s["beta2"];
    const double most = 2 / (1 - beta2) - 1;
    const auto corrected = one_minus_power(beta2, s.step);
    const auto length = most - 2 * s.step * power(beta2, s.step) / corrected;
    const auto step_size = s.rate / one_minus_power(beta1, s.step);
    const auto adaptive = step_size * sqrt(corrected) *
                          sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
    // While the variance of the second moment is unknown, the step does not use it.
    const auto is_known = length > 5;
    const bool decoupled = s["decoupled_weight_decay"] != 0;
    return {.plain = choose(is_known, 0, step_size),
            .adaptive = choose(is_known, adaptive, 0),
            .kept = decoupled ? 1 - s.rate * s["weight_decay"] : 1,
            .decay = decoupled ? 0 : s["weight_decay"],
            .beta1 = beta1,
            .beta2 = beta2,
            .epsilon = s["epsilon"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto &m = e.s[0], &v = e.s[1];
    const auto g = mul_add(f.decay, e.w, e.g);
    m = mix(m, g, f.beta1);
    v = mix_squares(v, g, f.beta2);
    // The larger number keeps 0 / 0 away where epsilon is 0 and the step is not adaptive.
    const auto root = at_least_normal(sqrt(v) + f.epsilon);
    e.w = e.w * f.kept - m * (f.adaptive / root + f.plain);
  }
};

ORTRAIN_PASSES(RAdam)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(RAdam)

ORTRAIN_OPTIMIZER(
    RAdam,
    {.name = "radam",
     .title = "RAdam",
     .formula =
         "g = g + decay·w; m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; ρ = ρ∞ - 2tβ₂ᵗ/(1-β₂ᵗ), ρ∞ = 2/(1-β₂) - 1; "
         "ρ > 5: w = w - lr/(1-β₁ᵗ) r m √(1-β₂ᵗ) / (√v + ε), r² = (ρ-4)(ρ-2)ρ∞ / ((ρ∞-4)(ρ∞-2)ρ); "
         "else w = w - lr/(1-β₁ᵗ) m",
     .source = "Liu et al., On the variance of the adaptive learning rate and beyond, 2020",
     .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                  {"beta2", 0.999f, "decay of the second moment", 0, 1},
                  {"epsilon", 1e-8f, "added to the root of the second moment", 0},
                  {"weight_decay", 0, "multiple of the weights that is added to the gradients"},
                  {"decoupled_weight_decay", 0, "whether the weights decay as in AdamW", 0, 2, true}},
     .states = {{"first_moment", "average of the gradients"}, {"second_moment", "average of their squares"}},
     .passes = {RAdam_passes()}});

}  // namespace
}  // namespace ortrain
#endif
