// Stable sorting in one function for all types: the compiler would repeat std::stable_sort for each order,
// about two kilobytes each time. For lists of which a model has few or that a step does not sort.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace ortrain {

// The indices 0 ... n - 1 in ascending order; indices of which neither is before the other keep their order.
std::vector<size_t> stable_order(size_t n, const std::function<bool(size_t, size_t)>& is_before);

// Sorts values; values of which neither is before the other keep their order.
template <typename T, typename IsBefore>
void stable_sort(std::vector<T>& values, const IsBefore& is_before) {
  const std::vector<size_t> order =
      stable_order(values.size(), [&](size_t a, size_t b) { return is_before(values[a], values[b]); });
  std::vector<T> sorted;
  sorted.reserve(values.size());
  for (const size_t i : order) sorted.push_back(std::move(values[i]));
  values = std::move(sorted);
}

}  // namespace ortrain
