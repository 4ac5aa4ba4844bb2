// Softmax and LogSoftmax and their gradient operators.
//
// softmax(x)_i = e^(x_i - m) / s and log softmax(x)_i = x_i - m - ln s, with m = max x and s = sum_j e^(x_j -
// m).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/softmax.cpp"
// The per-target passes over this file come first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/dtype.h"

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
HWY_INLINE V Slope(D d, V dy, V y, V sum) {
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
             [&](auto, auto u, auto v) HWY_ATTR { return Slope<kLog>(d, u, v, sum); });
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
      StoreUpTo(Slope<kLog>(d, LoadUpTo(d, dy + at, count), LoadUpTo(d, y + at, count), sum), d, dx + at,
                count);
  });
}

template <typename T, typename V, bool kLog>
constexpr SoftmaxFunctions kFunctions = {Row<T, V, kLog>, Columns<T, V, kLog>, RowGradient<T, V, kLog>,
                                         ColumnsGradient<T, V, kLog>};

SoftmaxFunctions FindSoftmax(bool log, DType dtype) {
  switch (dtype) {
    case DType::kDouble:
      return log ? kFunctions<double, double, true> : kFunctions<double, double, false>;
    case DType::kBFloat16:
      return log ? kFunctions<float, BFloat16, true> : kFunctions<float, BFloat16, false>;
    default:
      return log ? kFunctions<float, float, true> : kFunctions<float, float, false>;
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "backend/cpu/bf16_storage.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/opset.h"
#include "ops/common/elementwise.h"
#include "ops/nn/softmax.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

HWY_EXPORT(FindSoftmax);

constexpr int64_t kCost = 12;     // of one element, in additions
constexpr int64_t kColumns = 64;  // softmaxes side by side in one task

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

// Before version 13 everything from the axis on is one softmax (flat); since then only the axis is.
SoftmaxShape shape_of(const NodeContext& c, bool flat) {
  const Shape& shape = c.shape(0);
  if (shape.empty()) return {};
  const size_t axis = static_cast<size_t>(
      normalize_axis(c.node().int_or("axis", flat ? 1 : -1), c.rank(0), c.node().label()));
  SoftmaxShape out;
  out.outer = element_count(shape, 0, axis);
  out.length = flat ? element_count(shape, axis, shape.size()) : shape[axis];
  out.inner = flat ? 1 : element_count(shape, axis + 1, shape.size());
  return out;
}

// What differs between Softmax and LogSoftmax and between their gradients, whose names say whether they are
// flat.
enum class Function { kSoftmax, kLog };
constexpr const char* gradient_type(Function f, bool flat) {
  return f == Function::kLog ? (flat ? "LogSoftmaxGrad" : "LogSoftmaxGrad_13")
                             : (flat ? "SoftmaxGrad" : "SoftmaxGrad_13");
}
bool is_flat(int64_t opset) { return opset < since::kOneSoftmaxAxis; }

void expect_floating(const NodeContext& c) {
  if (c.dtype(0) != DType::kFloat && c.dtype(0) != DType::kDouble) c.reject_dtype(0);
}

void shape(ShapeContext& c) {
  shape_of(c, is_flat(c.opset()));
  shape_like_first(c);
}

template <Function F>
Kernel kernel(KernelContext& c) {
  expect_floating(c);
  const bool narrow = follows_bf16(c, {0});
  const LayoutPtr layout = narrow ? bf16_row_major(c.shape(0)) : nullptr;
  const Slot x = c.in(0, layout), y = c.out_inplace(0, {0}, layout);
  const SoftmaxShape s = shape_of(c, is_flat(c.opset()));
  const DType dtype = narrow ? DType::kBFloat16 : c.dtype(0);
  return [=](const Frame& f) {
    run_softmax(s, dtype, F == Function::kLog, f.at<std::byte>(x), f.at<std::byte>(y));
  };
}

template <Function F>
void gradient(GradientContext& g) {
  const bool flat = is_flat(g.opset());
  g.set(0, g(gradient_type(F, flat), {g.dy(0), g.y(0)}, {{"axis", g.node().int_or("axis", flat ? 1 : -1)}},
             kMicrosoft));
}

// u is the gradient of dX. Softmax, dX = Y (dY - sum(dY Y)): the gradient of dY is the same with u for dY,
// that of Y is u (dY - sum(dY Y)) - dY sum(u Y). LogSoftmax, dX = dY - exp(Y) sum(dY): u - sum(u exp(Y)) and
// -u exp(Y) sum(dY).
template <Function F, bool Flat>
void grad_gradient(GradientContext& g) {
  const auto rank = g.rank(g.x(1));
  if (!rank) g.reject("the rank of its input is not known; run ONNX shape inference on the model first");
  std::vector<int64_t> axes;
  if (*rank > 0) axes = {normalize_axis(g.node().int_or("axis", Flat ? 1 : -1), *rank, g.node().label())};
  while (Flat && !axes.empty() && axes.back() + 1 < *rank) axes.push_back(axes.back() + 1);
  const auto sum = [&](const Expression& v) {
    return Expression(g, axes.empty() ? v.name() : g.reduce_sum(v, axes, true));
  };
  const Expression u(g, g.dy(0)), dy(g, g.x(0)), y(g, g.x(1));
  if (F == Function::kLog) {
    const Expression p = y.call("Exp");
    if (g.needs(0)) g.set(0, u - sum(u * p));
    if (g.needs(1)) g.set(1, -(u * p * sum(dy)));
  } else {
    if (g.needs(0)) g.set(0, u.call(gradient_type(F, Flat), y, g.node().attributes, kMicrosoft));
    if (g.needs(1)) g.set(1, u * (dy - sum(dy * y)) - dy * sum(u * y));
  }
}

template <bool Flat>
void gradient_shape(ShapeContext& c) {
  expect_same(c, 0, 1);
  shape_of(c, Flat);
  shape_like_first(c);
}

template <Function F, bool Flat>
Kernel gradient_kernel(KernelContext& c) {
  expect_floating(c);
  const bool narrow = follows_bf16(c, {0, 1});
  const LayoutPtr layout = narrow ? bf16_row_major(c.shape(0)) : nullptr;
  const Slot dy = c.in(0, layout), y = c.in(1, layout), dx = c.out_inplace(0, {0, 1}, layout);
  const SoftmaxShape s = shape_of(c, Flat);
  const DType dtype = narrow ? DType::kBFloat16 : c.dtype(0);
  return [=](const Frame& f) {
    run_softmax_gradient(s, dtype, F == Function::kLog, f.at<std::byte>(dy), f.at<std::byte>(y),
                         f.at<std::byte>(dx));
  };
}

std::optional<InputPositions> softmax_positions(const PositionQuery& q) {
  return row_positions(q, is_flat(q.opset) ? 1 : -1);
}

// A softmax between products stays in bfloat16; its logarithm is part of a loss, and stays in float.
template <Function F>
constexpr Operator forward_operator(const char* type) {
  return {.type = type,
          .rules = {.shape = shape, .gradient = gradient<F>},
          .traits = {.takes_bf16 = F == Function::kSoftmax, .positions = softmax_positions},
          .kernels = {.cpu = kernel<F>}};
}
template <Function F, bool Flat>
constexpr Operator gradient_operator() {
  return {.domain = kMicrosoft,
          .type = gradient_type(F, Flat),
          .rules = {.shape = gradient_shape<Flat>, .gradient = grad_gradient<F, Flat>},
          .traits = {.takes_bf16 = F == Function::kSoftmax},
          .kernels = {.cpu = gradient_kernel<F, Flat>}};
}
ORTRAIN_OPERATOR({forward_operator<Function::kSoftmax>("Softmax")});
ORTRAIN_OPERATOR({forward_operator<Function::kLog>("LogSoftmax")});
ORTRAIN_OPERATOR({gradient_operator<Function::kSoftmax, true>()});
ORTRAIN_OPERATOR({gradient_operator<Function::kSoftmax, false>()});
ORTRAIN_OPERATOR({gradient_operator<Function::kLog, true>()});
ORTRAIN_OPERATOR({gradient_operator<Function::kLog, false>()});

}  // namespace

void run_softmax(const SoftmaxShape& s, DType dtype, bool log, const void* x, void* y) {
  const SoftmaxFunctions functions = HWY_DYNAMIC_DISPATCH(FindSoftmax)(log, dtype);
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
  const SoftmaxFunctions functions = HWY_DYNAMIC_DISPATCH(FindSoftmax)(log, dtype);
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
