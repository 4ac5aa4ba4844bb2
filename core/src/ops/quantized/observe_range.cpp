// ObserveRange and StopGradient of the domain ortrain, for models with quantization-aware training.
//
// ObserveRange(x, range) -> observed: the range of x, as an exponential moving average over the train steps:
//     range ← momentum · range + (1 - momentum) · [min x, max x],
// A range of [0, 0] means that there was no step yet: the first step replaces it. The range is model state,
// like the running statistics of a batch normalization. B. Jacob et al., "Quantization and training of neural
// networks for efficient integer-arithmetic-only inference", 2018.
//
// StopGradient(x) -> y: y is x, and no gradient passes. An eval model has neither operator: nodes that read
// `observed` read `range` there, and nodes that read y read x.
//
// Compiled for speed: a loop over the elements (CMakeLists.txt).
#include <algorithm>
#include <limits>
#include <utility>

#include "op/operator.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

constexpr size_t kX = 0, kRange = 1;

void observe_shape(ShapeContext& c) {
  c.expect(c.dtype(kX) == DType::kFloat && c.dtype(kRange) == DType::kFloat && c.shape(kRange) == Shape{2},
           "expected x of type float and a range float[2], found ", to_string(c.dtype(kX)), " and ",
           to_string(c.dtype(kRange)), to_string(c.shape(kRange)));
  c.output(0, DType::kFloat, {2});
}

// The least and the greatest value, in lanes that the compiler turns into vectors.
std::pair<float, float> range_of(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  float low[kLanes], high[kLanes];
  std::fill_n(low, kLanes, std::numeric_limits<float>::infinity());
  std::fill_n(high, kLanes, -std::numeric_limits<float>::infinity());
  const auto take = [&](int64_t lane, float value) {
    low[lane] = value < low[lane] ? value : low[lane];
    high[lane] = value > high[lane] ? value : high[lane];
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t k = 0; k < kLanes; ++k) take(k, x[i + k]);
  for (; i < n; ++i) take(0, x[i]);
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

Kernel observe_kernel(KernelContext& c) {
  const Slot x = c.in(kX), range = c.state(kRange), observed = c.out(0);
  const int64_t size = c.size(kX);
  const float kept = c.node().float_or("momentum", 0.99f);
  return [=](const Frame& f) {
    const float* values = f.at<const float>(x);
    float* known = f.at<float>(range);
    if (const auto [low, high] = range_of(values, size); low <= high) {  // false if x has no numbers
      const bool first = known[0] == 0 && known[1] == 0;
      known[0] = first ? low : kept * known[0] + (1 - kept) * low;
      known[1] = first ? high : kept * known[1] + (1 - kept) * high;
    }
    float* out = f.at<float>(observed);
    if (out != known) std::copy_n(known, 2, out);
  };
}

Kernel copy_kernel(KernelContext& c) {
  const Slot x = c.in(0), y = c.out(0);
  const size_t bytes = static_cast<size_t>(c.size(0)) * width_of(c, 0);
  return [=](const Frame& f) { copy_bytes(f.at<std::byte>(y), f.at<std::byte>(x), bytes); };
}

ORTRAIN_OPERATOR({.domain = "ortrain",
                  .type = "ObserveRange",
                  .signature = "x, range -> observed | momentum: float",
                  .rules = {.shape = observe_shape},
                  .traits = {.stops_gradient = true, .impure = true, .updates = 1u << kRange},
                  .kernels = {.cpu = observe_kernel}});

ORTRAIN_OPERATOR({.domain = "ortrain",
                  .type = "StopGradient",
                  .signature = "x -> y",
                  .rules = {.shape = shape_like_first},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = copy_kernel}});

}  // namespace
}  // namespace ortrain
