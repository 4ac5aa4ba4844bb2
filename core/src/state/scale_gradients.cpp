// CheckpointState::scale_gradients: the accumulated gradients of all parameters times a fraction.
#include <algorithm>

#include "runtime/convert.h"
#include "runtime/threads.h"
#include "state/checkpoint_state.h"

namespace ortrain {
namespace {

template <typename T>
void scale(T* values, int64_t n, double factor) {
  const T by = static_cast<T>(factor);
  for (int64_t i = 0; i < n; ++i) values[i] *= by;
}

// Elements of fewer bits are scaled as floats.
void scale_narrow(DType dtype, std::byte* values, int64_t n, double factor) {
  constexpr int64_t kPart = 1024;
  float wide[kPart];
  for (int64_t i = 0; i < n; i += kPart) {
    std::byte* const part = values + bytes_of(dtype, i);
    const int64_t count = std::min(kPart, n - i);
    to_wide(dtype, part, reinterpret_cast<std::byte*>(wide), count);
    scale(wide, count, factor);
    from_wide(dtype, reinterpret_cast<const std::byte*>(wide), part, count);
  }
}

}  // namespace

void CheckpointState::scale_gradients(int64_t numerator, int64_t denominator) {
  constexpr const char* doing = "scaling the gradients";
  require(numerator >= 0 && denominator > 0, ErrorCode::kInvalidArgument, doing,
          ": expected a numerator of 0 or more and a denominator of 1 or more, found ", numerator, " / ",
          denominator);
  const TurnLock::Turn turn = hold();
  require_gradients(doing);
  if (has_zero_gradients() || gradients_stale_) return;
  require(gradients_ready_, ErrorCode::kRuntimeException, doing,
          ": there are no gradients, because the last train step failed");
  const double factor = static_cast<double>(numerator) / static_cast<double>(denominator);
  for (const Parameter& parameter : parameters_) {
    if (!parameter.trainable) continue;
    const Tensor& gradient = parameter.gradient;
    const DType dtype = gradient.dtype();
    parallel_for(gradient.size(), 1, [&](int64_t begin, int64_t end) {
      const bool wide = visit_floating(dtype, [&](auto zero) {
        using T = decltype(zero);
        scale(reinterpret_cast<T*>(gradient.raw()) + begin, end - begin, factor);
      });
      if (!wide) scale_narrow(dtype, gradient.raw() + bytes_of(dtype, begin), end - begin, factor);
    });
  }
  wrote_gradients();
}

}  // namespace ortrain
