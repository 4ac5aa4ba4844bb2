// OneHot: a new axis of size `depth` with the on-value where the position equals the index and the off-value
// elsewhere. Indices outside [-depth, depth) produce only off-values.
#include <algorithm>

#include "op/gradient_expression.h"
#include "ops/common/shape_helpers.h"
#include "runtime/threads.h"

namespace ortrain {
namespace {

int64_t depth_of(const NodeContext& c) {
  c.expect(c.has_input(1) && c.size(1) == 1, "depth must be a scalar, found ",
           c.has_input(1) ? concat("shape ", to_string(c.shape(1))) : "none");
  const double depth = c.need_constant(1).to_double()[0];
  c.expect(depth >= 0 && depth < 0x1p53, "depth must be in [0, 2^53), found ", depth);
  return static_cast<int64_t>(depth);
}

void shape(ShapeContext& c) {
  c.expect(c.has_input(2) && c.size(2) == 2, "values must be the two values [off, on], found ",
           c.has_input(2) ? concat("shape ", to_string(c.shape(2))) : "none");
  const size_t axis = axis_of(c, -1, c.rank(0) + 1);
  Shape out = c.shape(0);
  out.insert(out.begin() + static_cast<int64_t>(axis), depth_of(c));
  c.output(0, c.dtype(2), out);
}

// n indices of any type, counted from the front; -1 for indices outside [-depth, depth).
template <typename I>
void places(const void* raw, int64_t n, int64_t depth, int64_t* to) {
  const I* indices = static_cast<const I*>(raw);
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(indices[i]);
    to[i] = -1;
    if (!(value > -static_cast<double>(depth) - 1 && value < static_cast<double>(depth))) continue;
    const int64_t place = static_cast<int64_t>(indices[i]);
    to[i] = place < 0 ? std::max<int64_t>(place + depth, -1) : place;
  }
}

Kernel kernel(KernelContext& c) {
  const size_t axis = axis_of(c, -1, c.rank(0) + 1);
  const int64_t depth = depth_of(c), inner = element_count(c.shape(0), axis, c.shape(0).size());
  const int64_t count = c.size(0), out_count = c.out_size(0);
  void (*find_places)(const void*, int64_t, int64_t, int64_t*) = nullptr;
  if (!visit_numeric(c.dtype(0), [&](auto index) { find_places = places<decltype(index)>; }))
    c.reject_dtype(0);
  Kernel kernel;
  visit_width(c, 2, [&](auto zero) {
    using T = decltype(zero);
    const StridedCopy fill(sizeof(T), {out_count}, {0, {0}}, {0, {1}});
    const Slot indices = c.in(0), values = c.in(2), out = c.out(0);
    const Slot places_slot = c.scratch(static_cast<size_t>(count) * sizeof(int64_t));
    kernel = [=](const Frame& f) {
      int64_t* at = f.at<int64_t>(places_slot);
      T* to = f.at<T>(out);
      const T on = f.at<T>(values)[1];
      find_places(f.at<void>(indices), count, depth, at);
      fill(f.at<std::byte>(values), f.at<std::byte>(out));
      parallel_for(count, 1, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          if (at[i] >= 0) to[(i / inner * depth + at[i]) * inner + i % inner] = on;
      });
    };
  });
  return kernel;
}

// The gradient of the on-value is the sum of dY at the ones of the output, the gradient of the off-value the
// sum at all other positions.
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
    const Name ones = g("OneHot", {g.x(0), g.x(1), g.constant(pair)}, g.node().attributes);
    return g("Reshape",
             {g("ReduceSum", {dy * Expression(g, ones)}, {{"keepdims", int64_t{0}}}), g.int64s({1})});
  };
  g.set(2, g("Concat", {chosen({1, 0}), chosen({0, 1})}, {{"axis", int64_t{0}}}));
}

ORTRAIN_OPERATOR({.type = "OneHot",
                  .rules = {.shape = shape, .gradient = gradient, .element_type = type_of_input<2>},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
