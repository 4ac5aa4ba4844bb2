#include "session/optimizer.h"

#include <cmath>

#include "ops/operator.h"
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

void Optimizer::apply(CheckpointState& state, float learning_rate, int64_t step) const {
  const DType dtype = state.parameters().front().data.dtype();
  const size_t bytes = state.data_arena().bytes();
  const bool known = visit_floating(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto n = static_cast<int64_t>(bytes / sizeof(T));
    T* weights = reinterpret_cast<T*>(state.data_arena().raw());
    const T* gradients = reinterpret_cast<const T*>(state.gradient_arena().raw());
    T scale = 1;
    if (max_norm_) {
      // As PyTorch's clip_grad_norm_: the small number keeps a zero norm from dividing.
      const double norm = std::sqrt(sum_of_squares(gradients, n));
      scale = static_cast<T>(std::min(1.0, *max_norm_ / (norm + 1e-6)));
    }
    if (kind_ == Kind::kSgd) {
      sgd_update(weights, gradients, n, static_cast<T>(learning_rate) * scale);
      return;
    }
    AdamWFactors<T> f;
    f.alpha = static_cast<T>(alpha_);
    f.beta = static_cast<T>(beta_);
    f.epsilon = static_cast<T>(epsilon_);
    f.gradient_scale = scale;
    const double correction1 = correct_bias_ ? 1 - std::pow(static_cast<double>(alpha_), step) : 1;
    const double correction2 = correct_bias_ ? 1 - std::pow(static_cast<double>(beta_), step) : 1;
    const double decay = 1 - static_cast<double>(learning_rate) * weight_decay_;
    if (adam_mode_ == 0) {
      // Loshchilov and Hutter, "Decoupled weight decay regularization", as PyTorch orders it: decay first,
      // the bias correction of the second moment inside the root.
      f.decay_before = static_cast<T>(decay);
      f.root_scale = static_cast<T>(1 / std::sqrt(correction2));
      f.step_size = static_cast<T>(learning_rate / correction1);
    } else {
      // The order of Hugging Face's AdamW: decay last, epsilon beside the uncorrected root.
      f.decay_after = static_cast<T>(decay);
      f.step_size = static_cast<T>(learning_rate * std::sqrt(correction2) / correction1);
    }
    adamw_update(weights, gradients, reinterpret_cast<T*>(state.momentum_arenas()[0].raw()),
                 reinterpret_cast<T*>(state.momentum_arenas()[1].raw()), n, f);
  });
  require(known, ErrorCode::kNotImplemented, "optimizer step: parameters of type ", to_string(dtype),
          " are not supported");
}

}  // namespace ortrain
