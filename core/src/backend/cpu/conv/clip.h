// Activations as bounds, which kernels apply to sums before they store them.
#pragma once

#include <limits>

#include "geometry/convolution.h"

namespace ortrain {

struct Clip {
  float low = -std::numeric_limits<float>::infinity(), high = std::numeric_limits<float>::infinity();
  bool complete = true;  // otherwise the activation is more than that, and follows in a second pass
};

inline Clip clip_of(const Activation& activation) {
  using Kind = Activation::Kind;
  Clip clip;
  switch (activation.kind) {
    case Kind::kNone:
      break;
    case Kind::kRelu:
      clip.low = 0;
      break;
    case Kind::kClip:
      clip.low = activation.a, clip.high = activation.b;
      break;
    default:
      clip.complete = false;
  }
  return clip;
}

}  // namespace ortrain
