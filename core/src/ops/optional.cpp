// OptionalHasElement and OptionalGetElement of a plain tensor, which always is there; an input that is left
// out never is.
#include "ops/operator.h"

namespace ortrain {
namespace {

void has_shape(ShapeContext& c) { c.value(0, Tensor::scalar(DType::kBool, c.has_input(0) ? 1 : 0)); }
ORTRAIN_OPERATOR({.type = "OptionalHasElement", .shape = has_shape, .stops_gradient = true});

void get_shape(ShapeContext& c) {
  c.expect(c.has_input(0), "there is no element to get");
  shape_like_first(c);
}

Kernel get_kernel(KernelContext& c) {
  c.alias(0, 0);
  return nullptr;
}

void get_gradient(GradientContext& g) { g.set(0, g.dy(0)); }
ORTRAIN_OPERATOR({.type = "OptionalGetElement",
                  .shape = get_shape,
                  .kernel = get_kernel,
                  .gradient = get_gradient,
                  .narrow_types = NarrowTypes::kMoved});

}  // namespace
}  // namespace ortrain
