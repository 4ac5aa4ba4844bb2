// The vectorized passes of the optimizers over contiguous state. float and double.
#pragma once

#include <cstdint>

namespace ortrain {

template <typename T>
struct AdamWFactors {
  T alpha = 0, beta = 0, epsilon = 0;   // decay rates of the moments; what keeps the square root from zero
  T gradient_scale = 1;                 // the clip of the gradient norm
  T decay_before = 1, decay_after = 1;  // what weight decay leaves of a weight, before and after the step
  T root_scale = 1;                     // 1 / sqrt(bias correction of the second moment)
  T step_size = 0;
};

// m ← αm + (1-α)g,  v ← βv + (1-β)g²,  w ← decay_after (decay_before w - step_size m / (root_scale √v + ε))
void adamw_update(float* w, const float* g, float* m, float* v, int64_t n, const AdamWFactors<float>& f);
void adamw_update(double* w, const double* g, double* m, double* v, int64_t n, const AdamWFactors<double>& f);

// m and v as above;  r ← step_size m / (root_scale √v + ε) + decay w
void lamb_direction_update(const float* w, const float* g, float* m, float* v, float* r, int64_t n,
                           const AdamWFactors<float>& f, float decay);
void lamb_direction_update(const double* w, const double* g, double* m, double* v, double* r, int64_t n,
                           const AdamWFactors<double>& f, double decay);

// w ← w - rate g
void sgd_update(float* w, const float* g, int64_t n, float rate);
void sgd_update(double* w, const double* g, int64_t n, double rate);

// The largest of `n` elements, given by their bits, without their signs; 0 if there are none. The bits of
// infinity are above those of all numbers, and those of NaN above those of infinity.
uint16_t largest_magnitude(const uint16_t* bits, int64_t n);
uint32_t largest_magnitude(const uint32_t* bits, int64_t n);
uint64_t largest_magnitude(const uint64_t* bits, int64_t n);

// Σ g², accumulated in double.
double sum_of_squares(const float* g, int64_t n);
double sum_of_squares(const double* g, int64_t n);

}  // namespace ortrain
