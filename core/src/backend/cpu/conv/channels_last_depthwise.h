// Depthwise convolution in float on values with channels last: each channel has one filter, and vectors hold
// neighboring channels. The windows are read where they are; results at the border leave out the elements of
// their window that are outside.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/conv/pass_axis.h"
#include "backend/cpu/conv/portable_conv.h"
#include "geometry/convolution.h"

namespace ortrain {

class ChannelsLastDepthwise {
 public:
  explicit ChannelsLastDepthwise(const ConvSizes& sizes);

  bool suits() const { return suits_; }
  // Floats of memory for all workers.
  int64_t work_size() const { return taps_ * sizes_.channels; }
  int64_t weights_work_size() const { return sizes_.batch * taps_ * sizes_.channels; }

  // X [N, input..., C], W [C, kernel...], Y [N, output..., C].
  // Y = activation(X * W + bias + addend); bias and addend may be null.
  void forward(const float* x, const float* w, const float* bias, const float* addend,
               const Activation& activation, float* y, float* work) const;
  // dX from dY and W.
  void backward_data(const float* dy, const float* w, float* dx, float* work) const;
  // dW from dY and X. The sums do not depend on the number of threads.
  void backward_weights(const float* dy, const float* x, float* dw, float* work) const;

 private:
  struct Pass {
    PassAxis axes[3];
    std::vector<int64_t> places;  // of the weights of the last axis, in [kernel..., C]
  };

  // W as [kernel..., C].
  void turn_weights(const float* w, float* turned) const;
  // Computes the results of a pass line by line.
  void run(const Pass& pass, const float* source, const float* weights, const float* bias,
           const float* addend, const Activation& activation, float* target) const;

  ConvSizes sizes_;
  bool suits_ = false;
  int64_t workers_ = 1, taps_ = 1;
  Pass forward_;
  std::vector<Pass> backward_;  // by offset within the strides
};

}  // namespace ortrain
