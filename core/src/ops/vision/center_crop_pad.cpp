// CenterCropPad: crops or zero-pads axes to given sizes, equally on both sides; an odd element is cropped or
// added at the end.
#include <algorithm>

#include "ops/common/shape_helpers.h"

namespace ortrain {
namespace {

Shape result_shape(const NodeContext& c) {
  std::vector<int64_t> axes(static_cast<size_t>(c.rank(0)));
  for (size_t i = 0; i < axes.size(); ++i) axes[i] = static_cast<int64_t>(i);
  axes = normalize_axes(c, c.node().ints_or("axes", axes), c.rank(0));
  const std::vector<int64_t> wanted = constant_ints(c, 1);
  c.expect(wanted.size() == axes.size(), "shape ", to_string(wanted), " must have a size for each of ",
           counted(axes.size(), "axis"));
  Shape out = c.shape(0);
  for (size_t i = 0; i < axes.size(); ++i) {
    c.expect(wanted[i] >= 0, "shape ", to_string(wanted), " has a negative size");
    out[static_cast<size_t>(axes[i])] = wanted[i];
  }
  return out;
}

void shape(ShapeContext& c) { c.output(0, c.dtype(0), result_shape(c)); }

Kernel kernel(KernelContext& c) {
  const Shape &x = c.shape(0), &y = c.out_shape(0);
  Shape kept = x;
  StridedCopy::View source{0, strides_of(x)}, target{0, strides_of(y)};
  bool grows = false;
  for (size_t i = 0; i < x.size(); ++i) {
    kept[i] = std::min(x[i], y[i]);
    source.offset += (x[i] - kept[i]) / 2 * source.strides[i];
    target.offset += (y[i] - kept[i]) / 2 * target.strides[i];
    grows |= y[i] > x[i];
  }
  const size_t width = width_of(c, 0);
  const StridedCopy copy(width, kept, source, target);
  const size_t zeros = grows ? static_cast<size_t>(c.out_size(0)) * width : 0;
  const Slot in = c.in(0), out = c.out(0);
  return [=](const Frame& f) {
    zero_bytes(f.at<std::byte>(out), zeros);
    copy(f.at<std::byte>(in), f.at<std::byte>(out));
  };
}

// Elements that were cropped get zeros, and elements that were added are cropped: the gradient is a
// CenterCropPad of dY to the shape of X.
void gradient(GradientContext& g) {
  const Name dims = shape_of(g, g.x(0));
  if (!g.node().has("axes")) return g.set(0, g("CenterCropPad", {g.dy(0), dims}));
  const std::vector<int64_t> axes = g.node().ints_or("axes", {});
  g.set(0, g("CenterCropPad", {g.dy(0), g("Gather", {dims, g.int64s(axes)})}, {{"axes", axes}}));
}

ORTRAIN_OPERATOR({.type = "CenterCropPad",
                  .rules = {.shape = shape, .gradient = gradient},
                  .traits = {.narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = kernel}});

}  // namespace
}  // namespace ortrain
