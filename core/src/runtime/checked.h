// Arithmetic on sizes and indices that come from a file or from data: each function reports a result that
// does not fit.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>

namespace ortrain {

// The product, or nothing if it does not fit.
inline std::optional<int64_t> checked_product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  return product;
}

// The sum, or nothing if it does not fit.
inline std::optional<int64_t> checked_sum(std::initializer_list<int64_t> terms) {
  int64_t sum = 0;
  for (const int64_t term : terms)
    if (__builtin_add_overflow(sum, term, &sum)) return std::nullopt;
  return sum;
}

// The product as a measure of work or memory: at most what an int64_t holds.
inline int64_t capped_product(std::initializer_list<int64_t> factors) {
  return checked_product(factors).value_or(std::numeric_limits<int64_t>::max());
}

}  // namespace ortrain
