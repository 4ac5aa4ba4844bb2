// Schedule-free AdamW and SGD: A. Defazio et al., "The road less scheduled", 2024, as in the authors'
// package. Instead of the trained weights y, as there, the average x is stored beside z: y = (1-β)z + βx, and
// evaluation needs x.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/schedule_free.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

template <bool kAdaptive>
struct ScheduleFree {
  static constexpr size_t kStates = kAdaptive ? 3 : 2;
  template <typename T>
  struct Factors {
    T rate, decay, kept, of_z, first, beta2, root_scale, epsilon;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    using Number = typename S::Number;
    const double warmup = s["warmup_steps"], beta2 = kAdaptive ? s["beta2"] : 0;
    const Number rate = warmup > 0 ? s.rate * smaller(s.step / warmup, 1) : s.rate;
    Number &largest = s.scalar("largest_rate"), &sum = s.scalar("weight_sum");
    largest = larger(largest, rate);
    const Number weight = power(s.step, s["step_power"]) * power(largest, s["rate_power"]);
    sum = sum + weight;
    return {.rate = rate,
            .decay = s["weight_decay"],
            .kept = 1 - choose(sum > 0, weight / sum, 0),
            .of_z = 1 - s[kAdaptive ? "beta1" : "momentum"],
            .first = choose(s.step == 1, 1, 0),
            .beta2 = beta2,
            .root_scale = 1 / sqrt(one_minus_power(beta2, s.step)),
            .epsilon = kAdaptive ? s["epsilon"] : 0};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto &z = e.s[0], &x = e.s[1];
    auto step = e.g;
    if constexpr (kAdaptive) {
      auto& v = e.s[2];
      v = mix_squares(v, e.g, f.beta2);
      step = e.g / mul_add(sqrt(v), f.root_scale, f.epsilon);
    }
    step = mul_add(f.decay, e.w, step);
    z = neg_mul_add(f.rate, step, mul_add(f.first, e.w, z));
    x = mix(mul_add(f.first, e.w, x), z, f.kept);
    e.w = mix(z, x, f.of_z);
  }
};
using Adaptive = ScheduleFree<true>;
using Plain = ScheduleFree<false>;

ORTRAIN_PASSES(Adaptive)
ORTRAIN_PASSES(Plain)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(Adaptive)
ORTRAIN_EXPORT_PASSES(Plain)

constexpr const char* kSource = "Defazio et al., The road less scheduled, 2024";
const OptimizerSetting kDecay{"weight_decay", 0, "multiple of the weights that is added to the step"};
const OptimizerSetting kWarmup{"warmup_steps", 0, "steps in which the learning rate grows evenly", 0};
const OptimizerSetting kStepPower{"step_power", 0, "exponent of t in the weight of a step, the authors' r"};
const OptimizerSetting kRatePower{"rate_power", 2,
                                  "exponent of the largest learning rate so far in that weight"};
const std::vector<ScalarDeclaration> kScalars{{"largest_rate", 0}, {"weight_sum", 0}};
const StateDeclaration kZ{"fast_weights", "z, the weights that take the steps"};
const StateDeclaration kX{
    .name = "average_weights", .meaning = "x, their average, for evaluation", .is_evaluated = true};

ORTRAIN_OPTIMIZER(ScheduleFreeAdamW,
                  {.name = "schedule_free_adamw",
                   .title = "ScheduleFreeAdamW",
                   .formula = "v = β₂v + (1-β₂)g²; z = z - lr (g / (√(v/(1-β₂ᵗ)) + ε) + decay·w); c = a/Σa, "
                              "a = t^step_power max(lr)^rate_power; "
                              "x = (1-c)x + cz; w = (1-β₁)z + β₁x; evaluation uses x",
                   .source = kSource,
                   .settings = {{"beta1", 0.9f, "share of the average x in the weights w", 0, 1},
                                {"beta2", 0.999f, "decay of the second moment", 0, 1},
                                {"epsilon", 1e-8f, "added to the root of the second moment", 0},
                                kDecay,
                                kWarmup,
                                kStepPower,
                                kRatePower},
                   .states = {kZ, kX, {"second_moment", "average of the squares of the gradients"}},
                   .scalars = kScalars,
                   .passes = {Adaptive_passes()}});
ORTRAIN_OPTIMIZER(
    ScheduleFreeSGD,
    {.name = "schedule_free_sgd",
     .title = "ScheduleFreeSGD",
     .formula = "z = z - lr (g + decay·w); c = a/Σa, a = t^step_power max(lr)^rate_power; x = (1-c)x + cz; "
                "w = (1-μ)z + μx; evaluation uses x",
     .source = kSource,
     .settings = {{"momentum", 0.9f, "share of the average x in the weights w", 0, 1},
                  kDecay,
                  kWarmup,
                  kStepPower,
                  kRatePower},
     .states = {kZ, kX},
     .scalars = kScalars,
     .passes = {Plain_passes()}});

}  // namespace
}  // namespace ortrain
#endif
