// Muon: K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024. Matrices as in
// PyTorch, in their own precision instead of bfloat16; all other parameters as in AdamW.
#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/cpu/matmul/multiply.h"
#include "backend/cpu/optimizer/rules/adamw_of_tensor.h"
#include "backend/cpu/optimizer/tensor_rule.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

bool is_orthogonalized(const OptimizerStep& s, const Shape& shape) {
  return shape.size() == 2 && s["matrices"] != 0;
}

// The Newton-Schulz iteration moves the singular values of `x` [m, k], m ≤ k, towards 1. Returns where the
// result is, which is in `x` or `work`. `work` has room for m k + 2 m² elements.
template <typename T>
T* orthogonalize(T* x, int64_t m, int64_t k, int64_t iterations, T* work) {
  constexpr T kA = T(3.4445), kB = T(-4.7750), kC = T(2.0315);
  double squares = 0;
  for (int64_t i = 0; i < m * k; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  const T scale = static_cast<T>(1 / std::max(std::sqrt(squares), 1e-7));
  for (int64_t i = 0; i < m * k; ++i) x[i] *= scale;
  T *next = work, *const gram = work + m * k, *const polynomial = gram + m * m;
  const int threads = max_threads();
  for (int64_t i = 0; i < iterations; ++i) {
    const MatrixView<const T> rows{x, k, 1}, columns{x, 1, k};
    multiply<T>(m, m, k, T(1), rows, columns, T(0), gram, m, threads);
    std::copy_n(gram, m * m, polynomial);
    const MatrixView<const T> square{gram, m, 1};
    multiply<T>(m, m, m, kC, square, square, kB, polynomial, m, threads);
    std::copy_n(x, m * k, next);
    multiply<T>(m, k, m, T(1), {polynomial, m, 1}, rows, kA, next, k, threads);
    std::swap(x, next);
  }
  return x;
}

template <typename T>
void step_of_matrix(const OptimizerStep& s, const TensorRun<T>& run) {
  const int64_t rows = run.shape[0], columns = run.shape[1];
  const bool is_tall = rows > columns, nesterov = s["nesterov"] != 0;
  const T momentum = static_cast<T>(s["momentum"]), scale = static_cast<T>(s.gradient_scale);
  T* buffer = run.states[0].template data<T>();
  T* direction = run.work;
  parallel_for(rows, 4 * columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t i = r * columns + c;
        const T g = run.g[i] * scale;
        buffer[i] = momentum * buffer[i] + (1 - momentum) * g;
        const T taken = nesterov ? momentum * buffer[i] + (1 - momentum) * g : buffer[i];
        direction[is_tall ? c * rows + r : i] = taken;
      }
  });
  direction = orthogonalize(direction, std::min(rows, columns), std::max(rows, columns),
                            static_cast<int64_t>(s["steps"]), run.work + run.n);
  const double high = static_cast<double>(rows), wide = static_cast<double>(columns);
  const double factor =
      s["match_rms"] != 0 ? 0.2 * std::sqrt(std::max(high, wide)) : std::sqrt(std::max(1.0, high / wide));
  const T rate = static_cast<T>(s.rate * factor), kept = static_cast<T>(1 - s.rate * s["weight_decay"]);
  parallel_for(rows, 3 * columns, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t i = r * columns + c;
        run.w[i] = kept * run.w[i] - rate * direction[is_tall ? c * rows + r : i];
      }
  });
}

struct Muon {
  static Tensor state(const OptimizerStep& group, DType dtype, const Shape& shape, size_t k) {
    const bool is_kept = k == 0 || !is_orthogonalized(group, shape);
    return Tensor(dtype, is_kept ? shape : Shape{0}, nullptr);
  }

  // Two matrices of the shape of the parameter, and two of its smaller side.
  static int64_t work(const OptimizerStep& group, const Shape& shape) {
    if (!is_orthogonalized(group, shape)) return 0;
    const int64_t least = std::min(shape[0], shape[1]);
    return 2 * (shape[0] * shape[1] + least * least);
  }

  template <typename T>
  static void step(const OptimizerStep& s, const TensorRun<T>& run) {
    if (is_orthogonalized(s, run.shape)) return step_of_matrix(s, run);
    run_adamw(s, run);
  }
};

ORTRAIN_OPTIMIZER(
    Muon,
    {.name = "muon",
     .title = "Muon",
     .formula = "matrices: b = μb + (1-μ)g; o = orthogonal(nesterov: μb + (1-μ)g, else b); w = w(1 - "
                "lr·decay) - lr·c·o, "
                "c = 0.2 √max(rows, columns), without match_rms √max(1, rows/columns); others: AdamW",
     .source = "Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024",
     .settings = {{"momentum", 0.95f, "fraction of the buffer that a step keeps", 0, 1},
                  {"nesterov", 1, "whether Nesterov momentum is used", 0, 2, true},
                  {"steps", 5, "Newton-Schulz iterations", 0, 100},
                  {"match_rms", 1, "whether steps of matrices are scaled to the size of AdamW's steps", 0, 2,
                   true},
                  {"matrices", 1, "whether matrices are orthogonalized; 0 for embeddings and heads", 0, 2,
                   true},
                  {"beta1", 0.9f, "decay of AdamW's first moment", 0, 1},
                  {"beta2", 0.95f, "decay of AdamW's second moment", 0, 1},
                  {"epsilon", 1e-8f, "added to the root of AdamW's second moment", 0},
                  {"weight_decay", 0.1f, "decay of the weights, as a fraction of the learning rate"}},
     .states = {{"momentum_buffer", "average of the gradients"},
                {"second_moment", "average of their squares, of parameters that are not orthogonalized"}},
     .of_tensor = tensor_rule<Muon>()});

}  // namespace
}  // namespace ortrain
