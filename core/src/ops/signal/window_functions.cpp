// HannWindow, HammingWindow and BlackmanWindow: sums of cosines over one period of `size` points, or over the
// size - 1 gaps between them if the window is not periodic.
#include <cmath>
#include <iterator>
#include <numbers>

#include "op/operator.h"

namespace ortrain {
namespace {

// w(x) = a - b cos x + c cos 2x
struct Window {
  std::string_view type;
  double a, b, c;
};
constexpr Window kWindows[] = {
    {"HannWindow", 0.5, 0.5, 0},
    {"HammingWindow", 25.0 / 46, 21.0 / 46, 0},
    {"BlackmanWindow", 0.42, 0.5, 0.08},
};

void shape(ShapeContext& c) {
  const Tensor& size = c.need_constant(0);
  c.expect((size.dtype() == DType::kInt32 || size.dtype() == DType::kInt64) && size.size() == 1,
           "the size must be a single int32 or int64, found ", to_string(size.dtype()), " ",
           to_string(size.shape()));
  const int64_t n = size.to_int64()[0];
  c.expect(n >= 0, "the size must not be negative, found ", n);
  const DType type =
      static_cast<DType>(c.node().int_or("output_datatype", static_cast<int64_t>(DType::kFloat)));
  c.expect(is_half(type) || visit_numeric(type, [](auto) {}), "it cannot produce values of type ",
           to_string(type));
  c.output(0, type, {n});
}

Kernel window_kernel(KernelContext& c, const Window& window) {
  const int64_t n = c.out_size(0);
  const int64_t period = c.node().int_or("periodic", 1) != 0 ? n : n - 1;
  const Slot y = c.out(0);
  Kernel kernel;
  visit_numeric(c.out_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    kernel = [=](const Frame& f) {
      T* to = f.at<T>(y);
      for (int64_t i = 0; i < n; ++i) {
        const double x =
            period > 0 ? 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(period) : 0;
        to[i] = static_cast<T>(window.a - window.b * std::cos(x) + window.c * std::cos(2 * x));
      }
    };
  });
  return kernel;
}

// The type in the attribute output_datatype.
DType window_type(const ElementTypes& types, size_t) {
  return types.attribute("output_datatype", DType::kFloat);
}

const bool registered = register_rows<std::size(kWindows)>([]<size_t I>() -> Operator {
  return {.type = kWindows[I].type,
          .rules = {.shape = shape, .element_type = window_type},
          .traits = {.stops_gradient = true},
          .kernels = {.cpu = [](KernelContext& c) { return window_kernel(c, kWindows[I]); }}};
});

}  // namespace
}  // namespace ortrain
