// Adagrad: J. Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization",
// 2011. As in PyTorch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adagrad.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct Adagrad {
  static constexpr size_t kStates = 1;
  template <typename T>
  struct Factors {
    T rate, decay, initial, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    return {.rate = s.rate / (1 + (s.step - 1) * s["rate_decay"]),
            .decay = s["weight_decay"],
            .initial = s["initial_sum"],
            .epsilon = s["epsilon"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto& sum = e.s[0];
    const auto g = mul_add(f.decay, e.w, e.g);
    sum = mul_add(g, g, sum);
    // The initial sum is not part of the state, because the state of an embedding's row is zero when a batch
    // reads the row for the first time.
    e.w = e.w - f.rate * g / (sqrt(sum + f.initial) + f.epsilon);
  }
};

ORTRAIN_PASSES(Adagrad)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Adagrad)

ORTRAIN_OPTIMIZER(
    Adagrad,
    {.name = "adagrad",
     .title = "Adagrad",
     .formula = "g = g + decay·w; s = s + g²; w = w - lr/(1 + (t-1)·rate_decay) g / (√(s + initial_sum) + ε)",
     .source =
         "Duchi et al., Adaptive subgradient methods for online learning and stochastic optimization, 2011",
     .settings = {{"rate_decay", 0, "decay of the learning rate", 0},
                  {"initial_sum", 0, "added to the sum of squares", 0},
                  {"epsilon", 1e-10f, "added to the root of the sum", 0},
                  {"weight_decay", 0, "multiple of the weights that is added to the gradients"}},
     .states = {{"sum_of_squares", "sum of the squares of the gradients"}},
     .passes = {Adagrad_passes()}});

}  // namespace
}  // namespace ortrain
#endif
