// RMSprop: G. Hinton, "Neural networks for machine learning", lecture 6e, 2012; centred: A. Graves,
// "Generating sequences with recurrent neural networks", 2013. As in PyTorch.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/rmsprop.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

template <bool kCentered, bool kMomentum>
struct RmsProp {
  static constexpr size_t kStates = 1 + (kCentered ? 1 : 0) + (kMomentum ? 1 : 0);
  template <typename T>
  struct Factors {
    T rate, decay, rho, momentum, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    return {s.rate, s["weight_decay"], s["rho"], s["momentum"], s["epsilon"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    const auto g = mul_add(f.decay, e.w, e.g);
    e.s[0] = mix_squares(e.s[0], g, f.rho);
    auto variance = e.s[0];
    if constexpr (kCentered) {
      auto& mean = e.s[1];
      mean = mix(mean, g, f.rho);
      variance = max(neg_mul_add(mean, mean, variance), 0);  // rounding can make it negative
    }
    auto step = g / (sqrt(variance) + f.epsilon);
    if constexpr (kMomentum) {
      auto& buffer = e.s[kStates - 1];
      buffer = step = mul_add(f.momentum, buffer, step);
    }
    e.w = e.w - f.rate * step;
  }
};
using Plain = RmsProp<false, false>;
using Centered = RmsProp<true, false>;
using WithMomentum = RmsProp<false, true>;
using CenteredWithMomentum = RmsProp<true, true>;

ORTRAIN_PASSES(Plain)
ORTRAIN_PASSES(Centered)
ORTRAIN_PASSES(WithMomentum)
ORTRAIN_PASSES(CenteredWithMomentum)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Plain)
ORTRAIN_EXPORT_PASSES(Centered)
ORTRAIN_EXPORT_PASSES(WithMomentum)
ORTRAIN_EXPORT_PASSES(CenteredWithMomentum)

ORTRAIN_OPTIMIZER(
    RMSprop,
    {.name = "rmsprop",
     .title = "RMSprop",
     .formula =
         "g = g + decay·w; v = ρv + (1-ρ)g²; centered: a = ρa + (1-ρ)g, v - a² for v; d = g / (√v + ε); "
         "b = μb + d; w = w - lr·b",
     .source = "Hinton, Neural networks for machine learning, lecture 6e, 2012",
     .settings = {{"rho", 0.99f, "decay of the averages, PyTorch's alpha", 0, 1},
                  {"epsilon", 1e-8f, "added to the root", 0},
                  {"weight_decay", 0, "multiple of the weights that is added to the gradients"},
                  {"momentum", 0, "fraction of the buffer that a step keeps", 0, 1},
                  {"centered", 0, "whether the variance is used instead of the mean square", 0, 2, true}},
     .states = {{"second_moment", "average of the squares of the gradients"},
                {"first_moment", "average of the gradients", "centered"},
                {"momentum_buffer", "sum of the steps", "momentum"}},
     .passes = {Plain_passes(), Centered_passes(), WithMomentum_passes(), CenteredWithMomentum_passes()}});

}  // namespace
}  // namespace ortrain
#endif
