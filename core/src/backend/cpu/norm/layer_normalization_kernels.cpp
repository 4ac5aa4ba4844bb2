// Over everything from `axis` on: h = (x - mean) s with s = 1 / sqrt(var + epsilon), y = scale h + bias.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/norm/layer_normalization_kernels.cpp"
// Compiles this file for all other instruction sets first.
#include <hwy/foreach_target.h>

#include "backend/cpu/simd/simd_math-inl.h"
#include "runtime/vector_targets.h"

#ifndef ORTRAIN_LAYER_NORMALIZATION_FUNCTIONS
#define ORTRAIN_LAYER_NORMALIZATION_FUNCTIONS
namespace ortrain {
template <typename T>
struct LayerNormalizationFunctions {
  // One row of n elements. `bias` may be null; mean and s are returned. Y may be X.
  void (*forward)(const T* x, const T* scale, const T* bias, T* y, int64_t n, double epsilon, T* mean, T* s);
  // One row; dx and each of the sums for scale and bias may be null. The sums are accumulated. dx may be dy.
  void (*backward)(const T* dy, const T* x, const T* scale, T mean, T s, T* dx, T* scale_sum, T* bias_sum,
                   int64_t n);
};
}  // namespace ortrain
#endif

HWY_BEFORE_NAMESPACE();
namespace ortrain {
namespace HWY_NAMESPACE {
namespace {

template <typename T, bool kCentered>
void Forward(const T* x, const T* scale, const T* bias, T* y, int64_t n, double epsilon, T* mean, T* s) {
  const hn::ScalableTag<T> d;
  T average = 0;
  if constexpr (kCentered)
    average = static_cast<T>(
        SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR { return LoadUpTo(d, x + i, count); }) /
        static_cast<double>(n));
  const auto m = hn::Set(d, average);
  const double squares = SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    // Lanes beyond the row contain zeros, which must not count as terms.
    const auto v = hn::Sub(LoadUpTo(d, x + i, count), m);
    return hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)), hn::Mul(v, v));
  });
  const T inverse = static_cast<T>(1 / std::sqrt(squares / static_cast<double>(n) + epsilon));
  *mean = average;
  *s = inverse;
  const auto factor = hn::Set(d, inverse);
  ForVectors<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto h = hn::Mul(hn::Sub(LoadUpTo(d, x + i, count), m), factor);
    const auto scaled = hn::Mul(h, LoadUpTo(d, scale + i, count));
    StoreUpTo(bias ? hn::Add(scaled, LoadUpTo(d, bias + i, count)) : scaled, d, y + i, count);
  });
}

// dx = s (g - mean(g) - h mean(g h)) with g = dy scale; without the mean of x there is no mean(g).
template <typename T, bool kCentered>
void Backward(const T* dy, const T* x, const T* scale, T mean, T s, T* dx, T* scale_sum, T* bias_sum,
              int64_t n) {
  const hn::ScalableTag<T> d;
  const auto m = hn::Set(d, mean), factor = hn::Set(d, s);
  const auto normalized = [&](int64_t i, int64_t count)
                              HWY_ATTR { return hn::Mul(hn::Sub(LoadUpTo(d, x + i, count), m), factor); };
  const auto scaled = [&](int64_t i, int64_t count) HWY_ATTR {
    return hn::Mul(LoadUpTo(d, dy + i, count), LoadUpTo(d, scale + i, count));
  };
  auto mean_g = hn::Zero(d), mean_gh = mean_g;
  if (dx) {
    const double share = 1 / static_cast<double>(n);
    if constexpr (kCentered) mean_g = C(d, share * SumOver<T>(n, scaled));
    mean_gh = C(d, share * SumOver<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
                     return hn::Mul(scaled(i, count), normalized(i, count));
                   }));
  }
  ForVectors<T>(n, [&](int64_t i, int64_t count) HWY_ATTR {
    const auto h = normalized(i, count);
    // dx may share memory with dy: elements of dy are read before they are overwritten.
    const auto incoming = LoadUpTo(d, dy + i, count), g = scaled(i, count);
    if (scale_sum) {
      StoreUpTo(hn::MulAdd(incoming, h, LoadUpTo(d, scale_sum + i, count)), d, scale_sum + i, count);
      StoreUpTo(hn::Add(incoming, LoadUpTo(d, bias_sum + i, count)), d, bias_sum + i, count);
    }
    if (dx) StoreUpTo(hn::Mul(factor, hn::NegMulAdd(h, mean_gh, hn::Sub(g, mean_g))), d, dx + i, count);
  });
}

