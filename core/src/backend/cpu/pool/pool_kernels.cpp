// Kernels of pooling on row_major_pool.h.
#include "backend/cpu/pool/pool_kernels.h"

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/channels_last.h"
#include "backend/cpu/pool/channels_last_pool.h"
#include "backend/cpu/pool/row_major_pool.h"
#include "backend/cpu/reduce/reduction.h"
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

ChannelsLastPool channels_last_pool(const NodeContext& c, const Shape& x) {
  ChannelsLastPool p{sizes_of(c, x, read_pool(c, x)), x[1]};
  p.sizes.planes = x[0];
  return p;
}

ChannelsLastPool channels_last_global(const Shape& x) {
  Window window(x.size() - 2);
  for (size_t i = 0; i < window.size(); ++i) window[i].input = x[2 + i];
  return {{x[0], three_axes(window)}, x[1]};
}

// MaxPool saves this for MaxPoolGrad instead of indices: the number of the largest element of each window.
class PoolTaps : public Layout {
 public:
  static constexpr char kKind = 0;

  PoolTaps(ChannelsLastPool pool, Shape x, const Shape& y)
      : pool_(std::move(pool)),
        x_(std::move(x)),
        bytes_(static_cast<size_t>(element_count(y)) * sizeof(float)) {}
  size_t bytes() const override { return bytes_; }
  const void* kind() const override { return &kKind; }
  bool equals(const Layout& other) const override { return this == &other; }
  bool dense() const override { return false; }
  Kernel to_plain(Slot, Slot) const override { reject(); }
  Kernel from_plain(Slot, Slot) const override { reject(); }
  const ChannelsLastPool& pool() const { return pool_; }
  const Shape& x() const { return x_; }

 private:
  [[noreturn]] static void reject() {
    fail(ErrorCode::kFail, "only MaxPoolGrad can read the positions that MaxPool saved for its gradient");
  }
  ChannelsLastPool pool_;
  Shape x_;
  size_t bytes_;
};

}  // namespace

std::optional<Kernel> channels_last_max_pool(KernelContext& c) {
  if (!stored_channels_last(c, 0) || !suits_channels_last(c)) return std::nullopt;
  const bool indices = c.has_output(1) && !c.used_only_by(1, "");
  if (indices && !c.used_only_by(1, "MaxPoolGrad")) return std::nullopt;
  const ChannelsLastPool pool = channels_last_pool(c, c.shape(0));
  if (!pool.suits()) return std::nullopt;
  return visit_stored(lies_in_bf16(c, 0), [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot x = in_channels_last(c, 0).slot, y = out_channels_last(c, 0, kIsBf16<T>).slot;
    const Slot taps =
        indices ? c.out(1, std::make_shared<PoolTaps>(pool, c.shape(0), c.out_shape(0))) : Slot{};
    return [=](const Frame& f) {
      channels_last_max_pool(pool, f.at<const T>(x), f.at<T>(y), f.at_or_null<float>(taps));
    };
  });
}

// After a MaxPool that saved where the largest elements are.
std::optional<Kernel> channels_last_max_pool_grad(KernelContext& c) {
  const LayoutPtr kept = c.in_layout(1);
  const auto* saved = layout_as<PoolTaps>(kept.get());
  if (!saved) return std::nullopt;
  c.expect(saved->x() == c.out_shape(0), "its indices come from a MaxPool over ", to_string(saved->x()),
           ", but its result has shape ", to_string(c.out_shape(0)));
  return visit_stored(lies_in_bf16(c, 0), [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot dy = in_channels_last(c, 0).slot, taps = c.in(1, kept),
               dx = out_channels_last(c, 0, kIsBf16<T>).slot;
    return [=, pool = saved->pool()](const Frame& f) {
      channels_last_max_pool_backward(pool, f.at<const T>(dy), f.at<const float>(taps), f.at<T>(dx));
    };
  });
}

