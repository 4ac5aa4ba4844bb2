// Optional values: a tensor or a sequence, or empty. A present value is stored as the element itself, so
// Optional and OptionalGetElement return their input unchanged. A tensor is always present; an omitted input
// is not.
#include "ops/control/sequence.h"

namespace ortrain {
namespace {

// Without an input the value is empty, of the type in the attribute.
void optional_types(TypeContext& c) {
  ValueInfo info;
  const auto type = c.node().attributes.find("type");
  if (c.node().has_input(0))
    info = c.input(0);
  else if (const auto* stated =
               type == c.node().attributes.end() ? nullptr : std::get_if<ValueInfo>(&type->second))
    info = *stated;
  else
    return c.reject("it has neither an input nor the attribute 'type'");
  info.is_optional = true;
  c.output(0, info);
}

void optional_run(DynamicContext& c) { c.set(0, c.has_input(0) ? c.value(0) : ValueRef()); }

void pass_gradient(GradientContext& g) { g.set(0, g.dy(0)); }

ORTRAIN_OPERATOR({.type = "Optional",
                  .rules = {.gradient = pass_gradient, .types = optional_types},
                  .traits = {.since = 15, .takes_sequences = true},
                  .kernels = {.run = optional_run}});

void has_shape(ShapeContext& c) { c.value(0, Tensor::scalar(DType::kBool, c.has_input(0) ? 1 : 0)); }

void has_types(TypeContext& c) { c.output(0, DType::kBool, std::vector<Dim>{}); }

void has_run(DynamicContext& c) {
  *c.out(0, DType::kBool, {}).data<bool>() = c.has_input(0) && !c.value(0).is_nothing();
}

ORTRAIN_OPERATOR({.type = "OptionalHasElement",
                  .rules = {.shape = has_shape, .types = has_types, .element_type = always<DType::kBool>},
                  .traits = {.stops_gradient = true, .takes_sequences = true},
                  .kernels = {.run = has_run}});

void get_shape(ShapeContext& c) {
  c.expect(c.has_input(0), "the optional value is empty, so it has no element");
  shape_like_first(c);
}

Kernel get_kernel(KernelContext& c) {
  c.alias(0, 0);
  return nullptr;
}

void get_types(TypeContext& c) {
  ValueInfo info = c.input(0);
  info.is_optional = false;
  c.output(0, info);
}

void get_run(DynamicContext& c) {
  c.expect(!c.value(0).is_nothing(), "the optional value is empty, so it has no element");
  c.set(0, c.value(0));
}

ORTRAIN_OPERATOR({.type = "OptionalGetElement",
                  .rules = {.shape = get_shape, .gradient = pass_gradient, .types = get_types},
                  .traits = {.takes_sequences = true, .narrow_types = NarrowTypes::kPassthrough},
                  .kernels = {.cpu = get_kernel, .run = get_run}});

}  // namespace
}  // namespace ortrain
