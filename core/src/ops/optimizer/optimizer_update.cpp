#include "ops/optimizer/optimizer_update.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "backend/cpu/optimizer/rule.h"
#include "backend/cpu/optimizer/rules/sgd.h"
#include "runtime/convert.h"
#include "runtime/threads.h"

namespace ortrain {

namespace {

// Calls f(weights, gradients, first element, count) with the elements of a run as floats, block by block, and
// rounds the new weights.
constexpr int64_t kPiece = 1024;
template <typename Half, typename F>
void as_floats(const OptimizerRun& run, F&& f) {
  auto* weights = reinterpret_cast<Half*>(run.weights);
  const auto* gradients = reinterpret_cast<const Half*>(run.gradients);
  parallel_for((run.n + kPiece - 1) / kPiece, 6 * kPiece, [&](int64_t begin, int64_t end) {
    float w[kPiece], g[kPiece];
    for (int64_t at = begin * kPiece; at < std::min(end * kPiece, run.n); at += kPiece) {
      const int64_t count = std::min(kPiece, run.n - at);
      widen(weights + at, w, count);
      widen(gradients + at, g, count);
      f(w, g, at, count);
      narrow(w, weights + at, count);
    }
  });
}

template <typename T>
AdamWFactors<T> rounded(const AdamWFactors<double>& f) {
  return {static_cast<T>(f.alpha),        static_cast<T>(f.beta),        static_cast<T>(f.epsilon),
          static_cast<T>(f.decay_before), static_cast<T>(f.decay_after), static_cast<T>(f.root_scale),
          static_cast<T>(f.step_size)};
}

}  // namespace

AdamWSettings adamw_attributes(const Node& node) {
  return {.alpha = static_cast<double>(node.float_or("alpha", 0.9f)),
          .beta = static_cast<double>(node.float_or("beta", 0.999f)),
          .epsilon = static_cast<double>(node.float_or("epsilon", 1e-8f)),
          .weight_decay = static_cast<double>(node.float_or("weight_decay", 1e-2f)),
          .correct_bias = node.int_or("correct_bias", 1) != 0,
          .adam_mode = node.int_or("adam_mode", 0)};
}

std::string problem_of(const AdamWSettings& attributes) {
  if (attributes.adam_mode == 0 || attributes.adam_mode == 1) return "";
  return concat("expected adam_mode 0 or 1, found ", attributes.adam_mode);
}

// As in PyTorch's clip_grad_norm_: the small number avoids a division by zero.
double clip_factor(double sum_of_squares, double max_norm) {
  return std::min(1.0, max_norm / (std::sqrt(sum_of_squares) + 1e-6));
}

bool all_finite(const OptimizerRun& run) {
  const auto below = [&](auto infinity) {
    return largest_magnitude(reinterpret_cast<const decltype(infinity)*>(run.gradients), run.n) < infinity;
  };
  switch (run.dtype) {
    case DType::kDouble:
      return below(uint64_t{0x7FF} << 52);
    case DType::kFloat16:
      return below(uint16_t{0x7C00});
    case DType::kBFloat16:
      return below(uint16_t{0x7F80});
    default:
      return below(uint32_t{0x7F800000});
  }
}

double sum_of_squares(const OptimizerRun& run) {
  double sum = 0;
  const bool known = visit_floating(run.dtype,
                                    [&](auto zero) {
                                      sum = ortrain::sum_of_squares(
                                          reinterpret_cast<const decltype(zero)*>(run.gradients), run.n);
                                    }) ||
                     visit_types<Float16, BFloat16>(run.dtype, [&](auto zero) {
                       const auto* gradients = reinterpret_cast<const decltype(zero)*>(run.gradients);
                       float g[kPiece];
                       for (int64_t at = 0; at < run.n; at += kPiece) {
                         const int64_t count = std::min(kPiece, run.n - at);
                         widen(gradients + at, g, count);
                         sum += ortrain::sum_of_squares(g, count);
                       }
                     });
  require(known, ErrorCode::kNotImplemented, "optimizer step: parameters of type ", to_string(run.dtype),
          " are not supported");
  return sum;
}

void sgd(const OptimizerRun& run, double rate) {
  const double factors[] = {rate, 1};  // SgdFactors: nothing decays
  run_optimizer(sgd_passes(), run, factors, 1);
}

void scale(const OptimizerRun& run, double factor) {
  visit_floating(run.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto* scaled = reinterpret_cast<T*>(run.weights);
    const auto* g = reinterpret_cast<const T*>(run.gradients);
    parallel_for(run.n, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) scaled[i] = static_cast<T>(factor) * g[i];
    });
  });
  visit_types<Float16, BFloat16>(run.dtype, [&](auto zero) {
    as_floats<decltype(zero)>(run, [&](float* w, const float* g, int64_t, int64_t n) {
      for (int64_t i = 0; i < n; ++i) w[i] = static_cast<float>(factor) * g[i];
    });
  });
}

void adamw(const OptimizerRun& run, const AdamWFactors<double>& factors, double gradient_scale) {
  const auto numbers = std::bit_cast<std::array<double, sizeof factors / sizeof(double)>>(factors);
  run_optimizer(adamw_passes(), run, numbers.data(), gradient_scale);
}

void lamb_direction(const OptimizerRun& run, const AdamWFactors<double>& factors, double gradient_scale,
                    double decay, std::byte* direction) {
  visit_floating(run.dtype, [&](auto zero) {
    using T = decltype(zero);
    lamb_direction_update(reinterpret_cast<const T*>(run.weights), reinterpret_cast<const T*>(run.gradients),
                          reinterpret_cast<T*>(run.states[0]), reinterpret_cast<T*>(run.states[1]),
                          reinterpret_cast<T*>(direction), run.n, rounded<T>(factors), static_cast<T>(decay),
                          static_cast<T>(gradient_scale));
  });
}

double norm(DType dtype, std::byte* values, int64_t n) {
  return std::sqrt(sum_of_squares({dtype, nullptr, values, {}, n}));
}

}  // namespace ortrain
