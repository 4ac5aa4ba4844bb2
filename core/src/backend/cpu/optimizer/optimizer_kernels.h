// The vectorized passes of the optimizers over contiguous state. float and double.
#pragma once

#include <algorithm>
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

// Σ g² of n gradients, accumulated in double. Those that are zero may be left out: the sum has the same bits.
template <typename T>
class SumOfSquares {
 public:
  SumOfSquares(const T* g, int64_t n) : g_(g), vectors_end_(n - n % kLanes) {}

  // Adds the elements [begin, end), which are behind those that were added before.
  void add(int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t block = begin / kBlock;
      if (block != block_) finish_block();
      block_ = block;
      const int64_t to = std::min(end, (block + 1) * kBlock);
      add_in_block(begin, to);
      begin = to;
    }
  }
  double total() {
    finish_block();
    return total_;
  }

 private:
  // Blocks of fixed size are summed one by one and then together, so that the sum does not depend on what is
  // added at once.
  static constexpr int64_t kBlock = 4096, kLanes = 8;

  void add_in_block(int64_t i, int64_t end) {
    const auto square = [this](int64_t at) { return static_cast<double>(g_[at]) * g_[at]; };
    for (; i < end && i % kLanes != 0; ++i) lanes_[i < vectors_end_ ? i % kLanes : 0] += square(i);
    for (; i + kLanes <= end; i += kLanes)
      for (int64_t k = 0; k < kLanes; ++k) lanes_[k] += square(i + k);
    for (; i < end; ++i) lanes_[i < vectors_end_ ? i % kLanes : 0] += square(i);
  }
  void finish_block() {
    for (double& lane : lanes_) {
      total_ += lane;
      lane = 0;
    }
  }

  const T* g_;
  int64_t vectors_end_;  // behind it, the rest is summed in the first lane
  int64_t block_ = 0;
  double lanes_[kLanes] = {};
  double total_ = 0;
};

// Σ g², accumulated in double.
double sum_of_squares(const float* g, int64_t n);
double sum_of_squares(const double* g, int64_t n);

}  // namespace ortrain
