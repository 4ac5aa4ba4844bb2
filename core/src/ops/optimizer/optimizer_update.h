// The update steps of optimizers that are operators: how their attributes are read, and passes over weights,
// gradients and moments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/cpu/optimizer/optimizer_kernels.h"
#include "backend/cpu/optimizer/optimizer_run.h"
#include "backend/cpu/optimizer/rules/adamw.h"
#include "graph/graph.h"

namespace ortrain {

// The attributes of AdamWOptimizer (com.microsoft).
AdamWSettings adamw_attributes(const Node& node);
// The problem with these attributes; empty if there is none.
std::string problem_of(const AdamWSettings& attributes);

// Whether none of the gradients is a NaN or infinite.
bool all_finite(const OptimizerRun& run);
// Throws kNotImplemented for types that parameters cannot have.
double sum_of_squares(const OptimizerRun& run);
void sgd(const OptimizerRun& run, double rate);
// weights ← factor · gradients
void scale(const OptimizerRun& run, double factor);
void adamw(const OptimizerRun& run, const AdamWFactors<double>& factors, double gradient_scale);

// Writes the direction of LAMB, m/c / (√(v/d) + ε) + decay w, into `direction`, and updates the moments.
// `factors` are the factors of AdamW without weight decay, in mode 0, for a learning rate of 1.
void lamb_direction(const OptimizerRun& run, const AdamWFactors<double>& factors, double gradient_scale,
                    double decay, std::byte* direction);
// The L2 norm of `n` values.
double norm(DType dtype, std::byte* values, int64_t n);

// The factor by which gradients are multiplied so that their norm, whose square is given, is at most
// `max_norm`.
double clip_factor(double sum_of_squares, double max_norm);

}  // namespace ortrain
