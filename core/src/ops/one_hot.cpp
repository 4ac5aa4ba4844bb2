// OneHot: a new axis of `depth` that holds the on-value where its position is the index and the off-value
// elsewhere. Indices outside [-depth, depth) give off-values alone.
#include <algorithm>

#include "ops/gradient_expression.h"
#include "ops/movement.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

int64_t depth_of(const NodeContext& c) {
  c.expect(c.has_input(1) && c.size(1) == 1, "depth must be a scalar");
  const double depth = c.need_constant(1).to_double()[0];
  c.expect(depth >= 0 && depth < 0x1p53, "depth must not be negative, found ", depth);
  return static_cast<int64_t>(depth);
}

void shape(ShapeContext& c) {
  c.expect(c.has_input(2) && c.size(2) == 2, "values must be the two numbers [off, on]");
  const size_t axis = axis_of(c, -1, c.rank(0) + 1);
  Shape out = c.shape(0);
  out.insert(out.begin() + static_cast<int64_t>(axis), depth_of(c));
  c.output(0, c.dtype(2), out);
}

Kernel kernel(KernelContext& c) {
  const size_t axis = axis_of(c, -1, c.rank(0) + 1);
  const int64_t depth = depth_of(c), inner = element_count(c.shape(0), axis, c.shape(0).size());
  const int64_t count = c.size(0), out_count = c.out_size(0);
  Kernel kernel;
  const bool known = visit_numeric(c.dtype(0), [&](auto index) {
    visit_width(c, 2, [&](auto zero) {
      using I = decltype(index);
      using T = decltype(zero);
      const StridedCopy fill(sizeof(T), {out_count}, {0, {0}}, {0, {1}});
      const Slot indices = c.in(0), values = c.in(2), out = c.out(0);
      kernel = [=](const Frame& f) {
        const I* at = f.at<I>(indices);
        T* to = f.at<T>(out);
        const T on = f.at<T>(values)[1];
        fill(f.at<std::byte>(values), f.at<std::byte>(out));
        parallel_for(count, 1, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const double value = static_cast<double>(at[i]);
            if (!(value > -static_cast<double>(depth) - 1 && value < static_cast<double>(depth))) continue;
            int64_t position = static_cast<int64_t>(at[i]);
            if (position < 0) position += depth;
            if (position >= 0) to[(i / inner * depth + position) * inner + i % inner] = on;
          }
        });
      };
    });
  });
  if (!known) c.reject_dtype(0);
  return kernel;
}

// The off-value has the sum of dY where there is none, the on-value where there is a one.
void gradient(GradientContext& g) {
  if (!g.needs(2)) return;
  const Expression dy(g, g.dy(0));
  const auto chosen = [&](const std::vector<double>& values) {
    Tensor pair(g.dtype(dy), {2});
    visit_numeric(pair.dtype(), [&](auto zero) {
      using T = decltype(zero);
      std::transform(values.begin(), values.end(), pair.data<T>(),
                     [](double v) { return static_cast<T>(v); });
    });
    const std::string ones = g("OneHot", {g.x(0), g.x(1), g.constant(pair)}, g.node().attributes);
    return g("Reshape",
             {g("ReduceSum", {dy * Expression(g, ones)}, {{"keepdims", int64_t{0}}}), g.int64s({1})});
  };
  g.set(2, g("Concat", {chosen({1, 0}), chosen({0, 1})}, {{"axis", int64_t{0}}}));
}

ORTRAIN_OPERATOR({.type = "OneHot", .shape = shape, .kernel = kernel, .gradient = gradient});

}  // namespace
}  // namespace ortrain
