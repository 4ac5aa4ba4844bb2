#include "backend/cpu/optimizer/tensor_rule.h"

#include "runtime/convert.h"

namespace ortrain {

namespace {

template <typename T>
T* at_least(Tensor& work, int64_t n) {
  const auto bytes = static_cast<int64_t>(sizeof(T)) * n;
  if (!work.defined() || work.size() < bytes) work = Tensor(DType::kUInt8, Shape{bytes});
  return reinterpret_cast<T*>(work.raw());
}

template <typename T>
void run_as(void (*rule)(const OptimizerStep&, const TensorRun<T>&), const OptimizerStep& step,
            const Tensor& weights, const Tensor& gradients, const std::vector<Tensor>& states, T* work) {
  rule(step, {weights.shape(), weights.data<T>(), gradients.data<T>(), weights.size(), states, work});
}

template <typename Half>
void run_wide(const TensorRule& rule, const OptimizerStep& step, const Tensor& weights,
              const Tensor& gradients, const std::vector<Tensor>& states, float* work) {
  const int64_t n = weights.size();
  float *const w = work, *const g = work + n;
  widen(weights.data<Half>(), w, n);
  widen(gradients.data<Half>(), g, n);
  rule.of_float(step, {weights.shape(), w, g, n, states, work + 2 * n});
  narrow(w, weights.data<Half>(), n);
}

}  // namespace

void run_tensor_rule(const TensorRule& rule, const OptimizerStep& step, const Tensor& weights,
                     const Tensor& gradients, const std::vector<Tensor>& states, Tensor& work) {
  const int64_t n = weights.size();
  if (n == 0) return;
  const int64_t own = rule.work(step, weights.shape());
  switch (weights.dtype()) {
    case DType::kFloat:
      return run_as(rule.of_float, step, weights, gradients, states, at_least<float>(work, own));
    case DType::kDouble:
      return run_as(rule.of_double, step, weights, gradients, states, at_least<double>(work, own));
    case DType::kFloat16:
      if constexpr (kHasKernels<Float16>)
        run_wide<Float16>(rule, step, weights, gradients, states, at_least<float>(work, 2 * n + own));
      return;
    case DType::kBFloat16:
      if constexpr (kHasKernels<BFloat16>)
        run_wide<BFloat16>(rule, step, weights, gradients, states, at_least<float>(work, 2 * n + own));
      return;
    default:
      return;  // rejected before
  }
}

}  // namespace ortrain
