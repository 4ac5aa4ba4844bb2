// Gradient accumulation (com.microsoft): InPlaceAccumulatorV2, InPlaceAccumulator, ZeroGradient.
#include "ops/common/elementwise.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void expect_flag(const NodeContext& c, size_t i) {
  if (c.has_input(i))
    c.expect(c.dtype(i) == DType::kBool && c.size(i) == 1, "input ", i, " must be a single bool, found ",
             to_string(c.dtype(i)), to_string(c.shape(i)));
}

// sum = a + b; the sum may be a or b. Each case has a loop that the compiler vectorizes.
template <typename T>
void add(const T* a, const T* b, T* sum, int64_t n) {
  const auto add_to = [](const T* __restrict from, T* __restrict to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] += from[i];
  };
  const auto add_both = [](const T* __restrict x, const T* __restrict y, T* __restrict to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = x[i] + y[i];
  };
  parallel_for(n, 1, [=](int64_t begin, int64_t end) {
    if (sum == a)
      add_to(b + begin, sum + begin, end - begin);
    else if (sum == b)
      add_to(a + begin, sum + begin, end - begin);
    else
      add_both(a + begin, b + begin, sum + begin, end - begin);
  });
}

// InPlaceAccumulatorV2(accumulation_buffer, value, overwrite_flag?) → (updated_flag,
// accumulation_buffer_out?)
void accumulator_v2_shape(ShapeContext& c) {
  expect_same(c, 0, 1);
  expect_flag(c, 2);
  c.output(0, DType::kBool, {1});
  if (c.has_output(1)) c.output(1, c.dtype(0), c.shape(0));
}

// If the buffer is known to be overwritten, the value is computed directly in the buffer.
bool accumulator_v2_writes_through(const NodeContext& c, size_t& input, size_t& target) {
  const Tensor* overwrite = c.has_input(2) ? c.constant(2) : nullptr;
  if (!overwrite || overwrite->dtype() != DType::kBool || overwrite->size() != 1 || !*overwrite->data<bool>())
    return false;
  input = 1;
  target = 0;
  return true;
}

Kernel accumulator_v2_kernel(KernelContext& c) {
  const bool in_place = c.same_storage(1, 0);
  const Tensor* known = c.has_input(2) ? c.constant(2) : nullptr;
  const bool always = known && *known->data<bool>(), never = !c.has_input(2) || (known && !always);
  const int64_t size = c.size(0);
  Kernel kernel;
  const bool supported = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot flag = always || never ? Slot{} : c.in(2);
    const Slot buffer = c.state(0), updated = c.out(0);
    // The buffer may be kept in another order than row-major.
    LayoutPtr layout = c.in_layout(0);
    if (layout && c.in(0, layout).index != buffer.index) layout = nullptr;
    const Slot value = in_place ? Slot{} : c.in(1, layout);
    // If the buffer is model state, output 1 is the memory of the buffer.
    const bool shared = c.has_output(1) && c.in(0, layout).index == buffer.index;
    if (shared) c.alias(1, 0);
    const Slot copy = c.has_output(1) && !shared ? c.out(1, layout) : Slot{};
    const size_t bytes = static_cast<size_t>(size) * sizeof(T);
    kernel = [=](const Frame& f) {
      if (updated.defined()) *f.at<bool>(updated) = true;
      std::byte* sum = f.at<std::byte>(buffer);
      if (!in_place && (always || (flag.defined() && *f.at<bool>(flag))))
        copy_bytes(sum, f.at<std::byte>(value), bytes);
      else if (!in_place)
        add(f.at<T>(buffer), f.at<T>(value), f.at<T>(buffer), size);
      if (copy.defined()) copy_bytes(f.at<std::byte>(copy), sum, bytes);
    };
  });
  if (!supported) c.reject_dtype(0);
  return kernel;
}

DType accumulator_v2_types(const ElementTypes& types, size_t o) { return o == 0 ? DType::kBool : types[0]; }

ORTRAIN_OPERATOR(
    {.domain = kMicrosoft,
     .type = "InPlaceAccumulatorV2",
     .signature = "accumulation_buffer, value, overwrite_flag? -> updated_flag, accumulation_buffer_out?",
     .rules = {.shape = accumulator_v2_shape, .element_type = accumulator_v2_types},
     .traits = {.stops_gradient = true,
                .impure = true,
                .updates = 1u << 0,
                .any_order = 1u << 0,
                .writes_through = accumulator_v2_writes_through},
     .kernels = {.cpu = accumulator_v2_kernel}});

// InPlaceAccumulator(old_sum, value, update_signal?) → new_sum: the sum, or old_sum if the signal is false.
void accumulator_shape(ShapeContext& c) {
  expect_same(c, 0, 1);
  expect_flag(c, 2);
  c.output(0, c.dtype(0), c.shape(0));
}

Kernel accumulator_kernel(KernelContext& c) {
  const int64_t size = c.size(0);
  Kernel kernel;
  const bool supported = visit_floating(c.dtype(0), [&](auto zero) {
    using T = decltype(zero);
    const Slot old_sum = c.in(0), value = c.in(1), signal = c.has_input(2) ? c.in(2) : Slot{};
    const Slot new_sum = c.out_inplace(0, {0, 1});
    kernel = [=](const Frame& f) {
      if (signal.defined() && !*f.at<bool>(signal)) {
        if (f.at<T>(old_sum) != f.at<T>(new_sum))
          copy_bytes(f.at<std::byte>(new_sum), f.at<std::byte>(old_sum),
                     static_cast<size_t>(size) * sizeof(T));
      } else {
        add(f.at<T>(old_sum), f.at<T>(value), f.at<T>(new_sum), size);
      }
    };
  });
  if (!supported) c.reject_dtype(0);
  return kernel;
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "InPlaceAccumulator",
                  .signature = "old_sum, value, update_signal? -> new_sum",
                  .rules = {.shape = accumulator_shape},
                  .traits = {.stops_gradient = true},
                  .kernels = {.cpu = accumulator_kernel}});

// ZeroGradient(old_gradient, reset_signal) → zeros like old_gradient. An old_gradient that is model state is
// set to zero too.
Kernel zero_gradient_kernel(KernelContext& c) {
  const size_t bytes = static_cast<size_t>(c.size(0)) * width_of(c, 0);
  const LayoutPtr layout = c.in_layout(0);
  const Slot state = c.state(0);
  Slot out;
  if (c.in(0, layout).index == state.index)  // old_gradient is model state: the output is its memory
    c.alias(0, 0);
  else
    out = c.out(0, layout);
  return [=](const Frame& f) {
    zero_bytes(f.at<std::byte>(state), bytes);
    if (out.defined()) zero_bytes(f.at<std::byte>(out), bytes);
  };
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ZeroGradient",
                  .signature = "old_gradient, reset_signal -> zero_gradient",
                  .rules = {.shape = shape_like_first},
                  .traits = {.stops_gradient = true,
                             .impure = true,
                             .updates = 1u << 0,
                             .narrow_types = NarrowTypes::kPassthrough,
                             .any_order = 1u << 0},
                  .kernels = {.cpu = zero_gradient_kernel}});

}  // namespace
}  // namespace ortrain
