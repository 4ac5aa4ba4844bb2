// Kernels of group normalization, whose groups are single channels in instance normalization.
#pragma once

#include <cstddef>
#include <cstdint>

#include "op/operator.h"

namespace ortrain {

// X as [batch, groups, channels of a group, points]. Without num_groups every channel is a group.
struct NormalizedGroups {
  int64_t batch, groups, channels, points;
  bool by_group;  // scale and bias have one value per group
  double epsilon;

  // Of a node with X and scale at those inputs; rejects shapes that do not agree.
  NormalizedGroups(const NodeContext& c, size_t x_at, size_t scale_at);
  int64_t group_size() const { return channels * points; }
  int64_t parameter(int64_t group, int64_t channel) const {
    return by_group ? group : group * channels + channel;
  }
};

// X, scale, bias → Y.
Kernel group_normalization(KernelContext& c);
// dY, X, scale → dX, dscale, dbias.
Kernel group_normalization_grad(KernelContext& c);

}  // namespace ortrain
