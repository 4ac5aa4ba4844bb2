#include "program/memory_plan.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace ortrain {

MemoryPlan plan_memory(const std::vector<MemoryRequest>& requests) {
  MemoryPlan plan;
  plan.offsets.assign(requests.size(), 0);
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return requests[a].bytes > requests[b].bytes; });
  std::vector<size_t> placed;  // by offset
  for (const size_t i : order) {
    const MemoryRequest& r = requests[i];
    // Of the gaps between neighbours in time, the smallest that fits; else behind the last neighbour.
    size_t free_from = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    for (const size_t j : placed) {
      if (requests[j].last < r.first || requests[j].first > r.last) continue;
      const size_t begin = plan.offsets[j];
      if (begin >= free_from + r.bytes && begin - free_from < best_gap) {
        best = free_from;
        best_gap = begin - free_from;
      }
      free_from = std::max(free_from, begin + requests[j].bytes);
    }
    plan.offsets[i] = best == SIZE_MAX ? free_from : best;
    plan.bytes = std::max(plan.bytes, plan.offsets[i] + r.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
                  i);
  }
  return plan;
}

}  // namespace ortrain
