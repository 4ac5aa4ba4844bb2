#include "runtime/stable_sort.h"

#include <algorithm>
#include <numeric>

namespace ortrain {

std::vector<size_t> stable_order(size_t n, const std::function<bool(size_t, size_t)>& is_before) {
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), is_before);
  return order;
}

}  // namespace ortrain
