// Depthwise convolution in float on values with channels last: each channel has one filter, and vectors hold
// neighboring channels. The windows are read where they are. Results at the border leave out the elements of
// their window that are outside; only with windows of 3 x 3 elements, lines outside are read as zeros.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cpu/conv/pass_axis.h"
#include "backend/cpu/conv/row_major_conv.h"
#include "geometry/convolution.h"

namespace ortrain {

struct DepthwiseResults;

// Lines of an image along the last axis, of the channels [begin, end) alone: line n is at data + n % stored *
// the size of a line. `stored` is the number of all lines, or fewer if they take turns in the same memory.
struct DepthwiseSource {
  const float* data;
  int64_t stored, begin, end;
};

class ChannelsLastDepthwise {
 public:
  [[gnu::cold]] explicit ChannelsLastDepthwise(const ConvSizes& sizes);

  bool suits() const { return suits_; }
  // W as the functions below read it: [kernel..., C].
  int64_t turned_size() const { return taps_ * sizes_.channels; }
  void turn_weights(const float* w, float* turned) const;
  // Floats of memory for all workers.
  int64_t weights_work_size() const { return sizes_.batch * taps_ * sizes_.channels; }

  // X [N, input..., C], W [C, kernel...], Y [N, output..., C].
  // Y = activation(X * W + bias + addend) with turned W; bias and addend may be null.
  void forward(const float* x, const float* turned, const float* bias, const float* addend,
               const Activation& activation, float* y) const;
  // The same for the lines [first, past) of the results of an image with two axes and the channels of x,
  // which the cache holds, on this thread. y begins with line `first` and has all channels. The activation
  // must be none, Relu or Clip.
  void forward_lines(int64_t first, int64_t past, DepthwiseSource x, const float* turned, const float* bias,
                     const Activation& activation, float* y) const;
  // dX from dY and turned W.
  void backward_data(const float* dy, const float* turned, float* dx) const;
  // dW from dY and X. The sums do not depend on the number of threads.
  void backward_weights(const float* dy, const float* x, float* dw, float* work) const;

 private:
  struct Pass {
    PassAxis axes[3];
    std::vector<int64_t> places;  // of the weights of the last axis, in [kernel..., C]
  };

  // Results [first, past) of a line; the target and the addend begin with result 0 of the line.
  struct Share {
    int64_t at_d = 0, at_h = 0, first = 0, past = 0;
    const float* bias = nullptr;
    const float* addend = nullptr;
    float* target = nullptr;
    bool prefetches = true;  // the lines that it reads first, and the memory of the results
  };
  DepthwiseResults results_of(const Pass& pass, const Share& share, const DepthwiseSource& source) const;
  // Whether each result of the pass reads three lines with three neighboring taps, which
  // compute_three_lines computes faster, for `count` lines from that of the share on.
  bool has_three_lines(const Pass& pass, int64_t channels, const float* addend) const;
  void compute_three_lines(const Pass& pass, const Share& share, int64_t count, DepthwiseSource source,
                           const float* weights, const Activation& activation) const;
  // A line of a pass.
  void compute(const Pass& pass, const Share& share, DepthwiseSource source, const float* weights,
               const Activation& activation) const;
  // Computes the results of passes line by line. The passes differ only in the last axis, and the first one
  // has the most results.
  void run(std::span<const Pass> passes, const float* source, const float* weights, const float* bias,
           const float* addend, const Activation& activation, float* target) const;

  // Computes the sums of an image for the gradient of the weights of the channels [begin, end).
  void add_products(int64_t image, const float* dy, const float* x, int64_t begin, int64_t end,
                    float* sums) const;

  ConvSizes sizes_;
  bool suits_ = false;
  int64_t workers_ = 1, taps_ = 1;
  Pass forward_;
  std::vector<Pass> backward_;                       // by offset within the strides
  std::shared_ptr<const std::vector<float>> zeros_;  // a line outside of an image
};

}  // namespace ortrain
