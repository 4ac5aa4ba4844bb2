// AdamW: I. Loshchilov and F. Hutter, "Decoupled weight decay regularization", 2019. Operator AdamWOptimizer
// of com.microsoft, under two names: the form of Hugging Face, which onnxruntime's artifacts have, and
// PyTorch's.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/rules/adamw.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"
#include "backend/cpu/optimizer/rules/adamw.h"
#include "runtime/error.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

template <typename Number>
AdamWFactors<Number> adamw_numbers(const AdamWSettings& settings, const Number& rate, const Number& step) {
  AdamWFactors<Number> f{settings.alpha, settings.beta, settings.epsilon};
  const Number correction1 = settings.correct_bias ? one_minus_power(settings.alpha, step) : Number(1);
  const Number correction2 = settings.correct_bias ? one_minus_power(settings.beta, step) : Number(1);
  const Number decay = 1 - rate * settings.weight_decay;
  if (settings.adam_mode == 0) {
    // As PyTorch orders it: decay first, the bias correction of the second moment inside the root.
    f.decay_before = decay;
    f.root_scale = 1 / sqrt(correction2);
    f.step_size = rate / correction1;
  } else {
    // The order of Hugging Face's AdamW: decay last, epsilon added to the uncorrected root.
    f.decay_after = decay;
    f.step_size = rate * sqrt(correction2) / correction1;
  }
  return f;
}

struct AdamW {
  static constexpr size_t kStates = 2;
  template <typename T>
  using Factors = AdamWFactors<T>;

  template <class S>
  static Factors<typename S::Number> factors(const S& s) {
    const AdamWSettings settings{s["alpha"],
                                 s["beta"],
                                 s["epsilon"],
                                 s["weight_decay"],
                                 s["correct_bias"] != 0,
                                 static_cast<int64_t>(s["adam_mode"])};
    return adamw_numbers(settings, s.rate, s.step);
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    auto &m = e.s[0], &v = e.s[1];
    m = mix(m, e.g, f.alpha);
    v = mix_squares(v, e.g, f.beta);
    const auto root = mul_add(sqrt(v), f.root_scale, f.epsilon);
    e.w = (e.w * f.decay_before - f.step_size * m / root) * f.decay_after;
  }
};

ORTRAIN_PASSES(AdamW)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

AdamWFactors<double> adamw_factors(const AdamWSettings& settings, double learning_rate, int64_t step) {
  return HWY_NAMESPACE::adamw_numbers(settings, learning_rate, static_cast<double>(step));
}

namespace {

ORTRAIN_EXPORT_PASSES(AdamW)

OptimizerRule adamw(const char* name, const char* title, const char* formula, float epsilon, float decay,
                    float mode) {
  OptimizerRule rule{.name = name,
                     .title = title,
                     .node = "AdamWOptimizer",
                     .reads_node = mode == 0,
                     .formula = formula,
                     .source = "Loshchilov and Hutter, Decoupled weight decay regularization, 2019",
                     .passes = {AdamW_passes()}};
  rule.settings = {
      {"alpha", 0.9f, "decay of the first moment", 0, 1},
      {"beta", 0.999f, "decay of the second moment", 0, 1},
      {"epsilon", epsilon, "added to the root of the second moment", 0},
      {"weight_decay", decay, "decay of the weights, as a fraction of the learning rate"},
      {"correct_bias", 1, "whether the moments are corrected for starting at zero", 0, 2, true},
      {"adam_mode", mode,
       "0: decay first, epsilon is added to the corrected root; 1: decay last, to the root", 0, 2, true},
  };
  rule.states = {{"first_moment", "average of the gradients"}, {"second_moment", "average of their squares"}};
  rule.problem = [](const OptimizerStep& s) {
    const double mode = s["adam_mode"];
    return mode == 0 || mode == 1 ? std::string() : concat("expected adam_mode 0 or 1, found ", mode);
  };
  return rule;
}

[[maybe_unused]] const bool kRegisteredAdamW =
    register_optimizer(adamw("adamw", "AdamW",
                             "m = αm + (1-α)g; v = βv + (1-β)g²; "
                             "w = (w - lr √(1-βᵗ)/(1-αᵗ) m / (√v + ε)) (1 - lr·decay)",
                             1e-6f, 0, 1),
                       SourcePlace::here()) &&
    register_optimizer(adamw("adamw_torch", "TorchAdamW",
                             "m = αm + (1-α)g; v = βv + (1-β)g²; "
                             "w = w(1 - lr·decay) - lr/(1-αᵗ) m / (√(v/(1-βᵗ)) + ε)",
                             1e-8f, 1e-2f, 0),
                       SourcePlace::here());

}  // namespace

const OptimizerPasses& adamw_passes() {
  static const OptimizerPasses passes = AdamW_passes();
  return passes;
}

}  // namespace ortrain
#endif
