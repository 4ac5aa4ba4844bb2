// Values of type float in memory: as floats, or in bfloat16.
#pragma once

#include <type_traits>

#include "op/kernel.h"
#include "runtime/dtype.h"

namespace ortrain {

// Whether values are stored in bfloat16. Never in a build without kernels for bfloat16: the compiler drops
// what only such values need.
class StoredInBf16 {
 public:
  constexpr StoredInBf16(bool is_bf16 = false) : is_bf16_(is_bf16) {}
  constexpr operator bool() const { return kHasKernels<BFloat16> && is_bf16_; }

 private:
  bool is_bf16_;
};

struct StoredInput {
  const void* data = nullptr;
  StoredInBf16 bf16 = false;

  StoredInput() = default;
  StoredInput(const float* floats) : data(floats) {}
  StoredInput(const BFloat16* halves) : data(halves), bf16(true) {}
  StoredInput(const void* values, bool halves) : data(values), bf16(halves) {}
  const float* floats() const { return static_cast<const float*>(data); }
  const BFloat16* halves() const { return static_cast<const BFloat16*>(data); }
  // The values from element i on.
  StoredInput from(int64_t i) const { return bf16 ? StoredInput(halves() + i) : StoredInput(floats() + i); }
};

struct StoredOutput {
  void* data = nullptr;
  StoredInBf16 bf16 = false;

  StoredOutput() = default;
  StoredOutput(float* floats) : data(floats) {}
  StoredOutput(BFloat16* halves) : data(halves), bf16(true) {}
  StoredOutput(void* values, bool halves) : data(values), bf16(halves) {}
  float* floats() const { return static_cast<float*>(data); }
  BFloat16* halves() const { return static_cast<BFloat16*>(data); }
  StoredOutput from(int64_t i) const {
    return bf16 ? StoredOutput(halves() + i) : StoredOutput(floats() + i);
  }
};

// Calls f(T{}) for the type in which the elements are stored.
template <typename F>
auto visit_stored(bool bf16, F&& f) {
  return kHasKernels<BFloat16> && bf16 ? f(BFloat16{}) : f(float{});
}
template <typename T>
inline constexpr bool kIsBf16 = std::is_same_v<T, BFloat16>;

// Where a kernel finds such values.
struct StoredSlot {
  Slot slot;
  StoredInBf16 bf16 = false;

  StoredInput in(const Frame& f) const { return {f.at_or_null<const void>(slot), bf16}; }
  StoredOutput out(const Frame& f) const { return {f.at_or_null<void>(slot), bf16}; }
};

}  // namespace ortrain
