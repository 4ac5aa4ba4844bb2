// The second kind of declaration of an optimizer: a step that takes a parameter as a whole, because it
// factors a matrix, or because its states have other shapes or types than the weights.
//
//     struct Adafactor {
//       // The type and shape of a state of a parameter; the tensor has no memory.
//       static Tensor state(const OptimizerStep& group, DType dtype, const Shape& shape, size_t k);
//       // The elements of the memory for intermediate values of a step.
//       static int64_t work(const OptimizerStep& group, const Shape& shape);
//       template <typename T> static void step(const OptimizerStep& s, const TensorRun<T>& run);
//     };
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/optimizer/rule.h"
#include "runtime/tensor.h"

namespace ortrain {

// A parameter, row-major, whose weights the step changes. Gradients are not scaled yet.
template <typename T>
struct TensorRun {
  const Shape& shape;
  T* w;
  const T* g;
  int64_t n;
  const std::vector<Tensor>& states;
  T* work;  // not initialized
};

struct TensorRule {
  Tensor (*state)(const OptimizerStep& group, DType dtype, const Shape& shape, size_t k);
  int64_t (*work)(const OptimizerStep& group, const Shape& shape);
  void (*of_float)(const OptimizerStep& step, const TensorRun<float>& run);
  void (*of_double)(const OptimizerStep& step, const TensorRun<double>& run);
};

template <class Rule>
const TensorRule* tensor_rule() {
  static const TensorRule rule{Rule::state, Rule::work, Rule::template step<float>,
                               kHasKernels<double> ? Rule::template step<double> : nullptr};
  return &rule;
}

// One step of a parameter. Those of 16 bits are computed as floats. `work` is memory that grows until it is
// large enough for every parameter, so that later steps allocate nothing.
void run_tensor_rule(const TensorRule& rule, const OptimizerStep& step, const Tensor& weights,
                     const Tensor& gradients, const std::vector<Tensor>& states, Tensor& work);

}  // namespace ortrain
