#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/bf16_conversion.cpp"
#include <hwy/foreach_target.h>

#include "backend/cpu/bf16_conversion.h"
#include "backend/cpu/simd/bf16_rounding-inl.h"
#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

template <typename From, typename To>
void Convert(const From* from, To* to, int64_t n) {
  const hn::ScalableTag<float> d;
  ForVectors<float>(n, [&](int64_t i, int64_t count)
                           HWY_ATTR { StoreUpTo(LoadUpTo(d, from + i, count), d, to + i, count); });
}

// Squares go through a buffer in the first-level cache.
template <typename From, typename To>
void ConvertTransposed(const From* from, int64_t from_row, int64_t rows, int64_t columns, To* to,
                       int64_t to_row) {
  constexpr int64_t kSide = 32, kPitch = kSide + 1;
  HWY_ALIGN float square[kSide * kPitch], line[kSide];
  for (int64_t r = 0; r < rows; r += kSide)
    for (int64_t c = 0; c < columns; c += kSide) {
      const int64_t height = HWY_MIN(kSide, rows - r), width = HWY_MIN(kSide, columns - c);
      for (int64_t i = 0; i < height; ++i) Convert(from + (r + i) * from_row + c, square + i * kPitch, width);
      for (int64_t j = 0; j < width; ++j) {
        for (int64_t i = 0; i < height; ++i) line[i] = square[i * kPitch + j];
        Convert(line, to + (c + j) * to_row + r, height);
      }
    }
}

void Widen(const BFloat16* from, float* to, int64_t n) { Convert(from, to, n); }
void Narrow(const float* from, BFloat16* to, int64_t n) { RoundAll(from, n, to); }
void WidenTransposed(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                     int64_t to_row) {
  ConvertTransposed(from, from_row, rows, columns, to, to_row);
}
void NarrowTransposed(const float* from, int64_t from_row, int64_t rows, int64_t columns, BFloat16* to,
                      int64_t to_row) {
  ConvertTransposed(from, from_row, rows, columns, to, to_row);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ortrain {

void widen_bf16(const BFloat16* from, float* to, int64_t n) { ORTRAIN_DISPATCH(Widen)(from, to, n); }

void narrow_bf16(const float* from, BFloat16* to, int64_t n) { ORTRAIN_DISPATCH(Narrow)(from, to, n); }

void widen_bf16_transposed(const BFloat16* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                           int64_t to_row) {
  ORTRAIN_DISPATCH(WidenTransposed)(from, from_row, rows, columns, to, to_row);
}

void narrow_bf16_transposed(const float* from, int64_t from_row, int64_t rows, int64_t columns, BFloat16* to,
                            int64_t to_row) {
  ORTRAIN_DISPATCH(NarrowTransposed)(from, from_row, rows, columns, to, to_row);
}

}  // namespace ortrain
#endif