std::optional<Kernel> channels_last_average_pool(KernelContext& c) {
  if (!stored_channels_last(c, 0) || !suits_channels_last(c)) return std::nullopt;
  const ChannelsLastPool pool = channels_last_pool(c, c.shape(0));
  if (!pool.suits()) return std::nullopt;
  return visit_stored(lies_in_bf16(c, 0), [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot x = in_channels_last(c, 0).slot, y = out_channels_last(c, 0, kIsBf16<T>).slot;
    return [=](const Frame& f) { channels_last_average_pool(pool, f.at<const T>(x), f.at<T>(y)); };
  });
}

std::optional<Kernel> channels_last_average_pool_grad(KernelContext& c) {
  if (!stored_channels_last(c, 0) || !suits_channels_last(c)) return std::nullopt;
  const ChannelsLastPool pool = channels_last_pool(c, c.out_shape(0));
  if (!pool.suits()) return std::nullopt;
  return visit_stored(lies_in_bf16(c, 0), [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot dy = in_channels_last(c, 0).slot, dx = out_channels_last(c, 0, kIsBf16<T>).slot;
    return [=](const Frame& f) { channels_last_average_pool_backward(pool, f.at<const T>(dy), f.at<T>(dx)); };
  });
}

std::optional<Kernel> channels_last_global_average_pool(KernelContext& c) {
  if (!stored_channels_last(c, 0) || !suits_channels_last(c)) return std::nullopt;
  const Shape& shape = c.shape(0);
  const int64_t points = element_count(shape, 2, shape.size());
  const Reduction sum(Reduce::kSum, lies_in_bf16(c, 0) ? DType::kBFloat16 : DType::kFloat,
                      {shape[0], points, shape[1]}, {false, true, false});
  const Slot x = in_channels_last(c, 0).slot, y = c.out(0), work = c.scratch(sum.scratch_bytes());
  return [=, means = c.out_size(0)](const Frame& f) {
    float* to = f.at<float>(y);
    sum.run(f.at<std::byte>(x), to, f.at<std::byte>(work));
    for (int64_t i = 0; i < means; ++i) to[i] /= static_cast<float>(points);
  };
}

std::optional<Kernel> channels_last_global_max_pool(KernelContext& c) {
  if (!stored_channels_last(c, 0) || !suits_channels_last(c)) return std::nullopt;
  return visit_stored(lies_in_bf16(c, 0), [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot x = in_channels_last(c, 0).slot, y = c.out(0);
    return [=, pool = channels_last_global(c.shape(0))](const Frame& f) {
      channels_last_global_max(pool, f.at<const T>(x), f.at<float>(y));
    };
  });
}

std::optional<Kernel> row_major_max_pool(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const PoolSizes s = sizes_of(c, c.shape(0), window);
  const bool indices = c.has_output(1) && !c.used_only_by(1, "");
  Kernel kernel;
  if (!visit_types<float, double, int8_t, uint8_t>(
          c.dtype(0), [&](auto zero) { kernel = typed_max_pool<decltype(zero)>(c, s, indices); }))
    c.reject_dtype(0);
  return kernel;
}

std::optional<Kernel> row_major_max_pool_grad(KernelContext& c) {
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

std::optional<Kernel> row_major_average_pool(KernelContext& c) {
  const Window window = read_pool(c, c.shape(0));
  const PoolSizes s = sizes_of(c, c.shape(0), window);
  return floating_kernel(c, 0, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot x = c.in(0), y = c.out(0);
    return [=](const Frame& f) { average_pool<T>(s, f.at<const T>(x), f.at<T>(y)); };
  });
}

std::optional<Kernel> row_major_average_pool_grad(KernelContext& c) {
  const Shape& x = c.out_shape(0);
  const Window window = read_pool(c, x);
  const PoolSizes s = sizes_of(c, x, window);
  return floating_kernel(c, 0, [&](auto zero) -> Kernel {
    using T = decltype(zero);
    const Slot dy = c.in(0), dx = c.out(0);
    return [=](const Frame& f) { average_pool_backward<T>(s, f.at<const T>(dy), f.at<T>(dx)); };
  });
}

std::optional<Kernel> row_major_global_average_pool(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return global_kernel<decltype(zero)>(c, global_average); });
}

std::optional<Kernel> row_major_global_max_pool(KernelContext& c) {
  return floating_kernel(c, 0, [&](auto zero) { return global_kernel<decltype(zero)>(c, global_max); });
}

}  // namespace ortrain
