// Compiled once for each vector instruction set; the best one is chosen when the program runs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optimizer/optimizer_kernels.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "backend/cpu/optimizer/optimizer_kernels.h"
#include "backend/cpu/optimizer/pass-inl.h"
#include "runtime/threads.h"
#include "runtime/vector_targets.h"

HWY_BEFORE_NAMESPACE();
namespace ortrain::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, typename T = hn::TFromD<D>>
void lamb_at(D d, const T* w, const T* g, T* m, T* v, T* r, const AdamWFactors<T>& f, T decay, T scale) {
  const auto at = [](const T* from) HWY_ATTR { return Number<D>(hn::LoadU(D(), from)); };
  const Number<D> gradient = at(g) * scale;
  const Number<D> first = mix(at(m), gradient, f.alpha), second = mix_squares(at(v), gradient, f.beta);
  const Number<D> root = mul_add(sqrt(second), f.root_scale, f.epsilon);
  hn::StoreU(mul_add(decay, at(w), f.step_size * first / root).v, d, r);
  hn::StoreU(without_denormals(first).v, d, m);
  hn::StoreU(without_denormals(second).v, d, v);
}

template <typename T>
void lamb_part(const T* w, const T* g, T* m, T* v, T* r, int64_t n, const AdamWFactors<T>& f, T decay,
               T scale) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) lamb_at(d, w + i, g + i, m + i, v + i, r + i, f, decay, scale);
  for (; i < n; ++i) lamb_at(hn::CappedTag<T, 1>(), w + i, g + i, m + i, v + i, r + i, f, decay, scale);
}
void lamb_float(const float* w, const float* g, float* m, float* v, float* r, int64_t n,
                const AdamWFactors<float>& f, float decay, float scale) {
  lamb_part(w, g, m, v, r, n, f, decay, scale);
}
void lamb_double(const double* w, const double* g, double* m, double* v, double* r, int64_t n,
                 const AdamWFactors<double>& f, double decay, double scale) {
  lamb_part(w, g, m, v, r, n, f, decay, scale);
}

// The largest of the elements without their signs. Four maxima at a time hide the latency of each.
template <typename U>
U largest_part(const U* bits, int64_t n) {
  const hn::ScalableTag<U> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto unsigned_bits = hn::Set(d, static_cast<U>(std::numeric_limits<U>::max() >> 1));
  const auto at = [&](int64_t i) { return hn::And(hn::LoadU(d, bits + i), unsigned_bits); };
  auto a = hn::Zero(d), b = a, c = a, e = a;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Max(a, at(i));
    b = hn::Max(b, at(i + lanes));
    c = hn::Max(c, at(i + 2 * lanes));
    e = hn::Max(e, at(i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) a = hn::Max(a, at(i));
  U largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(a, b), hn::Max(c, e))));
  for (; i < n; ++i)
    largest = std::max(largest, static_cast<U>(bits[i] & (std::numeric_limits<U>::max() >> 1)));
  return largest;
}
uint16_t largest_16(const uint16_t* bits, int64_t n) { return largest_part(bits, n); }
uint32_t largest_32(const uint32_t* bits, int64_t n) { return largest_part(bits, n); }
uint64_t largest_64(const uint64_t* bits, int64_t n) { return largest_part(bits, n); }

}  // namespace ortrain::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <vector>

namespace ortrain {

void lamb_direction_update(const float* w, const float* g, float* m, float* v, float* r, int64_t n,
                           const AdamWFactors<float>& f, float decay, float scale) {
  parallel_for(n, 4, [&](int64_t a, int64_t b) {
    ORTRAIN_DISPATCH(lamb_float)(w + a, g + a, m + a, v + a, r + a, b - a, f, decay, scale);
  });
}
void lamb_direction_update(const double* w, const double* g, double* m, double* v, double* r, int64_t n,
                           const AdamWFactors<double>& f, double decay, double scale) {
  parallel_for(n, 4, [&](int64_t a, int64_t b) {
    ORTRAIN_DISPATCH(lamb_double)(w + a, g + a, m + a, v + a, r + a, b - a, f, decay, scale);
  });
}
namespace {

uint16_t largest(const uint16_t* bits, int64_t n) { return ORTRAIN_DISPATCH(largest_16)(bits, n); }
uint32_t largest(const uint32_t* bits, int64_t n) { return ORTRAIN_DISPATCH(largest_32)(bits, n); }
uint64_t largest(const uint64_t* bits, int64_t n) { return ORTRAIN_DISPATCH(largest_64)(bits, n); }

template <typename U>
U largest_of_parts(const U* bits, int64_t n) {
  if (n < kGrain) return largest(bits, n);
  std::atomic<U> most{0};
  parallel_for(n, 1, [&](int64_t a, int64_t b) {
    const U found = largest(bits + a, b - a);
    U before = most.load(std::memory_order_relaxed);
    while (before < found && !most.compare_exchange_weak(before, found, std::memory_order_relaxed)) {
    }
  });
  return most;
}

}  // namespace

uint16_t largest_magnitude(const uint16_t* bits, int64_t n) { return largest_of_parts(bits, n); }
uint32_t largest_magnitude(const uint32_t* bits, int64_t n) { return largest_of_parts(bits, n); }
uint64_t largest_magnitude(const uint64_t* bits, int64_t n) { return largest_of_parts(bits, n); }

namespace {

template <typename T>
double sum_of_squares_of(const T* g, int64_t n) {
  SumOfSquares<T> sum(g, n);
  sum.add(0, n);
  return sum.total();
}

}  // namespace

double sum_of_squares(const float* g, int64_t n) { return sum_of_squares_of(g, n); }
double sum_of_squares(const double* g, int64_t n) { return sum_of_squares_of(g, n); }

}  // namespace ortrain
#endif
