#include "backend/cpu/optimizer/tensor_rule.h"

#include "runtime/convert.h"

namespace ortrain {

namespace {

template <typename Half>
void run_wide(const TensorRule& rule, const OptimizerStep& step, const Tensor& weights,
              const Tensor& gradients, const std::vector<Tensor>& states) {
  const int64_t n = weights.size();
  const Tensor w(DType::kFloat, weights.shape()), g(DType::kFloat, weights.shape());
  widen(weights.data<Half>(), w.data<float>(), n);
  widen(gradients.data<Half>(), g.data<float>(), n);
  rule.of_float(step, {weights.shape(), w.data<float>(), g.data<float>(), n, states});
  narrow(w.data<float>(), weights.data<Half>(), n);
}

}  // namespace

void run_tensor_rule(const TensorRule& rule, const OptimizerStep& step, const Tensor& weights,
                     const Tensor& gradients, const std::vector<Tensor>& states) {
  const int64_t n = weights.size();
  if (n == 0) return;
  switch (weights.dtype()) {
    case DType::kFloat:
      return rule.of_float(step,
                           {weights.shape(), weights.data<float>(), gradients.data<float>(), n, states});
    case DType::kDouble:
      return rule.of_double(step,
                            {weights.shape(), weights.data<double>(), gradients.data<double>(), n, states});
    case DType::kFloat16:
      return run_wide<Float16>(rule, step, weights, gradients, states);
    case DType::kBFloat16:
      return run_wide<BFloat16>(rule, step, weights, gradients, states);
    default:
      return;  // rejected before
  }
}

}  // namespace ortrain
