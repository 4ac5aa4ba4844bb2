#include "ops/common/shape_helpers.h"

#include <algorithm>

#include "op/opset.h"

namespace ortrain {

size_t width_of(const NodeContext& c, size_t i) {
  const size_t width = size_of(c.dtype(i));
  if (width == 0) c.reject_dtype(i);
  return width;
}

std::vector<int64_t> constant_ints(const NodeContext& c, size_t i) {
  c.expect(c.has_input(i), "input ", i, " is missing");
  c.expect(c.dtype(i) == DType::kInt64 || c.dtype(i) == DType::kInt32, "input ", i, " ('", c.node().inputs[i],
           "') must be int64 or int32, found ", to_string(c.dtype(i)));
  c.expect(c.rank(i) <= 1, "input ", i, " ('", c.node().inputs[i], "') must have rank 1, found shape ",
           to_string(c.shape(i)));
  return c.need_constant(i).to_int64();
}

int64_t constant_int(const NodeContext& c, size_t i) {
  const std::vector<int64_t> values = constant_ints(c, i);
  c.expect(values.size() == 1, "input ", i, " ('", c.node().inputs[i], "') must be a single value, found ",
           values.size());
  return values[0];
}

std::optional<std::vector<int64_t>> ints_of(const NodeContext& c, const std::string& name, size_t i) {
  if (c.node().has(name)) return c.node().ints_or(name, {});
  if (c.has_input(i)) return constant_ints(c, i);
  return std::nullopt;
}

size_t axis_of(const NodeContext& c, int64_t otherwise, int64_t rank) {
  return static_cast<size_t>(normalize_axis(c.node().int_or("axis", otherwise), rank, c.node().label()));
}

std::vector<int64_t> normalize_axes(const NodeContext& c, std::vector<int64_t> axes, int64_t rank) {
  for (int64_t& axis : axes) axis = normalize_axis(axis, rank, c.node().label());
  std::vector<int64_t> sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  c.expect(twice == sorted.end(), "axes ", to_string(axes), " name the same axis twice");
  return axes;
}

bool state_selected_slices(TypeContext& c) {
  auto dims = c.input(0).dims;
  if (!c.node().has("axis")) {
    dims = std::vector<Dim>{Dim{}};
  } else if (dims) {
    const int64_t axis = c.node().int_or("axis", 0), rank = static_cast<int64_t>(dims->size());
    if (axis < -rank || axis >= rank) return false;
    (*dims)[static_cast<size_t>(axis < 0 ? axis + rank : axis)] = Dim{};
  }
  c.output(0, c.input(0).dtype, dims);
  return true;
}

Kernel nothing_to_do() {
  return [](const Frame&) {};
}

Name shape_of(GradientContext& g, Name like) { return g("Shape", {like}); }

Name reshape_to(GradientContext& g, Name value, Name shape) {
  Attributes attributes;
  if (g.opset() >= since::kAllowZero) attributes["allowzero"] = int64_t{1};
  return g("Reshape", {value, shape}, attributes);
}

Name reshape_like(GradientContext& g, Name value, Name like) {
  return reshape_to(g, value, shape_of(g, like));
}

Name zeros_like(GradientContext& g, Name like) {
  return g("ConstantOfShape", {shape_of(g, like)},
           {{"value", Tensor::scalar(g.dtype(like), 0).reshaped({1})}});
}

Name dy_or_zeros(GradientContext& g, size_t o) {
  const Name dy = g.dy(o);
  return dy.empty() ? zeros_like(g, g.want_y(o)) : dy;
}

}  // namespace ortrain
