// Expand: the input broadcast to a shape. Tile: the input repeated along every axis.
#include "backend/cpu/axis_order.h"
#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

void expand_shape(ShapeContext& c) {
  const Shape wanted = constant_ints(c, 1);
  for (const int64_t dim : wanted)
    c.expect(dim >= 0, "the requested shape ", to_string(wanted), " has a negative dimension");
  try {
    c.output(0, c.dtype(0), broadcast(c.shape(0), wanted));
  } catch (const Error& error) {
    c.reject(error.message());
  }
}

Kernel expand_kernel(KernelContext& c) {
  const Shape& out_shape = c.out_shape(0);
  if (c.size(0) == c.out_size(0)) {
    c.alias(0, 0);
    return nullptr;
  }
  // The input is usually small, so the output has the order that suits its readers.
  const AxisOrder order{c.out_dtype(0) == DType::kFloat ? order_of(c.layout_for_readers(0))
                                                        : Order::kRowMajor};
  const Shape dims = order.sorted(out_shape);
  const StridedCopy copy(width_of(c, 0), dims, {0, order.sorted(broadcast_strides(c.shape(0), out_shape))},
                         {0, strides_of(dims)});
  const Slot in = c.in(0), out = c.out(0, order.layout(out_shape));
  return [=](const Frame& f) { copy(f.at<std::byte>(in), f.at<std::byte>(out)); };
}

void decompose_gradient(GradientContext& g) { g.set(0, g.unbroadcast(g.dy(0), g.y(0), 0)); }

ORTRAIN_OPERATOR({.type = "Expand",
                  .rules = {.shape = expand_shape, .gradient = decompose_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = expand_kernel}});

void tile_shape(ShapeContext& c) {
  const std::vector<int64_t> repeats = constant_ints(c, 1);
  c.expect(static_cast<int64_t>(repeats.size()) == c.rank(0), "repeats ", to_string(repeats),
           " must have one entry per axis of input shape ", to_string(c.shape(0)));
  Shape out = c.shape(0);
  for (size_t i = 0; i < out.size(); ++i) {
    c.expect(repeats[i] >= 0, "repeats ", to_string(repeats), " must not be negative");
    c.expect(!__builtin_mul_overflow(out[i], repeats[i], &out[i]), "repeats ", to_string(repeats),
             " are too large");
  }
  c.output(0, c.dtype(0), out);
}

Kernel tile_kernel(KernelContext& c) {
  const Shape &in_shape = c.shape(0), &out_shape = c.out_shape(0);
  if (in_shape == out_shape) {
    c.alias(0, 0);
    return nullptr;
  }
  // Every axis is seen as two: the repetitions, along which the source has stride 0, and the size.
  Shape dims;
  StridedCopy::View source, target;
  const std::vector<int64_t> in_strides = strides_of(in_shape), out_strides = strides_of(out_shape);
  for (size_t i = 0; i < in_shape.size(); ++i) {
    dims.insert(dims.end(), {in_shape[i] > 0 ? out_shape[i] / in_shape[i] : 0, in_shape[i]});
    source.strides.insert(source.strides.end(), {0, in_strides[i]});
    target.strides.insert(target.strides.end(), {out_strides[i] * in_shape[i], out_strides[i]});
  }
  const StridedCopy copy(width_of(c, 0), dims, source, target);
  const Slot in = c.in(0), out = c.out(0);
  return [=](const Frame& f) { copy(f.at<std::byte>(in), f.at<std::byte>(out)); };
}

// dY with every axis split into repetitions and size, summed over the repetitions.
void tile_gradient(GradientContext& g) {
  const auto rank = g.rank(g.x(0));
  if (!rank) g.reject("the gradient needs the rank of its input, which is not known");
  if (*rank == 0) return g.set(0, g.dy(0));
  std::vector<int64_t> repetitions;
  for (int64_t i = 0; i < *rank; ++i) repetitions.push_back(2 * i);
  const Name pairs =
      g("Concat", {g.unsqueeze(g.x(1), {1}), g.unsqueeze(shape_of(g, g.x(0)), {1})}, {{"axis", int64_t{1}}});
  const Name apart = reshape_to(g, g.dy(0), g("Reshape", {pairs, g.int64s({2 * *rank})}));
  g.set(0, g.reduce_sum(apart, repetitions, false));
}

ORTRAIN_OPERATOR({.type = "Tile",
                  .rules = {.shape = tile_shape, .gradient = tile_gradient},
                  .traits = {.since = 6, .narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = tile_kernel}});

}  // namespace
}  // namespace ortrain
