// Helpers of the standard forms (op/standard_form.h) of operators that read an image between its pixels: the
// value at a point is Σ_k Π_axes weight_k X[pixel_k].
#pragma once

#include <string>
#include <vector>

#include "op/decomposition.h"

namespace ortrain {

// The t pixels of every point along one axis, each [N, P, t].
struct TapsForm {
  std::string index;       // int64, inside of the image
  std::string weight;      // 0 for a pixel outside that counts as zero
  std::string derivative;  // the derivative of the weight with respect to the coordinate; empty if it is zero
};

// Reads of X [N, C, d...], as nodes.
class SamplingForm {
 public:
  SamplingForm(DecompositionContext& e, const std::string& x, std::vector<TapsForm> axes);

  // dX from the gradients [N, C, P] of the points.
  std::string of_image(const std::string& dy) const;
  // The gradients of the coordinates, [N, P] for each axis.
  std::vector<std::string> of_coordinates(const std::string& dy) const;

 private:
  // Values [N, P, t] of axis d, shaped to broadcast with the values of the other axes: [N, P, 1, t, 1].
  std::string beside(const std::string& value, size_t d) const;
  // The product of the weights of all axes, with the derivative for axis `differentiated`: [N, P, all taps].
  std::string weights(size_t differentiated) const;
  std::string places_of_channels() const;

  DecompositionContext& e_;
  std::string x_, flat_, places_;
  std::vector<TapsForm> axes_;
};

}  // namespace ortrain
