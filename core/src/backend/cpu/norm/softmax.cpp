// softmax(x)_i = e^(x_i - m) / s and log softmax(x)_i = x_i - m - ln s, with m = max x and s = sum_j e^(x_j -
// m).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/softmax.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"
#include "backend/cpu/tuning.h"
#include "runtime/dtype.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_SOFTMAX_FUNCTIONS
#define ORTRAIN_SOFTMAX_FUNCTIONS
namespace ortrain {
// Rows: n contiguous elements are one softmax. Columns: `columns` softmaxes side by side, their n elements
// `stride` apart.
struct SoftmaxFunctions {
  void (*row)(const void* x, void* y, int64_t n);
  void (*columns)(const void* x, void* y, int64_t n, int64_t stride, int64_t columns);
  void (*row_gradient)(const void* dy, const void* y, void* dx, int64_t n);
  void (*columns_gradient)(const void* dy, const void* y, void* dx, int64_t n, int64_t stride,
                           int64_t columns);
};
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

// Values are stored as V and computed as T. The exponentials are kept in Y until their sum is known if Y can
// hold them exactly; otherwise they are recomputed.
template <typename T, typename V>
constexpr bool kWaits = std::is_same_v<T, V>;

template <typename T, typename V, bool kLog>
void Row(const void* from, void* to, int64_t n) {
  const V* x = static_cast<const V*>(from);
  V* y = static_cast<V*>(to);
  const hn::ScalableTag<T> d;
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  auto largest = hn::Set(d, kLowest);
  ForVectors<T>(n, [&](int64_t i, int64_t count)
                       HWY_ATTR { largest = hn::Max(largest, LoadUpTo(d, x + i, count, kLowest)); });
  const auto m = hn::MaxOfLanes(d, largest);
  const double sum = SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto e = math::Exp(d, hn::Sub(LoadUpTo(d, x + i, count, kLowest), m));
    if constexpr (!kLog && kWaits<T, V>) StoreUpTo(e, d, y + i, count);
    return e;
  });
  if constexpr (kLog) {
    const auto log_sum = hn::Set(d, static_cast<T>(std::log(sum)));
    Map(x, y, n, [&](auto, auto v) HWY_ATTR { return hn::Sub(hn::Sub(v, m), log_sum); });
  } else {
    const auto scale = hn::Set(d, static_cast<T>(1 / sum));
    if constexpr (kWaits<T, V>)
      Map(y, y, n, [&](auto, auto v) HWY_ATTR { return hn::Mul(v, scale); });
    else
      Map(x, y, n, [&](auto, auto v) HWY_ATTR { return hn::Mul(math::Exp(d, hn::Sub(v, m)), scale); });
  }
}

template <typename T, typename V, bool kLog>
void Columns(const void* from, void* to, int64_t n, int64_t stride, int64_t columns) {
  const V* x = static_cast<const V*>(from);
  V* y = static_cast<V*>(to);
  const hn::ScalableTag<T> d;
  ForVectors<T>(columns, [&](int64_t j, int64_t count) HWY_ATTR {
    auto m = hn::Set(d, -std::numeric_limits<T>::infinity()), sum = hn::Zero(d);
    for (int64_t i = 0; i < n; ++i) m = hn::Max(m, LoadUpTo(d, x + i * stride + j, count));
    for (int64_t i = 0; i < n; ++i) {
      const auto e = math::Exp(d, hn::Sub(LoadUpTo(d, x + i * stride + j, count), m));
      sum = hn::Add(sum, e);
      if constexpr (!kLog && kWaits<T, V>) StoreUpTo(e, d, y + i * stride + j, count);
    }
    const auto last = kLog ? math::Log(d, sum) : hn::Div(C(d, 1), sum);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = i * stride + j;
      if constexpr (kLog)
        StoreUpTo(hn::Sub(hn::Sub(LoadUpTo(d, x + at, count), m), last), d, y + at, count);
      else if constexpr (kWaits<T, V>)
        StoreUpTo(hn::Mul(LoadUpTo(d, y + at, count), last), d, y + at, count);
      else
        StoreUpTo(hn::Mul(math::Exp(d, hn::Sub(LoadUpTo(d, x + at, count), m)), last), d, y + at, count);
    }
  });
}

// A term of the sum in the gradient, and the gradient from that sum.
template <bool kLog, class V>
HWY_INLINE V Term(V dy, V y) {
  if constexpr (kLog)
    return dy;
  else
    return hn::Mul(dy, y);
}
template <bool kLog, class D, class V>
HWY_INLINE V Derivative(D d, V dy, V y, V sum) {
  if constexpr (kLog)
    return hn::NegMulAdd(math::Exp(d, y), sum, dy);
  else
    return hn::Mul(y, hn::Sub(dy, sum));
}

