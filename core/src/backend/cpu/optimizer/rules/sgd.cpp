// Stochastic gradient descent. I. Sutskever et al., "On the importance of initialization and momentum in deep
// learning", 2013; momentum, dampening and weight decay as in PyTorch. Without settings the model has the
// operator SGDOptimizerV2 of com.microsoft.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/sgd.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"
#include "backend/cpu/optimizer/rules/sgd.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct Sgd {
  static constexpr size_t kStates = 0;
  static constexpr bool kScaledRate = true;
  template <typename T>
  using Factors = SgdFactors<T>;

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    return {s.rate * s.gradient_scale, 1 - s.rate * s["weight_decay"]};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    e.w = neg_mul_add(f.rate, e.g, e.w * f.kept);
  }
};

struct SgdMomentum {
  static constexpr size_t kStates = 1;
  template <typename T>
  struct Factors {
    T rate, decay, momentum, taken, of_gradient, of_buffer;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const double momentum = s["momentum"];
    const bool nesterov = s["nesterov"] != 0;
    return {.rate = s.rate,
            .decay = s["weight_decay"],
            .momentum = momentum,
            .taken = choose(s.step == 1, 1, 1 - s["dampening"]),
            .of_gradient = nesterov ? 1.0 : 0.0,
            .of_buffer = nesterov ? momentum : 1.0};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    const auto g = mul_add(f.decay, e.w, e.g);
    e.s[0] = mul_add(f.momentum, e.s[0], f.taken * g);
    e.w = neg_mul_add(f.rate, mul_add(f.of_buffer, e.s[0], f.of_gradient * g), e.w);
  }
};

ORTRAIN_PASSES(Sgd)
ORTRAIN_PASSES(SgdMomentum)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Sgd)
ORTRAIN_EXPORT_PASSES(SgdMomentum)

ORTRAIN_OPTIMIZER(
    SGD,
    {.name = "sgd",
     .title = "SGD",
     .node = "SGDOptimizerV2",
     .reads_node = true,
     .formula =
         "g = g + decay·w; b = μb + (1-dampening)g, at first g; w = w - lr·b; nesterov: w - lr (g + μb)",
     .source = "Sutskever et al., On the importance of initialization and momentum in deep learning, 2013",
     .settings = {{"momentum", 0, "fraction of the buffer that a step keeps", 0, 1},
                  {"dampening", 0, "fraction of the gradient that is not added to the buffer", 0, 1},
                  {"weight_decay", 0, "multiple of the weights that is added to the gradients"},
                  {"nesterov", 0, "whether Nesterov momentum is used", 0, 2, true}},
     .states = {{"momentum_buffer", "sum of the gradients", "momentum"}},
     .passes = {Sgd_passes(), SgdMomentum_passes()},
     .problem = [](const OptimizerStep& s) -> std::string {
       const bool fits = s["nesterov"] == 0 || (s["momentum"] > 0 && s["dampening"] == 0);
       return fits ? "" : "nesterov needs a momentum above 0 and no dampening";
     }});

}  // namespace

const OptimizerPasses& sgd_passes() {
  static const OptimizerPasses passes = Sgd_passes();
  return passes;
}

}  // namespace ortrain
#endif
