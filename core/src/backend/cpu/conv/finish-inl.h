// What follows the sums of a convolution: bias, addend and activation.

#if defined(ORTRAIN_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_FINISH_INL_H_
#undef ORTRAIN_FINISH_INL_H_
#else
#define ORTRAIN_FINISH_INL_H_
#endif

#include <cstdint>

#include "backend/cpu/simd/simd_math-inl.h"
#include "geometry/convolution.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

// y = activate(y + bias + addend) on rows of n floats.
template <class F>
HWY_INLINE void FinishRows(int64_t rows, int64_t n, int64_t pitch, const float* bias, const float* addend,
                           float* y, const F& activate) {
  const hn::ScalableTag<float> d;
  for (int64_t row = 0; row < rows; ++row, y += pitch, addend += addend ? pitch : 0)
    ForVectors<float>(n, [&](int64_t i, int64_t count) HWY_ATTR {
      auto v = LoadUpTo(d, y + i, count);
      if (bias) v = hn::Add(v, LoadUpTo(d, bias + i, count));
      if (addend) v = hn::Add(v, LoadUpTo(d, addend + i, count));
      StoreUpTo(activate(v), d, y + i, count);
    });
}

// Rows of y and of the addend are `pitch` floats apart; the bias has n. Both may be null.
inline void Finish(int64_t rows, int64_t n, int64_t pitch, const float* bias, const float* addend,
                   const Activation& activation, float* y) {
  using Kind = Activation::Kind;
  const hn::ScalableTag<float> d;
  // NaN stays in both.
  if (activation.kind == Kind::kRelu) {
    FinishRows(rows, n, pitch, bias, addend, y,
               [d](auto v) HWY_ATTR { return hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v); });
  } else if (activation.kind == Kind::kClip) {
    const auto low = hn::Set(d, activation.a), high = hn::Set(d, activation.b);
    FinishRows(rows, n, pitch, bias, addend, y, [&](auto v) HWY_ATTR {
      return hn::IfThenElse(hn::Lt(v, low), low, hn::IfThenElse(hn::Gt(v, high), high, v));
    });
  } else {
    if (bias || addend) FinishRows(rows, n, pitch, bias, addend, y, [](auto v) HWY_ATTR { return v; });
    if (activation.kind == Kind::kNone) return;
    for (int64_t row = 0; row < rows; ++row) activation.apply(n, y + row * pitch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#endif  // ORTRAIN_FINISH_INL_H_
