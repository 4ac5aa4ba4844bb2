// Calls the function of the host that adds up a buffer over processes. The kernels that need the function
// find it through a variable of their thread, which is set during a run.
#include "legacy/rank_sum.h"

#include "runtime/error.h"

namespace ortrain {
namespace {

thread_local const RankSum* current = nullptr;

}  // namespace

RankSumScope::RankSumScope(const RankSum& sum) : before_(current) { current = &sum; }
RankSumScope::~RankSumScope() { current = before_; }

void sum_over_ranks(std::byte* data, size_t count, DType dtype, const char* name) {
  require(current != nullptr, ErrorCode::kInvalidArgument,
          "it adds up values of several processes, but the run options have no function for that "
          "(RunOptionsSetRankSum)");
  if (count > 0) (*current)(data, count, dtype, name);
}

}  // namespace ortrain
