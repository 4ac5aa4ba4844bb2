// The vectorized passes of the optimizers over contiguous state. float and double.
#pragma once

#include <cstdint>

#include "backend/cpu/optimizer/rules/adamw.h"

namespace ortrain {

// m ← αm + (1-α)g,  v ← βv + (1-β)g²,  r ← step_size m / (root_scale √v + ε) + decay w, where g is multiplied
// by `scale` first
void lamb_direction_update(const float* w, const float* g, float* m, float* v, float* r, int64_t n,
                           const AdamWFactors<float>& f, float decay, float scale);
void lamb_direction_update(const double* w, const double* g, double* m, double* v, double* r, int64_t n,
                           const AdamWFactors<double>& f, double decay, double scale);

// The largest of `n` elements, given by their bits, without their signs; 0 if there are none. The bits of
// infinity are above those of all numbers, and those of NaN above those of infinity.
uint16_t largest_magnitude(const uint16_t* bits, int64_t n);
uint32_t largest_magnitude(const uint32_t* bits, int64_t n);
uint64_t largest_magnitude(const uint64_t* bits, int64_t n);

// Σ g², accumulated in double.
double sum_of_squares(const float* g, int64_t n);
double sum_of_squares(const double* g, int64_t n);

}  // namespace ortrain
