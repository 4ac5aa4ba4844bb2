// Arithmetic of integers that does not trap.
#pragma once

#include <cstdint>
#include <type_traits>

namespace ortrain {

// Arithmetic modulo 2^64, which becomes arithmetic modulo 2^width when truncated to the type afterwards: no
// overflow.
template <typename T>
uint64_t wrap(T x) {
  return static_cast<uint64_t>(x);
}

// The sum and the product, of integers modulo 2^width.
template <typename T>
T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(wrap(a) + wrap(b));
  else
    return static_cast<T>(a + b);
}
template <typename T>
T wrapping_product(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(wrap(a) * wrap(b));
  else
    return static_cast<T>(a * b);
}

// a / b toward zero; the most negative number over -1 wraps around instead of trapping.
template <typename T>
T quotient(T a, T b) {
  if constexpr (std::is_signed_v<T>)
    if (b == -1) return static_cast<T>(0 - wrap(a));
  return static_cast<T>(a / b);
}

// The remainder of a, with the sign of b.
template <typename T>
T remainder(T a, T b) {
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) return 0;
    const T r = static_cast<T>(a % b);
    return r != 0 && (r < 0) != (b < 0) ? static_cast<T>(r + b) : r;
  } else {
    return static_cast<T>(a % b);
  }
}

}  // namespace ortrain
