// SeparableConv (ortrain.session): a depthwise convolution with the pointwise convolutions before and after
// it. passes/fuse_separable_conv.cpp creates it.
#pragma once

#include <limits>

#include "geometry/convolution.h"

namespace ortrain {

// The inputs: X, then the weights and the bias of each convolution. The first or the last convolution may be
// left out.
inline constexpr size_t kSeparableFirst = 1, kSeparableMiddle = 3, kSeparableLast = 5, kSeparableInputs = 7;

// The attribute with the bounds to which the three convolutions clip their results: a lower and an upper
// bound for each convolution, in their order.
inline constexpr const char* kSeparableBounds = "bounds";

// The shapes of a node; its other attributes are the attributes of the depthwise convolution.
struct SeparableShapes {
  Shape x, expanded, y;               // `expanded`: the input of the depthwise convolution
  int64_t channels = 0, filters = 0;  // of the first and the last convolution, 0 if it is left out
  Window window;

  explicit SeparableShapes(const NodeContext& c) : x(c.shape(0)), expanded(x) {
    const Shape& w = c.shape(kSeparableMiddle);
    c.expect(x.size() == 4 && w.size() == 4, "X and the weights must have 4 axes, found ", to_string(x),
             " and ", to_string(w));
    if (c.has_input(kSeparableFirst)) {
      channels = x[1], expanded[1] = w[0];
      check_pointwise(c, kSeparableFirst, channels, w[0]);
    }
    window = read_convolution(c, expanded, w);
    c.expect(c.node().int_or("group", 1) == w[0] && w[1] == 1, "the middle convolution must be depthwise");
    if (c.has_input(kSeparableLast)) {
      filters = c.shape(kSeparableLast).empty() ? 0 : c.shape(kSeparableLast)[0];
      check_pointwise(c, kSeparableLast, w[0], filters);
    }
    y = output_shape(x[0], filters > 0 ? filters : w[0], window);
  }

 private:
  static void check_pointwise(const NodeContext& c, size_t i, int64_t channels, int64_t filters) {
    c.expect(c.shape(i) == Shape{filters, channels, 1, 1} && filters > 0, "the weights of input ", i,
             " must have shape ", to_string(Shape{filters, channels, 1, 1}), ", found ",
             to_string(c.shape(i)));
  }
};

// The activation of convolution i (0, 1 or 2) of a node.
inline Activation separable_activation(const NodeContext& c, size_t i) {
  const auto at = c.node().attributes.find(kSeparableBounds);
  const auto* bounds =
      at == c.node().attributes.end() ? nullptr : std::get_if<std::vector<float>>(&at->second);
  c.expect(bounds && bounds->size() == 6, "attribute ", kSeparableBounds, " must hold six floats");
  return {Activation::Kind::kClip, (*bounds)[2 * i], (*bounds)[2 * i + 1]};
}

}  // namespace ortrain
