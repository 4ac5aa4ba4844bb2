// InstanceNormalization, GroupNormalization and their gradient operator GroupNormalizationGrad
// (com.microsoft).
//
// In each image, h = (x - mean) s with s = 1 / sqrt(var + epsilon) over all elements of a group of channels,
// y = scale h + bias. Instances are groups of one channel. Scale and bias have one value per channel, or, as
// in version 18 of GroupNormalization, one per group. D. Ulyanov et al., "Instance normalization", 2016; Y.
// Wu, K. He, "Group normalization", 2018.
#include "backend/cpu/norm/group_normalization_kernels.h"
#include "op/decomposition.h"
#include "op/gradient_expression.h"
#include "ops/common/decomposed.h"

namespace ortrain {
namespace {

// GroupNormalization needs its number of groups; instances are groups of one channel.
template <bool Instances>
void shape(ShapeContext& c) {
  c.expect(Instances || c.node().has("num_groups"), "attribute num_groups is required but missing");
  NormalizedGroups(c, 0, 1);
  c.expect(c.shape(2) == c.shape(1) && c.dtype(2) == c.dtype(1), "the bias must match scale, ",
           to_string(c.dtype(1)), to_string(c.shape(1)), ", found ", to_string(c.dtype(2)),
           to_string(c.shape(2)));
  c.output(0, c.dtype(0), c.shape(0));
}

DType grad_types(const ElementTypes& types, size_t o) { return types[o == 0 ? 1 : 2]; }

// GroupNormalizationGrad(dY, X, scale) → dX, dscale, dbias.
void grad_shape(ShapeContext& c) {
  c.expect(c.dtype(0) == c.dtype(1) && c.shape(0) == c.shape(1),
           "dY must have the type and shape of X, found ", to_string(c.dtype(0)), to_string(c.shape(0)),
           " and ", to_string(c.dtype(1)), to_string(c.shape(1)));
  NormalizedGroups(c, 1, 2);
  c.output(0, c.dtype(1), c.shape(1));
  for (size_t o = 1; o < 3; ++o) c.output(o, c.dtype(2), c.shape(2));
}

void gradient(GradientContext& g) {
  Attributes attributes = {{"epsilon", g.node().float_or("epsilon", 1e-5f)}};
  if (g.node().has("num_groups")) attributes["num_groups"] = g.node().int_or("num_groups", 1);
  const auto gradients =
      g.emit("GroupNormalizationGrad", {g.dy(0), g.x(0), g.x(1)}, 3, attributes, kMicrosoft);
  for (size_t i = 0; i < 3; ++i)
    if (g.needs(i)) g.set(i, gradients[i]);
}

// The formula of the gradient as separate operators, over X as [batch, groups, channels of a group,
// points...].
void decompose_grad(DecompositionContext& e) {
  const int64_t rank = need_rank(e, e.x(1));
  const int64_t channels = rank < 2 ? -1 : (*e.dims(e.x(1)))[1].value;
  const auto parameters = e.dims(e.x(2));
  const int64_t groups = e.node().int_or("num_groups", channels);
  if (channels < 0 || groups < 1 || channels % groups != 0 || !parameters || parameters->size() != 1 ||
      !parameters->front().known())
    e.reject("for its derivative, the channels of X and the size of scale must be known");
  const bool by_group = parameters->front().value != channels;
  const int64_t each = channels / groups;
  const Name shape = e("Shape", {e.x(1)});
  Names parts = {dims_of(e, e.x(1), 0, 1), e.int64s({groups, each})};
  if (rank > 2) parts.push_back(dims_of(e, e.x(1), 2, kToTheLast));
  const Name grouped = e("Concat", parts, {{"axis", int64_t{0}}});
  const auto apart = [&](Name value) { return Expression(e, reshape_to(e, value, grouped)); };
  std::vector<int64_t> of_parameter(static_cast<size_t>(rank + 1), 1), of_group, repeated = {0};
  of_parameter[1] = groups, of_parameter[2] = by_group ? 1 : each;
  for (int64_t i = 2; i <= rank; ++i) {
    of_group.push_back(i);
    if (i > 2 || by_group) repeated.push_back(i);
  }
  const auto mean = [&](const Expression& v) {
    return Expression(e, reduce(e, "ReduceMean", v, of_group, true));
  };
  const auto total = [&](const Expression& v) {
    return e("Reshape", {e.reduce_sum(v, repeated, false), e.int64s({by_group ? groups : channels})});
  };
  const Expression dy = apart(e.x(0)), x = apart(e.x(1));
  const Expression scale(e, e("Reshape", {e.x(2), e.int64s(of_parameter)}));
  const Expression centred = x - mean(x);
  const Expression s =
      1.0 / (mean(centred * centred) + static_cast<double>(e.node().float_or("epsilon", 1e-5f))).call("Sqrt");
  const Expression h = centred * s, g = dy * scale;
  e.set(0, reshape_to(e, s * (g - mean(g) - h * mean(g * h)), shape));
  if (e.has_y(1)) e.set(1, total(dy * h));
  if (e.has_y(2)) e.set(2, total(dy));
}

ORTRAIN_OPERATOR({.type = "InstanceNormalization",
                  .rules = {.shape = shape<true>, .gradient = gradient},
                  .kernels = {.cpu = group_normalization}});
ORTRAIN_OPERATOR({.type = "GroupNormalization",
                  .rules = {.shape = shape<false>, .gradient = gradient},
                  .kernels = {.cpu = group_normalization}});
ORTRAIN_OPERATOR({.domain = kMicrosoft,
                  .type = "GroupNormalizationGrad",
                  .signature = "dY, X, scale -> dX, dscale, dbias",
                  .rules = {.shape = grad_shape, .decompose = decompose_grad, .element_type = grad_types},
                  .kernels = {.cpu = group_normalization_grad}});

}  // namespace
}  // namespace ortrain
