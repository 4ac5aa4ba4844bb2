// Helpers of the standard forms (op/standard_form.h) of operators that read an image between its pixels: the
// value at a point is Σ_k Π_axes weight_k X[pixel_k].
#pragma once

#include <string>
#include <vector>

#include "op/decomposition.h"

namespace ortrain {

// The t pixels of every point along one axis, each [N, P, t].
struct TapsForm {
  Name index;       // int64, inside of the image
  Name weight;      // 0 for a pixel outside that counts as zero
  Name derivative;  // the derivative of the weight with respect to the coordinate; empty if it is zero
};

// Reads of X [N, C, d...], as nodes.
class SamplingForm {
 public:
  SamplingForm(DecompositionContext& e, Name x, std::vector<TapsForm> axes);

  // dX from the gradients [N, C, P] of the points.
  Name of_image(Name dy) const;
  // The gradients of the coordinates, [N, P] for each axis.
  Names of_coordinates(Name dy) const;

 private:
  // Values [N, P, t] of axis d, shaped to broadcast with the values of the other axes: [N, P, 1, t, 1].
  Name beside(Name value, size_t d) const;
  // The product of the weights of all axes, with the derivative for axis `differentiated`: [N, P, all taps].
  Name weights(size_t differentiated) const;
  Name places_of_channels() const;

  DecompositionContext& e_;
  Name x_, flat_, places_;
  std::vector<TapsForm> axes_;
};

}  // namespace ortrain
