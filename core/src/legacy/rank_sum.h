// Sums over processes. The core does not communicate: it hands a buffer to a function of the host, which
// overwrites it with the sum of the buffers of all processes that share a layer.
//
// The kernel finds that function through a scope on the thread that runs the graph: as an argument it
// would pass through every kernel of the library. RunOptions::around opens the scope around the kernels of
// a run.
#pragma once

#include <cstddef>
#include <functional>

#include "runtime/dtype.h"

namespace ortrain {

// `count` float or double values, and a name for them. All processes call it for the same values in the same
// order.
using RankSum = std::function<void(std::byte* data, size_t count, DType dtype, const char* name)>;

// The function for runs on this thread, while the scope lasts.
class RankSumScope {
 public:
  explicit RankSumScope(const RankSum& sum);
  ~RankSumScope();
  RankSumScope(const RankSumScope&) = delete;
  RankSumScope& operator=(const RankSumScope&) = delete;

 private:
  const RankSum* before_;
};

// Calls it. Throws if there is none.
void sum_over_ranks(std::byte* data, size_t count, DType dtype, const char* name);

}  // namespace ortrain
