// Decides which weights, or which parts of weights, this process updates, and adds their states to the graph.
// Without ZeRO a process updates all of its weights. The parts that ZeRO gives a process are views of the
// whole weights, so that optimizer nodes need not know of ZeRO.
#include "legacy/graph_updates.h"

#include <algorithm>
#include <utility>

#include "legacy/mixed_precision_graph.h"
#include "legacy/ranks.h"

namespace ortrain {

std::vector<Update> add_updated_states(GraphDraft& d) {
  std::vector<std::string> by_name = d.weights;
  std::sort(by_name.begin(), by_name.end());
  std::vector<int64_t> counts;
  for (const std::string& weight : by_name) counts.push_back(d.weight_value(weight).size());
  const std::vector<Range> ranges =
      d.is_divided() ? zero_ranges(counts, d.p.data_parallel_size, place_of(d.p).data) : std::vector<Range>{};
  std::vector<Update> updates;
  for (const std::string& weight : d.weights) {
    const Tensor& value = d.weight_value(weight);
    Update update{weight, weight, "", d.gradients[weight], 0, value.size(), true};
    if (d.is_divided()) {
      const Range& range = ranges[static_cast<size_t>(
          std::lower_bound(by_name.begin(), by_name.end(), weight) - by_name.begin())];
      update.first = range.first;
      update.count = range.count;
      update.whole = range.count == value.size();
    }
    const bool is_cut = !update.whole && update.count > 0;
    d.out.states.push_back({weight, StateRole::kWeight, weight, {}, 0, is_cut});
    update.half = add_half_state(d, weight, is_cut);
    if (is_cut) {
      const auto part = [&](std::string& name, StateRole role, const Tensor& whole) {
        const std::string of = name;
        name = zero_view_name(of, {update.first, update.count});
        d.add_state(name, role, weight, elements_of(whole, update.first, update.count));
        d.out.states.back().view_of = of;
        d.out.states.back().first = update.first;
      };
      part(update.name, StateRole::kWeight, value);
      if (!update.half.empty()) part(update.half, StateRole::kMixedPrecision, half_of(value));
      part(update.gradient, StateRole::kGradient, zeros(value.dtype(), value.shape()));
    }
    if (update.count > 0) updates.push_back(std::move(update));
  }
  return updates;
}

}  // namespace ortrain
