// Sum, Mean, Max and Min of any number of values, with broadcasting.

#include <algorithm>
#include <set>
#include <vector>

#include "backend/cpu/bf16_storage.h"
#include "backend/cpu/tuning.h"
#include "op/gradient_expression.h"
#include "op/operator.h"
#include "op/sum_of_products.h"
#include "op/wide_integers.h"
#include "ops/common/elementwise.h"
#include "ops/common/variant.h"
#include "runtime/broadcast.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

void shape(ShapeContext& c) { c.output(0, c.dtype(0), broadcast_inputs(c)); }

bool any_in_bf16(const KernelContext& c) {
  for (size_t i = 0; i < c.input_count(); ++i)
    if (lies_in_bf16(c, i)) return true;
  return false;
}

enum class Of { kSum, kMean, kMax, kMin };

// y = x0, then y = f(y, x_i) for the other inputs, in pieces that stay in the first-level cache.
Kernel kernel(KernelContext& c, Of of) {
  const bool mean = of == Of::kMean;
  const bool narrow = of == Of::kSum && any_in_bf16(c) && c.wants_bf16(0);
  const char* function = of == Of::kMax ? "Max" : of == Of::kMin ? "Min" : "Add";
  const BinaryFunction combine =
      narrow ? bf16_function("Add", true, true) : binary_function(function, c.dtype(0));
  if (!combine || (mean && !is_floating(c.dtype(0)))) c.reject_dtype(0);
  const size_t count = c.input_count();
  if (count == 1) {
    c.alias(0, 0);
    return nullptr;
  }

  bool same = true;
  LayoutPtr layout;
  for (size_t i = 0; i < count; ++i) {
    same = same && c.shape(i) == c.out_shape(0);
    if (!layout) layout = !narrow ? flat_layout(c, i) : lies_in_bf16(c, i) ? bf16_layout(c, i) : nullptr;
  }
  if (!same) layout = narrow ? bf16_row_major(c.out_shape(0)) : nullptr;

  std::vector<Slot> slots(count);
  for (size_t i = 0; i < count; ++i)
    slots[i] = c.in(i, narrow && !same ? bf16_row_major(c.shape(i)) : layout);
  // The first pass reads inputs 0 and 1 and writes the output: the output may overwrite one of these, unless
  // a later pass reads the same value again.
  const std::set<std::string> later(c.node().inputs.begin() + 2, c.node().inputs.end());
  const bool free0 = !later.count(c.node().inputs[0]), free1 = !later.count(c.node().inputs[1]);
  const Slot y = free0 && free1 ? out_over(c, {0, 1}, layout)
                 : free0        ? out_over(c, {0}, layout)
                 : free1        ? out_over(c, {1}, layout)
                                : c.out(0, layout);

  // The sum of inputs 0 and 1 may have a smaller shape than the output, so every pass broadcasts to the
  // output's shape.
  struct Pass {
    Broadcast<2> shape;
    Slot a, b;
  };
  std::vector<Pass> passes;
  for (size_t i = 1; i < count; ++i)
    passes.push_back({Broadcast<2>({i == 1 ? c.shape(0) : c.out_shape(0), c.shape(i)}, c.out_shape(0)),
                      i == 1 ? slots[0] : y, slots[i]});
  const BinaryFunction scale = mean ? binary_function("Mul", c.dtype(0)) : nullptr;
  const double factor = 1.0 / static_cast<double>(count);
  const bool is_double = c.dtype(0) == DType::kDouble;
  const int64_t n = c.out_size(0);
  const int64_t width = static_cast<int64_t>(size_of(narrow ? DType::kBFloat16 : c.dtype(0)));
  using tuning::kPiece;
  return [=](const Frame& f) {
    std::byte* to = f.at<std::byte>(y);
    const float factor_float = static_cast<float>(factor);
    const void* factor_at = is_double ? static_cast<const void*>(&factor) : &factor_float;
    parallel_for(n, static_cast<int64_t>(passes.size()), [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; piece += kPiece) {
        const int64_t stop = std::min(end, piece + kPiece);
        for (const Pass& pass : passes) {
          const std::byte *a = f.at<std::byte>(pass.a), *b = f.at<std::byte>(pass.b);
          pass.shape.walk(piece, stop, [&](int64_t at, const std::array<int64_t, 2>& in, int64_t size) {
            combine(a + in[0] * width, pass.shape.step(0), b + in[1] * width, pass.shape.step(1),
                    to + at * width, size);
          });
        }
        if (scale) scale(to + piece * width, 1, factor_at, 0, to + piece * width, stop - piece);
      }
    });
  };
}

