#include "program/memory_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

#include "runtime/error.h"
#include "runtime/stable_sort.h"

namespace ortrain {

namespace {

// Places the requests in the given order.
MemoryPlan place(const std::vector<MemoryRequest>& requests, const std::vector<size_t>& order) {
  MemoryPlan plan;
  plan.offsets.assign(requests.size(), 0);
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    const MemoryRequest& r = requests[i];
    // Finds the smallest gap that fits between pieces in use at the same time, or else the end of the last
    // piece.
    size_t free_from = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    for (const size_t j : placed) {
      if (requests[j].last < r.first || requests[j].first > r.last) continue;
      const size_t begin = plan.offsets[j];
      if (begin >= free_from && begin - free_from >= r.bytes && begin - free_from < best_gap) {
        best = free_from;
        best_gap = begin - free_from;
      }
      free_from = std::max(free_from, begin + requests[j].bytes);
    }
    const size_t offset = best == SIZE_MAX ? free_from : best;
    require(offset <= SIZE_MAX - r.bytes, ErrorCode::kFail, "the values of a step take more memory than the ",
            SIZE_MAX, " bytes that this system can address");
    plan.offsets[i] = offset;
    plan.bytes = std::max(plan.bytes, offset + r.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
                  i);
  }
  return plan;
}

constexpr size_t kAttempts = 64;
constexpr size_t kWork = 20'000'000;  // pairs of pieces examined in all attempts: about ten milliseconds

}  // namespace

MemoryPlan plan_memory(const std::vector<MemoryRequest>& requests) {
  const size_t least = most_in_use(requests);
  std::vector<size_t> order = stable_order(
      requests.size(), [&](size_t a, size_t b) { return requests[a].bytes > requests[b].bytes; });
  MemoryPlan best = place(requests, order);
  MemoryPlan plan = best;
  const size_t pairs = std::max<size_t>(1, requests.size() * requests.size());
  for (size_t left = std::min(kAttempts, kWork / pairs); left > 0 && best.bytes > least + least / 100;
       --left) {
    // The next attempt first places the piece with the highest end.
    const auto top = std::find_if(order.begin(), order.end(), [&](size_t i) {
      return plan.offsets[i] + requests[i].bytes == plan.bytes;
    });
    if (top == order.begin()) break;
    std::rotate(order.begin(), top, top + 1);
    plan = place(requests, order);
    if (plan.bytes < best.bytes) best = plan;
  }
  return best;
}

size_t most_in_use(const std::vector<MemoryRequest>& requests) {
  std::map<int, int64_t> change;  // by step
  for (const MemoryRequest& r : requests) {
    change[r.first] += static_cast<int64_t>(r.bytes);
    change[r.last + 1] -= static_cast<int64_t>(r.bytes);
  }
  int64_t now = 0, most = 0;
  for (const auto& [step, bytes] : change) most = std::max(most, now += bytes);
  return static_cast<size_t>(most);
}

}  // namespace ortrain
