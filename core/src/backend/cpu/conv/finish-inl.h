// What follows the sums of a convolution: bias, addend and activation.

#if defined(ORTRAIN_FINISH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ORTRAIN_FINISH_INL_H_
#undef ORTRAIN_FINISH_INL_H_
#else
#define ORTRAIN_FINISH_INL_H_
#endif

#include <cstdint>

#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/stored_values.h"
#include "geometry/convolution.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {

// y = activate(sums + bias + addend) on rows of n values. Rows of y and of the addend are `pitch` values
// apart, those of the sums `sums_pitch` floats.
template <typename T, class F>
HWY_INLINE void FinishRows(int64_t rows, int64_t n, const float* sums, int64_t sums_pitch, const float* bias,
                           const T* addend, int64_t pitch, T* y, const F& activate) {
  const hn::ScalableTag<float> d;
  for (int64_t row = 0; row < rows; ++row, sums += sums_pitch, y += pitch, addend += addend ? pitch : 0)
    ForVectors<float>(n, [&](int64_t i, int64_t count) HWY_ATTR {
      auto v = LoadUpTo(d, sums + i, count);
      if (bias) v = hn::Add(v, LoadUpTo(d, bias + i, count));
      if (addend) v = hn::Add(v, LoadUpTo(d, addend + i, count));
      StoreUpTo(activate(v), d, y + i, count);
    });
}

// The same with an activation; the bias has n values. Bias and addend may be null. Y may be the sums if it is
// float; otherwise the sums are overwritten.
template <typename T>
void FinishSums(int64_t rows, int64_t n, float* sums, int64_t sums_pitch, const float* bias, const T* addend,
                const Activation& activation, int64_t pitch, T* y) {
  using Kind = Activation::Kind;
  const hn::ScalableTag<float> d;
  const auto as_it_is = [](auto v) HWY_ATTR { return v; };
  // NaN stays in both.
  if (activation.kind == Kind::kRelu) {
    FinishRows(rows, n, sums, sums_pitch, bias, addend, pitch, y,
               [d](auto v) HWY_ATTR { return hn::IfThenElse(hn::Lt(v, hn::Zero(d)), hn::Zero(d), v); });
  } else if (activation.kind == Kind::kClip) {
    const auto low = hn::Set(d, activation.a), high = hn::Set(d, activation.b);
    FinishRows(rows, n, sums, sums_pitch, bias, addend, pitch, y, [&](auto v) HWY_ATTR {
      return hn::IfThenElse(hn::Lt(v, low), low, hn::IfThenElse(hn::Gt(v, high), high, v));
    });
  } else if (activation.kind == Kind::kNone) {
    FinishRows(rows, n, sums, sums_pitch, bias, addend, pitch, y, as_it_is);
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      float* line = sums + row * sums_pitch;
      if (bias) FinishRows<float>(1, n, line, 0, bias, nullptr, 0, line, as_it_is);
      if (addend)
        ForVectors<float>(n, [&](int64_t i, int64_t count) HWY_ATTR {
          const auto sum =
              hn::Add(LoadUpTo(d, line + i, count), LoadUpTo(d, addend + row * pitch + i, count));
          StoreUpTo(sum, d, line + i, count);
        });
      activation.apply(n, line);
      if constexpr (kIsBf16<T>) FinishRows<T>(1, n, line, 0, nullptr, nullptr, 0, y + row * pitch, as_it_is);
    }
  }
}

// Y is the sums.
inline void Finish(int64_t rows, int64_t n, int64_t pitch, const float* bias, const float* addend,
                   const Activation& activation, float* y) {
  FinishSums(rows, n, y, pitch, bias, addend, activation, pitch, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#endif  // ORTRAIN_FINISH_INL_H_
