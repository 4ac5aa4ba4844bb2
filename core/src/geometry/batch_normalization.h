// Batch normalization: the order of inputs and outputs, whether the node is in training mode, and the
// activation that it may include.
#pragma once

#include <cstddef>

#include "op/operator.h"
#include "op/opset.h"

namespace ortrain::batch_normalization {

// The order of the inputs, and the order of the gradient operator's inputs.
enum Input : size_t { kX, kScale, kBias, kMean, kVariance };
enum GradInput : size_t { kGradDy, kGradX, kGradScale, kGradMean, kGradInverse, kGradBias };

// The attributes of the operators with an activation: its bounds, and a value at which its derivative is 0
// although it is within them.
inline constexpr const char *kLow = "min", *kHigh = "max", *kExcluded = "excluded";

// Whether the running statistics are model state, which the node updates. Such a node also saves the inverse
// deviation, and is in training mode by default.
inline bool updates_statistics(const Node& node) {
  const Operator* op = find_operator(node.domain, node.op_type);
  return op && op->traits.updates != 0;
}

// Whether a node computes the statistics of its batch instead of using given ones.
inline bool trains(const Node& node, int64_t opset) {
  if (updates_statistics(node)) return node.int_or("training_mode", 1) != 0;
  if (opset >= since::kTrainingMode) return node.int_or("training_mode", 0) != 0;
  for (size_t o = 1; o < node.outputs.size(); ++o)
    if (node.has_output(o)) return true;
  return false;
}

}  // namespace ortrain::batch_normalization
