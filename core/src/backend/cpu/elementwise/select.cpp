#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise/select.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include "backend/cpu/elementwise/select.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {

void Select(const bool* which, const uint32_t* a, int64_t step_a, const uint32_t* b, int64_t step_b,
            uint32_t* y, int64_t n) {
  if (n == 0) return;
  const hn::ScalableTag<uint32_t> d;
  const hn::Rebind<uint8_t, decltype(d)> bytes;
  const auto one_a = hn::Set(d, *a), one_b = hn::Set(d, *b);
  const auto* truth = reinterpret_cast<const uint8_t*>(which);
  ForVectors<uint32_t>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto mask = hn::Ne(hn::PromoteTo(d, LoadUpTo(bytes, truth + i, count)), hn::Zero(d));
    const auto u = step_a ? LoadUpTo(d, a + i, count) : one_a;
    const auto v = step_b ? LoadUpTo(d, b + i, count) : one_b;
    StoreUpTo(hn::IfThenElse(mask, u, v), d, y + i, count);
  });
}

SelectWords FindSelect() { return Select; }

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace ortrain {

SelectWords select_words() { return ORTRAIN_DISPATCH(FindSelect)(); }

}  // namespace ortrain
#endif
