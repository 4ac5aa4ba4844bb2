// The update step of an optimizer: the meaning of its attributes, and one pass over weights, gradients and
// moments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/cpu/optimizer/optimizer_kernels.h"
#include "graph/graph.h"

namespace ortrain {

// The arrays of a pass: `n` elements each, of type `dtype`. Moments are of that type too, or float if it is a
// 16-bit float; SGD has none.
struct OptimizerRun {
  DType dtype;
  std::byte *weights, *gradients, *first, *second;
  int64_t n;
};

// The attributes of AdamWOptimizer (com.microsoft).
struct AdamWAttributes {
  float alpha = 0.9f, beta = 0.999f, epsilon = 1e-8f, weight_decay = 1e-2f;
  bool correct_bias = true;
  int64_t adam_mode = 0;

  AdamWAttributes() = default;
  explicit AdamWAttributes(const Node& node);
  // The problem with them; empty if there is none.
  std::string problem() const;
  // The factors of a step, which counts from 1, with gradients that are multiplied by a number.
  AdamWFactors<double> factors(double learning_rate, int64_t step, double gradient_scale) const;
};

// Whether none of the gradients is a NaN or infinite.
bool all_finite(const OptimizerRun& run);
// Throws kNotImplemented for types that parameters cannot have.
double sum_of_squares(const OptimizerRun& run);
void sgd(const OptimizerRun& run, double rate);
// weights ← factor · gradients
void scale(const OptimizerRun& run, double factor);
void adamw(const OptimizerRun& run, const AdamWFactors<double>& factors);

// Writes the direction of LAMB, m/c / (√(v/d) + ε) + decay w, into `direction`, and updates the moments.
// `factors` are those of AdamWAttributes without weight decay, in mode 0, for a learning rate of 1.
void lamb_direction(const OptimizerRun& run, const AdamWFactors<double>& factors, double decay,
                    std::byte* direction);
// The L2 norm of `n` values.
double norm(DType dtype, std::byte* values, int64_t n);

// The factor by which gradients are multiplied so that their norm, whose square is given, is at most
// `max_norm`.
double clip_factor(double sum_of_squares, double max_norm);

}  // namespace ortrain
