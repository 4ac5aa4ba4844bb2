// Compress: the slices along an axis for which a condition holds; without an axis, the elements of the
// flattened input. A condition may be shorter than the axis: the rest is dropped.
//
//     y = x[condition]        dx = dy scattered to where the condition holds, 0 elsewhere
// Compiled for speed: a loop over the slices (CMakeLists.txt).
#include <algorithm>
#include <cstring>

#include "op/dynamic.h"
#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

void types(TypeContext& c) { state_selected_slices(c); }

void run(DynamicContext& c) {
  const Tensor &x = c.in(0), &condition = c.in(1);
  c.expect(condition.dtype() == DType::kBool && condition.shape().size() == 1,
           "input 1 ('condition') must be a vector of bool, found ", to_string(condition.dtype()),
           to_string(condition.shape()));
  const bool flat = !c.node().has("axis");
  const Shape shape = flat ? Shape{x.size()} : x.shape();
  const size_t axis = flat ? 0 : axis_of(c, 0, c.rank(0));
  const int64_t dim = shape[axis];
  const auto holds = condition.elements<bool>();
  c.expect(condition.size() <= dim, "input 1 ('condition') has ", counted(condition.size(), "element"),
           ", but axis ", axis, " of ", flat ? "the flattened input" : "the input", " has only ", dim);
  const int64_t count = std::count(holds.begin(), holds.end(), true);
  Shape result = shape;
  result[axis] = count;
  const int64_t outer = element_count(shape, 0, axis);
  const size_t row = static_cast<size_t>(element_count(shape, axis + 1, shape.size())) * width_of(c, 0);
  std::byte* to = c.out(0, x.dtype(), result).raw();
  if (row == 0) return;
  for (int64_t o = 0; o < outer; ++o) {
    const std::byte* from = x.raw() + static_cast<size_t>(o * dim) * row;
    for (int64_t k = 0; k < condition.size();) {
      if (!holds[static_cast<size_t>(k)]) {
        ++k;
        continue;
      }
      int64_t end = k + 1;
      while (end < condition.size() && holds[static_cast<size_t>(end)]) ++end;
      const size_t bytes = static_cast<size_t>(end - k) * row;
      std::memcpy(to, from + static_cast<size_t>(k) * row, bytes);
      to += bytes;
      k = end;
    }
  }
}

void gradient(GradientContext& g) {
  const Name chosen = g.squeeze(g("NonZero", {g.x(1)}), {0});
  if (g.node().has("axis")) {
    g.set(0, g("GatherGrad", {shape_of(g, g.x(0)), chosen, g.dy(0)}, {{"axis", g.node().int_or("axis", 0)}},
               kMicrosoft));
    return;
  }
  const Name size = g("Reshape", {g("Size", {g.x(0)}), g.int64s({1})});
  const Name flat = g("GatherGrad", {size, chosen, g.dy(0)}, {{"axis", int64_t{0}}}, kMicrosoft);
  g.set(0, reshape_like(g, flat, g.x(0)));
}

ORTRAIN_OPERATOR({.type = "Compress",
                  .rules = {.gradient = gradient, .types = types},
                  .kernels = {.run = run}});

}  // namespace
}  // namespace ortrain
