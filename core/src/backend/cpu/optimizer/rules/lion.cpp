// Lion: X. Chen et al., "Symbolic discovery of optimization algorithms", 2023.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/lion.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct Lion {
  static constexpr size_t kStates = 1;
  template <typename T>
  struct Factors {
    T rate, kept, beta1, beta2;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    return {s.rate, 1 - s.rate * s["weight_decay"], s["beta1"], s["beta2"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto& m = e.s[0];
    e.w = e.w * f.kept - f.rate * sign(mix(m, e.g, f.beta1));
    m = mix(m, e.g, f.beta2);
  }
};

ORTRAIN_PASSES(Lion)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Lion)

ORTRAIN_OPTIMIZER(Lion, {.name = "lion",
                         .title = "Lion",
                         .formula = "w = w(1 - lr·decay) - lr·sign(β₁m + (1-β₁)g); m = β₂m + (1-β₂)g",
                         .source = "Chen et al., Symbolic discovery of optimization algorithms, 2023",
                         .settings = {{"beta1", 0.9f, "share of the moment in the direction of a step", 0, 1},
                                      {"beta2", 0.99f, "decay of the moment", 0, 1},
                                      {"weight_decay", 0,
                                       "decay of the weights, as a fraction of the learning rate"}},
                         .states = {{"first_moment", "average of the gradients"}},
                         .passes = {Lion_passes()}});

}  // namespace
}  // namespace ortrain
#endif
