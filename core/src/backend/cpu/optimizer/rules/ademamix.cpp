// AdEMAMix: M. Pagliardini et al., "The AdEMAMix optimizer: better, faster, older", 2024.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/ademamix.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct AdEMAMix {
  static constexpr size_t kStates = 3;
  template <typename T>
  struct Factors {
    T rate, kept, beta1, beta2, beta3, slow, scale, root_scale, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const double beta1 = s["beta1"], beta2 = s["beta2"];
    typename S::Number beta3 = s["beta3"], slow = s["alpha"];
    // During the warmup, the weight of the slow average grows evenly, and its half-life too.
    if (const double warmup = s["warmup_steps"]; warmup > 0) {
      const double first = std::log(beta1), last = std::log(s["beta3"]);
      const auto part = s.step / warmup, kept = (1 - part) * last + part * first;
      slow = choose(warmup > s.step, s["alpha"] * part, slow);
      beta3 = choose(warmup > s.step, smaller(s["beta3"], exp(first * last / kept)), beta3);
    }
    return {.rate = s.rate,
            .kept = 1 - s.rate * s["weight_decay"],
            .beta1 = beta1,
            .beta2 = beta2,
            .beta3 = beta3,
            .slow = slow,
            .scale = 1 / one_minus_power(beta1, s.step),
            .root_scale = 1 / sqrt(one_minus_power(beta2, s.step)),
            .epsilon = s["epsilon"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto &m = e.s[0], &v = e.s[1], &old = e.s[2];
    m = mix(m, e.g, f.beta1);
    v = mix_squares(v, e.g, f.beta2);
    old = mix(old, e.g, f.beta3);
    const auto step = mul_add(f.slow, old, f.scale * m) / mul_add(sqrt(v), f.root_scale, f.epsilon);
    e.w = e.w * f.kept - f.rate * step;
  }
};

ORTRAIN_PASSES(AdEMAMix)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(AdEMAMix)

ORTRAIN_OPTIMIZER(
    AdEMAMix, {.name = "ademamix",
               .title = "AdEMAMix",
               .formula = "m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; n = β₃n + (1-β₃)g; "
                          "w = w(1 - lr·decay) - lr (m/(1-β₁ᵗ) + αn) / (√(v/(1-β₂ᵗ)) + ε)",
               .source = "Pagliardini et al., The AdEMAMix optimizer: better, faster, older, 2024",
               .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                            {"beta2", 0.999f, "decay of the second moment", 0, 1},
                            {"beta3", 0.9999f, "decay of the slow moment", 0, 1},
                            {"alpha", 5, "weight of the slow moment", 0},
                            {"warmup_steps", 0, "steps over which alpha and beta3 grow to their values", 0},
                            {"epsilon", 1e-8f, "added to the root of the second moment", 0},
                            {"weight_decay", 0, "decay of the weights, as a fraction of the learning rate"}},
               .states = {{"first_moment", "average of the gradients"},
                          {"second_moment", "average of their squares"},
                          {"slow_moment", "slow average of the gradients"}},
               .passes = {AdEMAMix_passes()}});

}  // namespace
}  // namespace ortrain
#endif
