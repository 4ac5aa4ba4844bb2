// Adam: D. P. Kingma and J. Ba, "Adam: a method for stochastic optimization", 2014, and AMSGrad: S. J. Reddi
// et al., "On the convergence of Adam and beyond", 2018. As in PyTorch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adam.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

template <bool kLargest>
struct AdamOrAmsGrad {
  static constexpr size_t kStates = kLargest ? 3 : 2;
  template <typename T>
  struct Factors {
    T step_size, decay, beta1, beta2, root_scale, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const double beta1 = s["beta1"], beta2 = s["beta2"];
    return {.step_size = s.rate / one_minus_power(beta1, s.step),
            .decay = s["weight_decay"],
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
    if constexpr (kLargest) e.s[2] = max(e.s[2], v);
    const auto root = sqrt(e.s[kStates - 1]);
    e.w = e.w - f.step_size * m / mul_add(root, f.root_scale, f.epsilon);
  }
};
using Adam = AdamOrAmsGrad<false>;
using AmsGrad = AdamOrAmsGrad<true>;

ORTRAIN_PASSES(Adam)
ORTRAIN_PASSES(AmsGrad)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Adam)
ORTRAIN_EXPORT_PASSES(AmsGrad)

const std::vector<OptimizerSetting> kSettings = {
    {"beta1", 0.9f, "decay of the first moment", 0, 1},
    {"beta2", 0.999f, "decay of the second moment", 0, 1},
    {"epsilon", 1e-8f, "added to the root of the second moment", 0},
    {"weight_decay", 0, "multiple of the weights that is added to the gradients"}};

ORTRAIN_OPTIMIZER(Adam, {.name = "adam",
                         .title = "Adam",
                         .formula = "g = g + decay·w; m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; "
                                    "w = w - lr/(1-β₁ᵗ) m / (√(v/(1-β₂ᵗ)) + ε)",
                         .source = "Kingma and Ba, Adam: a method for stochastic optimization, 2014",
                         .settings = kSettings,
                         .states = {{"first_moment", "average of the gradients"},
                                    {"second_moment", "average of their squares"}},
                         .passes = {Adam_passes()}});
ORTRAIN_OPTIMIZER(AMSGrad,
                  {.name = "amsgrad",
                   .title = "AMSGrad",
                   .formula = "g = g + decay·w; m = β₁m + (1-β₁)g; v = β₂v + (1-β₂)g²; u = max(u, v); "
                              "w = w - lr/(1-β₁ᵗ) m / (√(u/(1-β₂ᵗ)) + ε)",
                   .source = "Reddi et al., On the convergence of Adam and beyond, 2018",
                   .settings = kSettings,
                   .states = {{"first_moment", "average of the gradients"},
                              {"second_moment", "average of their squares"},
                              {"largest_second_moment", "largest of the second moments so far"}},
                   .passes = {AmsGrad_passes()}});

}  // namespace
}  // namespace ortrain
#endif
