// ReduceAllL2 (com.microsoft): the square root of the sum of the squares of all elements of all inputs, the
// norm of the gradients. Squares are added in double.
#include <algorithm>
#include <cmath>

#include "backend/cpu/optimizer/optimizer_kernels.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "ops/common/decomposed.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

DType norm_type(const ElementTypes& types, size_t) { return is_half(types[0]) ? DType::kFloat : types[0]; }

void norm_shape(ShapeContext& c) {
  c.expect(c.input_count() > 0, "it has no input, expected at least one gradient");
  c.output(0, is_half(c.dtype(0)) ? DType::kFloat : c.dtype(0), {});
}

// A part of an input. The parts do not depend on the number of threads, so neither does the sum.
constexpr int64_t kPart = 16384;
struct Part {
  Slot input;
  DType dtype;
  int64_t begin, count;

  double sum_of_squares(const Frame& f) const {
    double sum = 0;
    visit_floating(
        dtype, [&](auto zero) { sum = ortrain::sum_of_squares(f.at<decltype(zero)>(input) + begin, count); });
    return sum;
  }
};

Kernel norm_kernel(KernelContext& c) {
  std::vector<Part> parts;
  for (size_t i = 0; i < c.input_count(); ++i) {
    if (c.dtype(i) != DType::kFloat && c.dtype(i) != DType::kDouble) c.reject_dtype(i);
    // The order of the elements does not matter, and dense layouts have no padding.
    const LayoutPtr stored = c.in_layout(i);
    const Slot input = c.in(i, stored && stored->dense() && !stored->bf16() ? stored : nullptr);
    for (int64_t begin = 0; begin < c.size(i); begin += kPart)
      parts.push_back({input, c.dtype(i), begin, std::min(kPart, c.size(i) - begin)});
  }
  const Slot sums = c.scratch(parts.size() * sizeof(double)), out = c.out(0);
  const DType dtype = c.out_dtype(0);
  return [=, parts = std::move(parts)](const Frame& f) {
    double* sum = f.at<double>(sums);
    const auto count = static_cast<int64_t>(parts.size());
    parallel_for(count, kPart, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) sum[i] = parts[static_cast<size_t>(i)].sum_of_squares(f);
    });
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += sum[i];
    visit_floating(dtype, [&](auto zero) {
      using T = decltype(zero);
      *f.at<T>(out) = static_cast<T>(std::sqrt(total));
    });
  };
}

// dy x / y; 0 where everything is 0.
void norm_gradient(GradientContext& g) {
  for (size_t i = 0; i < g.node().inputs.size(); ++i) {
    if (!g.needs(i)) continue;
    const Expression x(g, g.x(i)), dy(g, cast_like(g, g.dy(0), x)), y(g, cast_like(g, g.y(0), x));
    g.set(i, (y > 0.0).choose(dy * x / y, x * 0.0));
  }
}

ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "ReduceAllL2",
                  .signature = "X... -> Y",
                  .rules = {.shape = norm_shape, .gradient = norm_gradient, .element_type = norm_type},
                  .kernels = {.cpu = norm_kernel}});

}  // namespace
}  // namespace ortrain