template <typename T, typename V, bool kLog>
void RowGradient(const void* from_dy, const void* from_y, void* to, int64_t n) {
  const V *dy = static_cast<const V*>(from_dy), *y = static_cast<const V*>(from_y);
  const hn::ScalableTag<T> d;
  const double total = SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    return Term<kLog>(LoadUpTo(d, dy + i, count), LoadUpTo(d, y + i, count));
  });
  const auto sum = hn::Set(d, static_cast<T>(total));
  Map2<1, 1>(dy, y, static_cast<V*>(to), n,
             [&](auto, auto u, auto v) HWY_ATTR { return Derivative<kLog>(d, u, v, sum); });
}

template <typename T, typename V, bool kLog>
void ColumnsGradient(const void* from_dy, const void* from_y, void* to, int64_t n, int64_t stride,
                     int64_t columns) {
  const V *dy = static_cast<const V*>(from_dy), *y = static_cast<const V*>(from_y);
  V* dx = static_cast<V*>(to);
  const hn::ScalableTag<T> d;
  ForVectors<T>(columns, [&](int64_t j, int64_t count) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (int64_t i = 0, at = j; i < n; ++i, at += stride)
      sum = hn::Add(sum, Term<kLog>(LoadUpTo(d, dy + at, count), LoadUpTo(d, y + at, count)));
    for (int64_t i = 0, at = j; i < n; ++i, at += stride)
      StoreUpTo(Derivative<kLog>(d, LoadUpTo(d, dy + at, count), LoadUpTo(d, y + at, count), sum), d, dx + at,
                count);
  });
}

template <typename T, typename V, bool kLog>
constexpr SoftmaxFunctions kFunctions = {Row<T, V, kLog>, Columns<T, V, kLog>, RowGradient<T, V, kLog>,
                                         ColumnsGradient<T, V, kLog>};

SoftmaxFunctions FindSoftmax(bool log, DType dtype) {
  if (kHasKernels<double> && dtype == DType::kDouble)
    return log ? kFunctions<double, double, true> : kFunctions<double, double, false>;
  if (kHasKernels<BFloat16> && dtype == DType::kBFloat16)
    return log ? kFunctions<float, BFloat16, true> : kFunctions<float, BFloat16, false>;
  return log ? kFunctions<float, float, true> : kFunctions<float, float, false>;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "backend/cpu/norm/softmax.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

constexpr int64_t kCost = 12;  // of one element, in additions
constexpr int64_t kColumns = tuning::kSoftmaxColumns;

// Calls row(offset) for each softmax over contiguous elements, or columns(offset, count) for groups of
// softmaxes side by side.
template <class R, class C>
void each(const SoftmaxShape& s, const R& row, const C& columns) {
  if (s.inner == 1) {
    parallel_for(s.outer, s.length * kCost, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) row(i * s.length);
    });
    return;
  }
  const int64_t groups = (s.inner + kColumns - 1) / kColumns;
  parallel_for(s.outer * groups, s.length * std::min(kColumns, s.inner) * kCost,
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   const int64_t first = task % groups * kColumns;
                   columns(task / groups * s.length * s.inner + first, std::min(kColumns, s.inner - first));
                 }
               });
}

}  // namespace

void run_softmax(const SoftmaxShape& s, DType dtype, bool log, const void* x, void* y) {
  const SoftmaxFunctions functions = ORTRAIN_DISPATCH(FindSoftmax)(log, dtype);
  const int64_t width = static_cast<int64_t>(size_of(dtype));
  const std::byte* from = static_cast<const std::byte*>(x);
  std::byte* to = static_cast<std::byte*>(y);
  each(
      s, [&](int64_t at) { functions.row(from + at * width, to + at * width, s.length); },
      [&](int64_t at, int64_t count) {
        functions.columns(from + at * width, to + at * width, s.length, s.inner, count);
      });
}

void run_softmax_gradient(const SoftmaxShape& s, DType dtype, bool log, const void* dy, const void* y,
                          void* dx) {
  const SoftmaxFunctions functions = ORTRAIN_DISPATCH(FindSoftmax)(log, dtype);
  const int64_t width = static_cast<int64_t>(size_of(dtype));
  const std::byte *from_dy = static_cast<const std::byte*>(dy), *from_y = static_cast<const std::byte*>(y);
  std::byte* to = static_cast<std::byte*>(dx);
  each(
      s,
      [&](int64_t at) {
        functions.row_gradient(from_dy + at * width, from_y + at * width, to + at * width, s.length);
      },
      [&](int64_t at, int64_t count) {
        functions.columns_gradient(from_dy + at * width, from_y + at * width, to + at * width, s.length,
                                   s.inner, count);
      });
}

}  // namespace ortrain
#endif
