// Reshape, Flatten, Squeeze, Unsqueeze: the same elements under another shape. Nothing is copied.
#include <algorithm>

#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

Kernel alias_kernel(KernelContext& c) {
  c.alias(0, 0);
  return nullptr;
}

void reshape_gradient(GradientContext& g) { g.set(0, reshape_like(g, g.dy(0), g.x(0))); }

// 0 keeps the size of the input (unless allowzero), a single -1 is inferred.
void reshape_shape(ShapeContext& c) {
  const Shape& from = c.shape(0);
  const auto requested = ints_of(c, "shape", 1);
  c.expect(requested.has_value(), "neither attribute nor input 'shape' is given");
  const std::vector<int64_t>& wanted = *requested;
  const bool allow_zero = c.node().int_or("allowzero", 0) != 0;
  Shape to = wanted;
  int64_t free_axis = -1;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i] < -1) c.reject("the requested shape ", to_string(wanted), " has a dimension below -1");
    if (to[i] == -1) {
      if (free_axis >= 0) c.reject("the requested shape ", to_string(wanted), " has more than one -1");
      free_axis = static_cast<int64_t>(i);
      to[i] = 1;
    } else if (to[i] == 0 && !allow_zero) {
      c.expect(i < from.size(), "the requested shape ", to_string(wanted), " keeps axis ", i,
               ", which input shape ", to_string(from), " does not have");
      to[i] = from[i];
    }
  }
  const int64_t have = element_count(from), given = element_count(to);
  if (free_axis >= 0) {
    c.expect(given != 0 ? have % given == 0 : have == 0 && !allow_zero, "shape ", to_string(from),
             " cannot be reshaped to ", to_string(wanted));
    to[static_cast<size_t>(free_axis)] = given != 0 ? have / given : 0;
  }
  c.expect(element_count(to) == have, "shape ", to_string(from), " with ", counted(have, "element"),
           " cannot be reshaped to ", to_string(wanted));
  c.output(0, c.dtype(0), to);
}

// The axes up to that position must be the axes of the input, possibly written as zeros; one dimension after
// that position may be inferred.
std::optional<InputPositions> reshape_positions(const PositionQuery& q) {
  if (q.inputs.size() < 2) return std::nullopt;
  const std::vector<Dim>& from = *q.inputs[0];
  const bool zero_copies = q.node.int_or("allowzero", 0) == 0;
  std::vector<int64_t> shape;
  for (size_t k = 0; k < q.output.size(); ++k) {
    const Dim& to = q.output[k];
    const bool in_front = k <= static_cast<size_t>(q.axis);
    if (in_front && (k >= from.size() || !from[k].same(to))) return std::nullopt;
    if (!to.known() && in_front && !zero_copies) return std::nullopt;
    if (k == static_cast<size_t>(q.axis))
      shape.push_back(1);
    else
      shape.push_back(to.known() ? to.value : in_front ? 0 : -1);
  }
  if (std::count(shape.begin(), shape.end(), -1) > 1) return std::nullopt;
  return InputPositions{{q.axis, -1}, {{1, shape}}};
}

ORTRAIN_OPERATOR({.type = "Reshape",
                  .rules = {.shape = reshape_shape, .gradient = reshape_gradient},
                  .traits = {.takes_bf16 = true,
                             .narrow_types = NarrowTypes::kPassthrough,
                             .positions = reshape_positions},
                  .kernels = {.cpu = alias_kernel}});

void flatten_shape(ShapeContext& c) {
  const int64_t rank = c.rank(0), given = c.node().int_or("axis", 1);
  c.expect(given >= -rank && given <= rank, "axis ", given, " is outside [", -rank, ", ", rank,
           "] of input shape ", to_string(c.shape(0)));
  const size_t axis = static_cast<size_t>(given < 0 ? given + rank : given);
  c.output(0, c.dtype(0),
           {element_count(c.shape(0), 0, axis), element_count(c.shape(0), axis, static_cast<size_t>(rank))});
}

ORTRAIN_OPERATOR({.type = "Flatten",
                  .rules = {.shape = flatten_shape, .gradient = reshape_gradient},
                  .traits = {.takes_bf16 = true, .narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = alias_kernel}});

void squeeze_shape(ShapeContext& c) {
  const Shape& from = c.shape(0);
  const auto axes = ints_of(c, "axes", 1);
  std::vector<bool> drop(from.size(), false);
  if (axes) {
    for (const int64_t axis : normalize_axes(c, *axes, c.rank(0))) {
      c.expect(from[static_cast<size_t>(axis)] == 1, "axis ", axis, " of input shape ", to_string(from),
               " cannot be squeezed: its size is not 1");
      drop[static_cast<size_t>(axis)] = true;
    }
  } else {
    std::transform(from.begin(), from.end(), drop.begin(), [](int64_t dim) { return dim == 1; });
  }
  Shape to;
  for (size_t i = 0; i < from.size(); ++i)
    if (!drop[i]) to.push_back(from[i]);
  c.output(0, c.dtype(0), to);
}

ORTRAIN_OPERATOR({.type = "Squeeze",
                  .rules = {.shape = squeeze_shape, .gradient = reshape_gradient},
                  .traits = {.takes_bf16 = true, .narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = alias_kernel}});

void unsqueeze_shape(ShapeContext& c) {
  const Shape& from = c.shape(0);
  const auto axes = ints_of(c, "axes", 1);
  c.expect(axes.has_value(), "neither attribute nor input 'axes' is given");
  const size_t rank = from.size() + axes->size();
  Shape to(rank, 0);
  for (const int64_t axis : normalize_axes(c, *axes, static_cast<int64_t>(rank)))
    to[static_cast<size_t>(axis)] = 1;
  auto next = from.begin();
  for (int64_t& dim : to)
    if (dim != 1) dim = *next++;
  c.output(0, c.dtype(0), to);
}

ORTRAIN_OPERATOR({.type = "Unsqueeze",
                  .rules = {.shape = unsqueeze_shape, .gradient = reshape_gradient},
                  .traits = {.takes_bf16 = true, .narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = alias_kernel}});

}  // namespace
}  // namespace ortrain