void sum_gradient(GradientContext& g) {
  for (size_t i = 0; i < g.node().inputs.size(); ++i)
    if (g.needs(i)) g.set(i, g.unbroadcast(g.dy(0), g.y(0), i));
}

void mean_gradient(GradientContext& g) {
  const Expression dy(g, g.dy(0));
  const Expression share = dy / static_cast<double>(g.node().inputs.size());
  for (size_t i = 0; i < g.node().inputs.size(); ++i)
    if (g.needs(i)) g.set(i, g.unbroadcast(share, g.y(0), i));
}

// The gradient goes to the operands that equal the extreme, divided evenly among these operands. If an
// operand is NaN, no comparison holds, and every operand gets the whole gradient.
void extreme_gradient(GradientContext& g, bool max) {
  const Expression dy(g, g.dy(0)), y(g, g.y(0));
  const size_t count = g.node().inputs.size();
  if (count == 1) return g.set(0, g.dy(0));
  std::vector<Expression> x;
  for (size_t i = 0; i < count; ++i) x.emplace_back(g, g.x(i));
  const auto share = [&] {
    if (count == 2) return x[0].call("Equal", x[1]).choose(dy * 0.5, dy);
    Names hits;
    for (const Expression& operand : x) hits.push_back(operand.call("Equal", y).as(y));
    return dy / Expression(g, g("Max", {g("Sum", hits), y.number(1)}));
  }();
  for (size_t i = 0; i < count; ++i) {
    if (!g.needs(i)) continue;
    // Two operands are compared with each other, so Y need not be kept.
    const Expression& other = count == 2 ? x[1 - i] : y;
    const Expression loses = max ? x[i] < other : x[i] > other;
    g.set(i, g.unbroadcast(loses.choose(y.number(0), share), y, i));
  }
}

std::vector<ProductTerm> sum_terms(const Node& node, size_t) {
  std::vector<ProductTerm> terms;
  for (size_t i = 0; i < node.inputs.size(); ++i) terms.push_back({{i}, 1, false});
  return terms;
}
ORTRAIN_OPERATOR_FACT(ProductTermsRule, "", "Sum", sum_terms);

ORTRAIN_OPERATOR({.type = "Sum",
                  .rules = {.shape = shape, .gradient = sum_gradient},
                  .traits = {.takes_bf16 = true, .positions = broadcast_positions},
                  .kernels = {.cpu = wide_integers<kVariant<kernel, Of::kSum>>}});
ORTRAIN_OPERATOR({.type = "Mean",
                  .rules = {.shape = shape, .gradient = mean_gradient},
                  .traits = {.positions = broadcast_positions},
                  .kernels = {.cpu = kVariant<kernel, Of::kMean>}});
ORTRAIN_OPERATOR({.type = "Max",
                  .rules = {.shape = shape, .gradient = kVariant<extreme_gradient, true>},
                  .traits = {.positions = broadcast_positions},
                  .kernels = {.cpu = wide_integers<kVariant<kernel, Of::kMax>>}});
ORTRAIN_OPERATOR({.type = "Min",
                  .rules = {.shape = shape, .gradient = kVariant<extreme_gradient, false>},
                  .traits = {.positions = broadcast_positions},
                  .kernels = {.cpu = wide_integers<kVariant<kernel, Of::kMin>>}});

}  // namespace
}  // namespace ortrain
