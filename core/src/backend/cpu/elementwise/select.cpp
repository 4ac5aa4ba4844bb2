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
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto mask = hn::Ne(hn::PromoteTo(d, hn::LoadU(bytes, truth + i)), hn::Zero(d));
    const auto u = step_a ? hn::LoadU(d, a + i) : one_a;
    const auto v = step_b ? hn::LoadU(d, b + i) : one_b;
    hn::StoreU(hn::IfThenElse(mask, u, v), d, y + i);
  }
  // Masked loads of bytes read whole vectors on some processors, beyond the end.
  for (; i < n; ++i) y[i] = which[i] ? a[i * step_a] : b[i * step_b];
}

SelectWords FindSelect() { return Select; }

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace ortrain {

SelectWords select_words() { return ORTRAIN_DISPATCH(FindSelect)(); }

}  // namespace ortrain
#endif
