// The arrays that an optimizer's pass reads and writes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/dtype.h"

namespace ortrain {

inline constexpr size_t kMostStates = 4;  // of an optimizer

// `n` elements of each array. Weights and gradients are of type `dtype`. States are of that type too, or
// float if it is a 16-bit float. Optimizers with fewer states leave the last ones null.
struct OptimizerRun {
  DType dtype;
  std::byte *weights, *gradients;
  std::array<std::byte*, kMostStates> states;
  int64_t n;
};

}  // namespace ortrain
