// Adadelta: M. D. Zeiler, "ADADELTA: an adaptive learning rate method", 2012. As in PyTorch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adadelta.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct Adadelta {
  static constexpr size_t kStates = 2;
  template <typename T>
  struct Factors {
    T rate, decay, rho, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    return {s.rate, s["weight_decay"], s["rho"], s["epsilon"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto &squares = e.s[0], &changes = e.s[1];
    const auto g = mul_add(f.decay, e.w, e.g);
    squares = mix_squares(squares, g, f.rho);
    const auto change = sqrt(changes + f.epsilon) / sqrt(squares + f.epsilon) * g;
    changes = mix_squares(changes, change, f.rho);
    e.w = e.w - f.rate * change;
  }
};

ORTRAIN_PASSES(Adadelta)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Adadelta)

ORTRAIN_OPTIMIZER(
    Adadelta, {.name = "adadelta",
               .title = "Adadelta",
               .formula = "g = g + decay·w; v = ρv + (1-ρ)g²; d = √(u + ε)/√(v + ε) g; u = ρu + (1-ρ)d²; "
                          "w = w - lr·d",
               .source = "Zeiler, ADADELTA: an adaptive learning rate method, 2012",
               .settings = {{"rho", 0.9f, "decay of both averages", 0, 1},
                            {"epsilon", 1e-6f, "added under both roots", 0},
                            {"weight_decay", 0, "multiple of the weights that is added to the gradients"}},
               .states = {{"second_moment", "average of the squares of the gradients"},
                          {"squared_change", "average of the squares of the changes"}},
               .passes = {Adadelta_passes()}});

}  // namespace
}  // namespace ortrain
#endif
