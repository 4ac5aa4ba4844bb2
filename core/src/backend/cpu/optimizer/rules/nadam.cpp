// NAdam: T. Dozat, "Incorporating Nesterov momentum into Adam", 2016. As in PyTorch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/nadam.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct NAdam {
  static constexpr size_t kStates = 2;
  template <typename T>
  struct Factors {
    T of_gradient, of_moment, kept, decay, beta1, beta2, root_scale, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const double beta1 = s["beta1"], beta2 = s["beta2"];
    const auto momentum = [&](const auto& step) {
      return beta1 * (1 - 0.5 * power(0.96, step * s["momentum_decay"]));
    };
    auto& product = s.scalar("momentum_product");
    product = product * momentum(s.step);
    const bool decoupled = s["decoupled_weight_decay"] != 0;
    return {.of_gradient = s.rate * (1 - momentum(s.step)) / (1 - product),
            .of_moment = s.rate * momentum(s.step + 1) / (1 - product * momentum(s.step + 1)),
            .kept = decoupled ? 1 - s.rate * s["weight_decay"] : 1,
            .decay = decoupled ? 0 : s["weight_decay"],
            .beta1 = beta1,
            .beta2 = beta2,
            .root_scale = 1 / sqrt(one_minus_power(beta2, s.step)),
            .epsilon = s["epsilon"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto &m = e.s[0], &v = e.s[1];
    const auto g = mul_add(f.decay, e.w, e.g);
    m = mix(m, g, f.beta1);
    v = mix_squares(v, g, f.beta2);
    const auto step = mul_add(f.of_moment, m, f.of_gradient * g);
    e.w = e.w * f.kept - step / mul_add(sqrt(v), f.root_scale, f.epsilon);
  }
};

ORTRAIN_PASSES(NAdam)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(NAdam)

ORTRAIN_OPTIMIZER(
    NAdam,
    {.name = "nadam",
     .title = "NAdam",
     .formula = "g = g + decay·w; m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; μₜ = β₁(1 - 0.96^(tψ)/2); "
                "w = w - lr ((1-μₜ)/(1-Πμ) g + μₜ₊₁/(1-Πμ·μₜ₊₁) m) / (√(v/(1-β₂ᵗ)) + ε)",
     .source = "Dozat, Incorporating Nesterov momentum into Adam, 2016",
     .settings = {{"beta1", 0.9f, "decay of the first moment", 0, 1},
                  {"beta2", 0.999f, "decay of the second moment", 0, 1},
                  {"epsilon", 1e-8f, "added to the root of the second moment", 0},
                  {"weight_decay", 0, "multiple of the weights that is added to the gradients"},
                  {"momentum_decay", 4e-3f, "ψ, how fast the momentum approaches beta1", 0},
                  {"decoupled_weight_decay", 0, "whether the weights decay as in AdamW", 0, 2, true}},
     .states = {{"first_moment", "average of the gradients"}, {"second_moment", "average of their squares"}},
     .scalars = {{"momentum_product", 1}},
     .passes = {NAdam_passes()}});

}  // namespace
}  // namespace ortrain
#endif
