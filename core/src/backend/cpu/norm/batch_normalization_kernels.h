// Kernels of batch normalization that need no library.
#pragma once

#include <cmath>
#include <optional>

#include "backend/cpu/norm/clip_range.h"
#include "geometry/batch_normalization.h"

namespace ortrain {

std::optional<Kernel> row_major_batch_normalization(KernelContext& c);
std::optional<Kernel> row_major_batch_normalization_grad(KernelContext& c);
// In float, with channels last.
std::optional<Kernel> channels_last_batch_normalization(KernelContext& c);
std::optional<Kernel> channels_last_batch_normalization_grad(KernelContext& c);

namespace batch_normalization {

// Where the statistics of a training step are written.
struct Statistics {
  Slot mean, variance;  // of the batch
  struct Running {
    Slot before, after;  // `after` may be undefined or the same memory
  };
  Running running[2];  // mean, variance
  Slot state[2];       // the same, updated in place
  Slot inverse;        // 1 / sqrt(variance + epsilon)
  int64_t channels = 0;
  float momentum = 0, epsilon = 0;
  bool empty = false;  // no values in the batch: running statistics are unchanged
};

template <typename T>
void update_statistics(const Statistics& s, const Frame& f) {
  const T* batch[2] = {f.at<const T>(s.mean), f.at<const T>(s.variance)};
  const T keep = s.empty ? T(1) : static_cast<T>(s.momentum), take = T(1) - keep;
  for (int k = 0; k < 2; ++k) {
    const T* before = f.at<const T>(s.running[k].before);
    T* after = f.at_or_null<T>(s.running[k].after);
    T* state = f.at_or_null<T>(s.state[k]);
    for (int64_t i = 0; i < s.channels; ++i) {
      const T value = keep * before[i] + take * batch[k][i];
      if (after) after[i] = value;
      if (state) state[i] = value;
    }
  }
  if (T* inverse = f.at_or_null<T>(s.inverse))
    for (int64_t i = 0; i < s.channels; ++i)
      inverse[i] = T(1) / std::sqrt(batch[1][i] + static_cast<T>(s.epsilon));
}

// The activation of a node, or of the node whose gradient it computes.
std::optional<ClipRange> clip_range(const Node& node);

// Outputs 1 to 5 of a training node. In opset 9 to 13, output 4 is the variance of the batch; in
// onnxruntime's operator it is the inverse deviation, and output 5, which recomputation requests, is the
// variance.
Statistics plan_statistics(KernelContext& c);

// Without training, the outputs for running statistics are the inputs.
Kernel with_statistics_passed_on(KernelContext& c, Kernel normalize);

}  // namespace batch_normalization
}  // namespace ortrain
