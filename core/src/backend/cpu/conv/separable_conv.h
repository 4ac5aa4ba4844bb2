// A depthwise convolution with the pointwise convolutions before and after it, on values with channels last:
// the block of which MobileNets consist.
//
// The value between the first two convolutions is the largest of the block, often six times as large as the
// block's input. It is never stored whole: a worker computes a few of its lines, in memory that stays in the
// cache, and from them the lines of the depthwise convolution and of the result. Lines that later results
// read again are kept; the others are overwritten. The lines of a group of channels are computed and read
// before those of the next group.
#pragma once

#include <cstdint>
#include <optional>

#include "backend/cpu/conv/channels_last_conv.h"
#include "backend/cpu/conv/channels_last_depthwise.h"

namespace ortrain {

// One of the convolutions: weights as their class packs them, an element of the bias for each filter or null,
// and an activation that is none, Relu or Clip.
struct SeparableStage {
  const float* weights = nullptr;
  const float* bias = nullptr;
  Activation activation;
};

class SeparableConvolution {
 public:
  // `depthwise`: the sizes of the convolution in the middle, with two axes. `channels` of X and `filters` of
  // Y: 0 without the convolution before or after it.
  SeparableConvolution(const ConvSizes& depthwise, int64_t channels, int64_t filters);

  bool suits() const;
  // The convolutions; null if there is none.
  const ChannelsLastConvolution* first() const { return first_ ? &*first_ : nullptr; }
  const ChannelsLastDepthwise& middle() const { return middle_; }
  const ChannelsLastConvolution* last() const { return last_ ? &*last_ : nullptr; }
  // Floats of memory for all workers.
  int64_t work_size() const { return workers_ * (kept_size() + results_size()); }

  // X [N, H, W, channels], Y [N, output H, output W, filters].
  void forward(const float* x, const SeparableStage& first, const SeparableStage& middle,
               const SeparableStage& last, float* y, float* work) const;

 private:
  struct Stages {
    SeparableStage first, middle, last;
  };

  // Floats of a worker: lines that the depthwise convolution reads, and its results.
  int64_t kept_size() const { return first_ ? images_ * kept_ * window_[1].input * sizes_.channels : 0; }
  int64_t results_size() const { return last_ ? images_ * rows_ * window_[1].output * sizes_.channels : 0; }
  // Result lines [begin, end) of `images` neighboring images.
  void compute(const float* x, const Stages& stages, int64_t images, int64_t begin, int64_t end, float* y,
               float* work) const;
  // Lines [from, to) of an image and the channels [begin, end), into the memory in which they take turns.
  void expand(const float* x, const SeparableStage& stage, int64_t from, int64_t to, int64_t begin,
              int64_t end, float* lines) const;

  ConvSizes sizes_;
  std::vector<WindowAxis> window_;  // the two axes
  int64_t channels_, filters_;
  std::optional<ChannelsLastConvolution> first_, last_;
  ChannelsLastDepthwise middle_;
  int64_t workers_ = 1;
  int64_t images_ = 1, rows_ = 1, kept_ = 1;  // at a time: images, lines of results, lines that they read
  int64_t group_ = 1;                         // channels of the lines that they read
};

}  // namespace ortrain
