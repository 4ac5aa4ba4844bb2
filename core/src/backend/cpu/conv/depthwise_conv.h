// Depthwise convolution in float: each channel has one filter. A product would have a single row, too few for
// the micro-kernels of matrix products; here a vector holds neighboring outputs.
//
// The input of a band of output lines is copied with its padding and split into phases, one for each offset
// within the strides. The lines of a phase are contiguous, so each window element is at a constant distance
// from its output, and the band is computed as one long line. The padding between two lines gives outputs
// that are dropped.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/conv/row_major_conv.h"
#include "geometry/convolution.h"

namespace ortrain {

class DepthwiseConvolution {
 public:
  [[gnu::cold]] explicit DepthwiseConvolution(const ConvSizes& sizes);

  bool suits() const { return suits_; }
  // Floats of memory for all workers.
  int64_t work_size() const { return workers_ * (lines_size_ + sums_size_ + totals_size_); }

  // Y = activation(X * W + bias + addend); bias and addend may be null.
  void forward(const float* x, const float* w, const float* bias, const float* addend,
               const Activation& activation, float* y, float* work) const;
  // dX from dY and W.
  void backward_data(const float* dy, const float* w, float* dx, float* work) const;
  // dW from dY and X.
  void backward_weights(const float* dy, const float* x, float* dw, float* work) const;

 private:
  // Elements of the window, and how far they are from an element of a line in the lines that it is computed
  // from.
  struct Taps {
    std::vector<int64_t> taps, shifts;
  };
  // The memory of a worker.
  struct Work {
    float* lines;
    float* sums;
    double* totals;
  };

  Work work_of(float* work, int64_t worker) const;
  // Calls f(work, item) for all items, divided among the workers.
  template <typename F>
  void share(int64_t items, float* work, F&& f) const;
  // Copies the input of the output lines from `first` on.
  void write_band(const float* x, int64_t first, float* lines) const;
  // Copies `count` lines of dY from `first` on, with zeros after each; lines outside dY are zero.
  void write_gradient(const float* dy, int64_t first, int64_t count, float* lines) const;
  // Writes the lines of one phase of dX from `first` on to their places.
  void read_phase(const float* sums, int64_t phase, int64_t first, int64_t count, float* dx) const;
  // The gradient of one weight, without the padding between lines.
  float weight_gradient(const float* dy, const float* x, int64_t channel, int64_t tap) const;

  ConvSizes sizes_;
  WindowAxis h_, w_;
  bool suits_;
  int64_t workers_ = 1;
  int64_t above_ = 0,
          left_ = 0;    // how many elements of a phase a window reads before its last, along each axis
  int64_t length_ = 0;  // of a line
  int64_t rows_ = 0;    // lines of a band of results
  bool whole_ = false;  // whether there is one band: then its padding is written once for all channels
  int64_t lines_size_ = 0, sums_size_ = 0, totals_size_ = 0;  // floats of a worker
  Taps window_;                                               // the whole window, in lines of X
  std::vector<Taps> phases_;                                  // of dX, in lines of dY
};

}  // namespace ortrain
