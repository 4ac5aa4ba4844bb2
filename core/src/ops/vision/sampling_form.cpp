#include "ops/vision/sampling_form.h"

#include <utility>

#include "ops/common/decomposed.h"

namespace ortrain {

SamplingForm::SamplingForm(DecompositionContext& e, Name x, std::vector<TapsForm> axes)
    : e_(e), x_(x), flat_(e("Reshape", {x, e.int64s({0, 0, -1})})), axes_(std::move(axes)) {
  for (size_t d = 0; d < axes_.size(); ++d) {
    const Name index = beside(axes_[d].index, d);
    if (d == 0) {
      places_ = index;
      continue;
    }
    const auto axis = static_cast<int64_t>(d) + 2;
    places_ = e("Add", {e("Mul", {places_, dims_of(e, x, axis, axis + 1)}), index});
  }
  places_ = e("Reshape", {places_, e.int64s({0, 1, -1})});  // [N, 1, P taps]
}

Name SamplingForm::beside(Name value, size_t d) const {
  std::vector<int64_t> others;
  for (size_t i = 0; i < axes_.size(); ++i)
    if (i != d) others.push_back(static_cast<int64_t>(i) + 2);
  return others.empty() ? value : e_.unsqueeze(value, others);
}

Name SamplingForm::weights(size_t differentiated) const {
  Name product;
  for (size_t d = 0; d < axes_.size(); ++d) {
    const Name factor = beside(d == differentiated ? axes_[d].derivative : axes_[d].weight, d);
    product = product.empty() ? factor : e_("Mul", {product, factor});
  }
  return e_("Reshape", {product, e_.int64s({0, 0, -1})});
}

Name SamplingForm::places_of_channels() const {
  const Name shape = e_("Concat", {dims_of(e_, flat_, 0, 2), e_.int64s({1})}, {{"axis", int64_t{0}}});
  return e_("Expand", {places_, shape});
}

Name SamplingForm::of_image(Name dy) const {
  const Name parts = e_("Mul", {e_.unsqueeze(dy, {3}), e_.unsqueeze(weights(axes_.size()), {1})});
  const Name zeros = e_("Expand", {e_.scalar_like(dy, 0), e_("Shape", {flat_})});
  const Name sums =
      e_("ScatterElements", {zeros, places_of_channels(), e_("Reshape", {parts, e_.int64s({0, 0, -1})})},
         {{"axis", int64_t{2}}, {"reduction", std::string("add")}});
  return e_("Reshape", {sums, e_("Shape", {x_})});
}

Names SamplingForm::of_coordinates(Name dy) const {
  const Name read = e_("GatherElements", {flat_, places_of_channels()}, {{"axis", int64_t{2}}});
  const Name points = e_("Concat", {e_("Shape", {dy}), e_.int64s({-1})}, {{"axis", int64_t{0}}});
  const Name products = e_.reduce_sum(e_("Mul", {e_("Reshape", {read, points}), e_.unsqueeze(dy, {3})}), {1},
                                      false);  // [N, P, taps]
  Names gradients;
  for (size_t d = 0; d < axes_.size(); ++d)
    gradients.push_back(e_.reduce_sum(e_("Mul", {products, weights(d)}), {2}, false));
  return gradients;
}

}  // namespace ortrain