template <typename T>
LayerNormalizationFunctions<T> Find(bool centered) {
  return centered ? LayerNormalizationFunctions<T>{Forward<T, true>, Backward<T, true>}
                  : LayerNormalizationFunctions<T>{Forward<T, false>, Backward<T, false>};
}

LayerNormalizationFunctions<float> FindFloat(bool centered) { return Find<float>(centered); }
LayerNormalizationFunctions<double> FindDouble(bool centered) { return Find<double>(centered); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace ortrain
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <type_traits>

#include "backend/cpu/bf16_conversion.h"
#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/norm/layer_normalization_kernels.h"
#include "op/floating_kernel.h"
#include "runtime/memory.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

template <typename T>
LayerNormalizationFunctions<T> find(bool centered) {
  if constexpr (std::is_same_v<T, float>)
    return ORTRAIN_DISPATCH(FindFloat)(centered);
  else
    return ORTRAIN_DISPATCH(FindDouble)(centered);
}

// Row r of X, Y or a gradient of theirs, which are stored as V. Rows in bfloat16 are computed as floats, in
// row `place` of `room`.
template <typename T, typename V>
const T* load_row(const V* values, int64_t r, int64_t n, [[maybe_unused]] T* room,
                  [[maybe_unused]] int64_t place = 0) {
  if constexpr (std::is_same_v<T, V>) {
    return values + r * n;
  } else {
    widen_bf16(values + r * n, room + place * n, n);
    return room + place * n;
  }
}
template <typename T, typename V>
T* row_to_store(V* values, int64_t r, int64_t n, [[maybe_unused]] T* room) {
  if constexpr (std::is_same_v<T, V>)
    return values + r * n;
  else
    return room;
}
template <typename T, typename V>
void store_row([[maybe_unused]] V* values, [[maybe_unused]] int64_t r, [[maybe_unused]] int64_t n,
               [[maybe_unused]] const T* room) {
  if constexpr (!std::is_same_v<T, V>) narrow_bf16(room, values + r * n, n);
}
// Memory of a thread for two such rows.
template <typename T, typename V>
T* room_for_rows(int64_t n) {
  if constexpr (std::is_same_v<T, V>) return nullptr;
  return static_cast<T*>(regions::memory(static_cast<size_t>(2 * n) * sizeof(T)));
}

constexpr int64_t kCost = 6;       // per element, in additions
constexpr int64_t kRowBlock = 32;  // rows that are summed in their own type before the sum is added in double

// The layout of values of that shape that are stored as V.
template <typename V>
LayoutPtr row_major(const Shape& shape) {
  return std::is_same_v<V, BFloat16> ? bf16_row_major(shape) : nullptr;
}

template <typename T, typename V>
Kernel forward(KernelContext& c, bool simplified) {
  const auto functions = find<T>(!simplified);
  const LayoutPtr layout = row_major<V>(c.shape(0));
  const Slot x = c.in(0, layout), scale = c.in(1), bias = c.has_input(2) ? c.in(2) : Slot{};
  const Slot y = c.out_inplace(0, {0}, layout);
  const Slot mean = simplified || !c.has_output(1) ? Slot{} : c.out(1);
  const size_t s_index = simplified ? 1 : 2;
  const Slot s = c.has_output(s_index) ? c.out(s_index) : Slot{};
  const size_t axis = normalized_axis(c, 0);
  const int64_t rows = element_count(c.shape(0), 0, axis);
  const int64_t n = element_count(c.shape(0), axis, c.shape(0).size());
  const double epsilon = c.node().float_or("epsilon", 1e-5f);
  return [=](const Frame& f) {
    parallel_for(rows, n * kCost, [&](int64_t begin, int64_t end) {
      T* room = room_for_rows<T, V>(n);
      for (int64_t r = begin; r < end; ++r) {
        T row_mean, row_s;
        T* to = row_to_store(f.at<V>(y), r, n, room);
        functions.forward(load_row(f.at<V>(x), r, n, room), f.at<T>(scale), f.at_or_null<T>(bias), to, n,
                          epsilon, &row_mean, &row_s);
        store_row(f.at<V>(y), r, n, to);
        if (mean.defined()) f.at<T>(mean)[r] = row_mean;
        if (s.defined()) f.at<T>(s)[r] = row_s;
      }
    });
  };
}

template <typename T, typename V>
Kernel backward(KernelContext& c, bool simplified) {
  const auto functions = find<T>(!simplified);
  const LayoutPtr layout = row_major<V>(c.shape(1));
  const Slot dy = c.in(0, layout), x = c.in(1, layout), scale = c.in(2);
  const Slot mean = simplified ? Slot{} : c.in(3), s = c.in(simplified ? 3 : 4);
  const Slot dx = c.has_output(0) ? c.out_inplace(0, {0}, layout) : Slot{};
  const Slot dscale = c.has_output(1) ? c.out(1) : Slot{}, dbias = c.has_output(2) ? c.out(2) : Slot{};
  const size_t axis = normalized_axis(c, 1);
  const int64_t rows = element_count(c.shape(1), 0, axis);
  const int64_t n = element_count(c.shape(1), axis, c.shape(1).size());
  const bool sums = dscale.defined() || dbias.defined();
  // Each part of the rows has its own sums: of a block of rows, and, in double, of all blocks.
  const int64_t parts = std::clamp<int64_t>(rows * n * kCost / kGrain, 1, max_threads());
  const int64_t block_bytes = static_cast<int64_t>(align_up(static_cast<size_t>(2 * n) * sizeof(T)));
  const int64_t part_bytes =
      block_bytes + static_cast<int64_t>(align_up(static_cast<size_t>(2 * n) * sizeof(double)));
  const Slot scratch = c.scratch(sums ? static_cast<size_t>(parts * part_bytes) : 0);
  return [=](const Frame& f) {
    V* out = f.at_or_null<V>(dx);
    std::byte* memory = sums ? f.at<std::byte>(scratch) : nullptr;
    parallel_for(parts, kGrain, [&](int64_t first_part, int64_t last_part) {
      T* room = room_for_rows<T, V>(n);
      for (int64_t part = first_part; part < last_part; ++part) {
        T* block = sums ? reinterpret_cast<T*>(memory + part * part_bytes) : nullptr;
        double* totals = sums ? reinterpret_cast<double*>(memory + part * part_bytes + block_bytes) : nullptr;
        if (sums) std::fill(totals, totals + 2 * n, 0.0);
        const int64_t end = rows * (part + 1) / parts;
        for (int64_t r = rows * part / parts; r < end;) {
          const int64_t stop = std::min(end, r + kRowBlock);
          if (sums) std::fill(block, block + 2 * n, T{0});
          for (; r < stop; ++r) {
            T* to = out ? row_to_store(out, r, n, room) : nullptr;
            functions.backward(load_row(f.at<V>(dy), r, n, room), load_row(f.at<V>(x), r, n, room, 1),
                               f.at<T>(scale), mean.defined() ? f.at<T>(mean)[r] : T{0}, f.at<T>(s)[r], to,
                               block, sums ? block + n : nullptr, n);
            if (out) store_row(out, r, n, to);
          }
          if (sums)
            for (int64_t i = 0; i < 2 * n; ++i) totals[i] += static_cast<double>(block[i]);
        }
      }
    });
    for (const auto& [slot, offset] : {std::pair(dscale, int64_t{0}), std::pair(dbias, n)}) {
      if (!slot.defined()) continue;
      T* to = f.at<T>(slot);
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t part = 0; part < parts; ++part)
          sum += reinterpret_cast<const double*>(memory + part * part_bytes + block_bytes)[offset + i];
        to[i] = static_cast<T>(sum);
      }
    }
  };
}

}  // namespace

size_t normalized_axis(const NodeContext& c, size_t x) {
  return static_cast<size_t>(normalize_axis(c.node().int_or("axis", -1), c.rank(x), c.node().label()));
}

template <bool Simplified>
Kernel layer_normalization(KernelContext& c) {
  if (follows_bf16(c, {0})) return forward<float, BFloat16>(c, Simplified);
  return floating_kernel(c, 0,
                         [&](auto zero) { return forward<decltype(zero), decltype(zero)>(c, Simplified); });
}

template <bool Simplified>
Kernel layer_normalization_grad(KernelContext& c) {
  if (follows_bf16(c, {0, 1})) return backward<float, BFloat16>(c, Simplified);
  return floating_kernel(c, 0,
                         [&](auto zero) { return backward<decltype(zero), decltype(zero)>(c, Simplified); });
}

template Kernel layer_normalization<false>(KernelContext& c);
template Kernel layer_normalization<true>(KernelContext& c);
template Kernel layer_normalization_grad<false>(KernelContext& c);
template Kernel layer_normalization_grad<true>(KernelContext& c);

}  // namespace ortrain
#endif
