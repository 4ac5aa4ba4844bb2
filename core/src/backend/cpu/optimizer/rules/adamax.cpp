// Adamax: D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2014, section 7.1. As in
// PyTorch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adamax.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct Adamax {
  static constexpr size_t kStates = 2;
  template <typename T>
  struct Factors {
    T step_size, decay, beta1, beta2, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const double beta1 = s["beta1"];
    return {.step_size = s.rate / one_minus_power(beta1, s.step),
            .decay = s["weight_decay"],
            .beta1 = beta1,
            .beta2 = s["beta2"],
            .epsilon = s["epsilon"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto &m = e.s[0], &u = e.s[1];
    const auto g = mul_add(f.decay, e.w, e.g);
    m = mix(m, g, f.beta1);
    u = max(u * f.beta2, abs(g) + f.epsilon);
    e.w = e.w - f.step_size * m / u;
  }
};

ORTRAIN_PASSES(Adamax)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Adamax)

ORTRAIN_OPTIMIZER(
    Adamax, {.name = "adamax",
             .title = "Adamax",
             .formula = "g = g + decay·w; m = β₁m + (1-β₁)g; u = max(β₂u, |g| + ε); w = w - lr/(1-β₁ᵗ) m/u",
             .source = "Kingma and Ba, Adam: a method for stochastic optimization, 2014",
             .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                          {"beta2", 0.999f, "decay of the largest gradient", 0, 1},
                          {"epsilon", 1e-8f, "added to the magnitude of the gradient", 0},
                          {"weight_decay", 0, "multiple of the weights that is added to the gradients"}},
             .states = {{"first_moment", "average of the gradients"},
                        {"largest_gradient", "decaying maximum of their magnitudes"}},
             .passes = {Adamax_passes()}});

}  // namespace
}  // namespace ortrain
#endif
