// What batch normalization is: which tensor is which, and whether it trains.
#pragma once

#include <cstddef>

#include "op/operator.h"
#include "op/opset.h"

namespace ortrain::batch_normalization {

// Which tensor is which among the inputs, and among those of the gradient.
enum Input : size_t { kX, kScale, kBias, kMean, kVariance };
enum GradInput : size_t { kGradDy, kGradX, kGradScale, kGradMean, kGradInverse };

inline bool is_internal(const Node& node) { return node.op_type == "BatchNormInternal"; }

// Whether a node computes the statistics of its batch.
inline bool trains(const Node& node, int64_t opset) {
  if (is_internal(node)) return node.int_or("training_mode", 1) != 0;
  if (opset >= since::kTrainingMode) return node.int_or("training_mode", 0) != 0;
  for (size_t o = 1; o < node.outputs.size(); ++o)
    if (node.has_output(o)) return true;
  return false;
}

}  // namespace ortrain::batch_normalization
