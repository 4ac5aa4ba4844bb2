#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/weight_average.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/optimizer/pass-inl.h"
#include "backend/cpu/optimizer/weight_average.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace {

struct WeightAverage {
  static constexpr size_t kStates = 1;
  template <typename T>
  struct Factors {
    T kept;
  };

  template <class S>
  static Factors<typename S::Number> factors(const S&) {
    return {.kept = 0};
  }

  template <class E, class F>
  static void update(E& e, const F& f) {
    e.s[0] = mix(e.s[0], e.w, f.kept);
  }
};

ORTRAIN_PASSES(WeightAverage)

}  // namespace
}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {
namespace {

ORTRAIN_EXPORT_PASSES(WeightAverage)

}  // namespace

void average_weights(OptimizerRun run, double kept) {
  static const OptimizerPasses passes = WeightAverage_passes();
  run.gradients = run.weights;  // the pass reads gradients, but does not use them
  run_optimizer(passes, run, &kept, 1);
}

}  // namespace ortrain
#endif
