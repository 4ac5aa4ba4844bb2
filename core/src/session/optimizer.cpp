#include "session/optimizer.h"

#include <algorithm>
#include <cmath>

#include "ops/operator.h"
#include "runtime/convert.h"
#include "runtime/threads.h"
#include "session/optimizer_kernels.h"

namespace ortrain {

Optimizer::Optimizer(const Model& model) {
  std::string problems;
  int optimizers = 0;
  for (const Node& node : model.graph.nodes) {
    if (node.domain == kMicrosoft && node.op_type == "AdamWOptimizer") {
      ++optimizers;
      kind_ = Kind::kAdamW;
      alpha_ = node.float_or("alpha", 0.9f);
      beta_ = node.float_or("beta", 0.999f);
      epsilon_ = node.float_or("epsilon", 1e-8f);
      weight_decay_ = node.float_or("weight_decay", 1e-2f);
      correct_bias_ = node.int_or("correct_bias", 1) != 0;
      adam_mode_ = static_cast<int>(node.int_or("adam_mode", 0));
      if (adam_mode_ != 0 && adam_mode_ != 1)
        problems += concat("\n  ", node.label(), ": expected adam_mode 0 or 1, found ", adam_mode_);
    } else if (node.domain == kMicrosoft && node.op_type == "SGDOptimizerV2") {
      ++optimizers;
      kind_ = Kind::kSgd;
    } else if (node.domain == kMicrosoft && node.op_type == "InplaceClipGradNorm") {
      max_norm_ = node.float_or("max_norm", 1.0f);
      if (const std::string norm = node.string_or("norm_type", "fro"); norm != "fro")
        problems += concat("\n  ", node.label(), ": expected norm_type 'fro', found '", norm, "'");
    } else {
      problems +=
          concat("\n  ", node.label(),
                 ": expected AdamWOptimizer, SGDOptimizerV2 or InplaceClipGradNorm of domain com.microsoft");
    }
  }
  require(problems.empty(), ErrorCode::kNotImplemented,
          "the optimizer model has nodes that cannot be run:", problems);
  require(optimizers == 1, ErrorCode::kInvalidGraph,
          "the optimizer model must have one optimizer node, found ", optimizers);
}

namespace {

// What the pass over one run of parameters of a type works on. Moments lie beside; there are none with SGD.
struct Run {
  DType dtype;
  std::byte *weights, *gradients, *first, *second;
  int64_t n;
};

// Calls f(run): all trainable parameters at once where they are of one type, which is no 16-bit float (the
// gaps between them are zero and stay so), else one after the other.
template <typename F>
void for_runs(const CheckpointState& state, F&& f) {
  const auto moment = [&](const std::vector<Tensor>& moments, size_t m) {
    return m < moments.size() ? moments[m].raw() : nullptr;
  };
  const std::vector<Parameter>& parameters = state.parameters();
  const DType dtype = parameters.front().data.dtype();
  const bool alike = size_of(dtype) >= 4 &&
                     std::all_of(parameters.begin(), parameters.end(),
                                 [&](const Parameter& p) { return !p.trainable || p.data.dtype() == dtype; });
  if (alike) {
    f(Run{dtype, state.data_arena().raw(), state.gradient_arena().raw(), moment(state.momentum_arenas(), 0),
          moment(state.momentum_arenas(), 1),
          static_cast<int64_t>(state.data_arena().bytes() / size_of(dtype))});
    return;
  }
  for (const Parameter& p : parameters)
    if (p.trainable)
      f(Run{p.data.dtype(), p.data.raw(), p.gradient.raw(), moment(p.momentums, 0), moment(p.momentums, 1),
            p.data.size()});
}

// Calls f(weights, gradients, first element, count) with the elements of a run as floats, some of them at a
// time, and rounds what becomes of the weights.
constexpr int64_t kPiece = 1024;
template <typename Half, typename F>
void as_floats(const Run& run, F&& f) {
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

double sum_of_squares(const Run& run) {
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

void sgd(const Run& run, double rate) {
  visit_floating(run.dtype, [&](auto zero) {
    using T = decltype(zero);
    sgd_update(reinterpret_cast<T*>(run.weights), reinterpret_cast<const T*>(run.gradients), run.n,
               static_cast<T>(rate));
  });
  visit_types<Float16, BFloat16>(run.dtype, [&](auto zero) {
    as_floats<decltype(zero)>(run, [&](float* w, const float* g, int64_t, int64_t n) {
      sgd_update(w, g, n, static_cast<float>(rate));
    });
  });
}

template <typename T>
AdamWFactors<T> rounded(const AdamWFactors<double>& f) {
  return {static_cast<T>(f.alpha),          static_cast<T>(f.beta),         static_cast<T>(f.epsilon),
          static_cast<T>(f.gradient_scale), static_cast<T>(f.decay_before), static_cast<T>(f.decay_after),
          static_cast<T>(f.root_scale),     static_cast<T>(f.step_size)};
}

void adamw(const Run& run, const AdamWFactors<double>& factors) {
  visit_floating(run.dtype, [&](auto zero) {
    using T = decltype(zero);
    adamw_update(reinterpret_cast<T*>(run.weights), reinterpret_cast<const T*>(run.gradients),
                 reinterpret_cast<T*>(run.first), reinterpret_cast<T*>(run.second), run.n,
                 rounded<T>(factors));
  });
  // Moments of 16-bit floats are float: squares of their gradients would not fit.
  visit_types<Float16, BFloat16>(run.dtype, [&](auto zero) {
    const AdamWFactors<float> f = rounded<float>(factors);
    as_floats<decltype(zero)>(run, [&](float* w, const float* g, int64_t at, int64_t n) {
      adamw_update(w, g, reinterpret_cast<float*>(run.first) + at, reinterpret_cast<float*>(run.second) + at,
                   n, f);
    });
  });
}

}  // namespace

void Optimizer::apply(CheckpointState& state, float learning_rate, int64_t step) const {
  double squares = 0;
  for_runs(state, [&](const Run& run) {
    require(is_floating(run.dtype), ErrorCode::kNotImplemented, "optimizer step: parameters of type ",
            to_string(run.dtype), " are not supported");
    if (max_norm_) squares += sum_of_squares(run);
  });
  // As PyTorch's clip_grad_norm_: the small number keeps a zero norm from dividing.
  const double scale = max_norm_ ? std::min(1.0, *max_norm_ / (std::sqrt(squares) + 1e-6)) : 1.0;
  if (kind_ == Kind::kSgd) {
    for_runs(state, [&](const Run& run) { sgd(run, static_cast<double>(learning_rate) * scale); });
    return;
  }
  AdamWFactors<double> f;
  f.alpha = static_cast<double>(alpha_);
  f.beta = static_cast<double>(beta_);
  f.epsilon = static_cast<double>(epsilon_);
  f.gradient_scale = scale;
  const double correction1 = correct_bias_ ? 1 - std::pow(f.alpha, step) : 1;
  const double correction2 = correct_bias_ ? 1 - std::pow(f.beta, step) : 1;
  const double decay = 1 - static_cast<double>(learning_rate) * weight_decay_;
  if (adam_mode_ == 0) {
    // Loshchilov and Hutter, "Decoupled weight decay regularization", as PyTorch orders it: decay first,
    // the bias correction of the second moment inside the root.
    f.decay_before = decay;
    f.root_scale = 1 / std::sqrt(correction2);
    f.step_size = learning_rate / correction1;
  } else {
    // The order of Hugging Face's AdamW: decay last, epsilon beside the uncorrected root.
    f.decay_after = decay;
    f.step_size = learning_rate * std::sqrt(correction2) / correction1;
  }
  for_runs(state, [&](const Run& run) { adamw(run, f); });
}

}  // namespace ortrain
