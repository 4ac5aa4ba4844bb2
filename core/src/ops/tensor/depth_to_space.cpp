// DepthToSpace and SpaceToDepth: blocks of b × b pixels become b² channels, and back. In mode DCR the b²
// positions in a block are the outer part of the channel axis, in mode CRD the inner part.
#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

int64_t block_of(const Node& node) {
  const int64_t block = node.int_or("blocksize", 0);
  require(block > 0 && block < 32768, ErrorCode::kInvalidGraph, node.label(),
          ": attribute 'blocksize' must be in [1, 32767], found ", block);
  return block;
}

int64_t block_of(const NodeContext& c) {
  c.expect(c.rank(0) == 4, "its input must have rank 4, found shape ", to_string(c.shape(0)));
  return block_of(c.node());
}

bool is_crd(const Node& node) {
  const std::string mode = node.string_or("mode", "DCR");
  require(mode == "DCR" || mode == "CRD", ErrorCode::kInvalidGraph, node.label(),
          ": attribute 'mode' must be DCR or CRD, found '", mode, "'");
  return mode == "CRD";
}

// Copies between the deep tensor [n, b²c, h, w] and the wide tensor [n, c, hb, wb].
Kernel rearrange(KernelContext& c, const Shape& deep, int64_t block, bool crd, bool to_wide) {
  const int64_t n = deep[0], channels = deep[1] / (block * block), h = deep[2], w = deep[3];
  // Dimensions in the order of the wide tensor: n, c, h, block row, w, block column.
  const Shape dims = {n, channels, h, block, w, block};
  const StridedCopy::View wide{0, strides_of(dims)};
  const int64_t plane = h * w, inner = crd ? plane : channels * plane;
  const StridedCopy::View deep_view{
      0, {deep[1] * plane, crd ? block * block * plane : plane, w, block * inner, 1, inner}};
  const StridedCopy copy(width_of(c, 0), dims, to_wide ? deep_view : wide, to_wide ? wide : deep_view);
  const Slot in = c.in(0), out = c.out(0);
  return [=](const Frame& f) { copy(f.at<std::byte>(in), f.at<std::byte>(out)); };
}

void depth_to_space_shape(ShapeContext& c) {
  const int64_t b = block_of(c);
  is_crd(c.node());
  const Shape& x = c.shape(0);
  c.expect(x[1] % (b * b) == 0, "the ", counted(x[1], "channel"), agreeing(x[1], " is", " are"),
           " not a multiple of ", b, " x ", b);
  c.output(0, c.dtype(0), {x[0], x[1] / (b * b), x[2] * b, x[3] * b});
}

Kernel depth_to_space_kernel(KernelContext& c) {
  return rearrange(c, c.shape(0), block_of(c), is_crd(c.node()), true);
}

// SpaceToDepth leaves channels in DCR order (older opsets have no other order); mode CRD reorders them.
void depth_to_space_gradient(GradientContext& g) {
  const int64_t b = block_of(g.node());
  const Name dcr = g("SpaceToDepth", {g.dy(0)}, {{"blocksize", b}});
  if (!is_crd(g.node())) return g.set(0, dcr);
  const auto dims = g.dims(g.x(0));
  if (!dims || dims->size() != 4 || !(*dims)[1].known())
    g.reject("the gradient of mode CRD needs to know the number of channels");
  const int64_t channels = (*dims)[1].value / (b * b);
  std::vector<int64_t> order;
  for (int64_t channel = 0; channel < channels; ++channel)
    for (int64_t place = 0; place < b * b; ++place) order.push_back(place * channels + channel);
  g.set(0, g("Gather", {dcr, g.int64s(order)}, {{"axis", int64_t{1}}}));
}

ORTRAIN_OPERATOR({.type = "DepthToSpace",
                  .rules = {.shape = depth_to_space_shape, .gradient = depth_to_space_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = depth_to_space_kernel}});

void space_to_depth_shape(ShapeContext& c) {
  const int64_t b = block_of(c);
  is_crd(c.node());
  const Shape& x = c.shape(0);
  c.expect(x[2] % b == 0 && x[3] % b == 0, "height and width of ", to_string(x), " are not multiples of ", b);
  c.output(0, c.dtype(0), {x[0], x[1] * b * b, x[2] / b, x[3] / b});
}

Kernel space_to_depth_kernel(KernelContext& c) {
  return rearrange(c, c.out_shape(0), block_of(c), is_crd(c.node()), false);
}

void space_to_depth_gradient(GradientContext& g) {
  g.set(0, g("DepthToSpace", {g.dy(0)},
             {{"blocksize", g.node().int_or("blocksize", 0)}, {"mode", g.node().string_or("mode", "DCR")}}));
}

ORTRAIN_OPERATOR({.type = "SpaceToDepth",
                  .rules = {.shape = space_to_depth_shape, .gradient = space_to_depth_gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = space_to_depth_kernel}});

}  // namespace
}  // namespace ortrain
