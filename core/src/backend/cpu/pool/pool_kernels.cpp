// Kernels of pooling on portable_pool.h.
#include "backend/cpu/pool/pool_kernels.h"

#include "backend/cpu/pool/portable_pool.h"
#include "geometry/pooling.h"
#include "op/floating_kernel.h"

namespace ortrain {
namespace {

PoolSizes sizes_of(const NodeContext& c, const Shape& x, const Window& window) {
  return {x[0] * x[1], three_axes(window), c.node().int_or("count_include_pad", 0) != 0,
          c.node().int_or("storage_order", 0) != 0};
}

template <typename T>
Kernel typed_max_pool(KernelContext& c, const PoolSizes& s, bool indices) {
  const Slot x = c.in(0), y = c.out(0), at = indices ? c.out(1) : Slot{};
  return [=](const Frame& f) { max_pool<T>(s, f.at<const T>(x), f.at<T>(y), f.at_or_null<int64_t>(at)); };
}

template <typename T>
using GlobalPool = void (*)(int64_t planes, int64_t points, const T* x, T* y);

template <typename T>
Kernel global_kernel(KernelContext& c, GlobalPool<T> pool) {
  const Slot x = c.in(0), y = c.out(0);
  const int64_t planes = c.shape(0)[0] * c.shape(0)[1],
                points = element_count(c.shape(0), 2, c.shape(0).size());
  return [=](const Frame& f) { pool(planes, points, f.at<const T>(x), f.at<T>(y)); };
}

}  // namespace

std::optional<Kernel> portable_max_pool(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const PoolSizes s = sizes_of(c, c.shape(0), window);
  const bool indices = c.has_output(1) && !c.used_only_by(1, "");
  switch (c.dtype(0)) {
    case DType::kFloat:
      return typed_max_pool<float>(c, s, indices);
    case DType::kDouble:
      return typed_max_pool<double>(c, s, indices);
    case DType::kInt8:
      return typed_max_pool<int8_t>(c, s, indices);
    case DType::kUInt8:
      return typed_max_pool<uint8_t>(c, s, indices);
    default:
      c.reject_dtype(0);
  }
}

std::optional<Kernel> portable_max_pool_grad(KernelContext& c) {
  const PoolSizes s = sizes_of(c, c.out_shape(0), read_pool(c, c.out_shape(0)));
  c.expect(!s.column_major, "the gradient for indices in storage_order 1 is not supported");
  return floating_kernel(c, 0, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot dy = c.in(0), indices = c.in(1), dx = c.out(0);
    return [=](const Frame& f) {
      max_pool_backward<T>(s, f.at<const T>(dy), f.at<const int64_t>(indices), f.at<T>(dx));
    };
  });
}

std::optional<Kernel> portable_average_pool(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const PoolSizes s = sizes_of(c, c.shape(0), window);
  return floating_kernel(c, 0, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out(0);
    return [=](const Frame& f) { average_pool<T>(s, f.at<const T>(x), f.at<T>(y)); };
  });
}

std::optional<Kernel> portable_average_pool_grad(KernelContext& c) {
  const Shape& x = c.out_shape(0);
  const Window window = read_pool(c, x);
  const PoolSizes s = sizes_of(c, x, window);
  return floating_kernel(c, 0, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot dy = c.in(0), dx = c.out(0);
    return [=](const Frame& f) { average_pool_backward<T>(s, f.at<const T>(dy), f.at<T>(dx)); };
  });
}

std::optional<Kernel> portable_global_average_pool(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return global_kernel<decltype(zero)>(c, global_average); });
}

std::optional<Kernel> portable_global_max_pool(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return global_kernel<decltype(zero)>(c, global_max); });
}

}  // namespace ortrain
