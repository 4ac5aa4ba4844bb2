#include "geometry/conv_transpose.h"

#include <algorithm>

#include "runtime/checked.h"

namespace ortrain {
namespace {

// The windows over Y of a ConvTranspose with the given X and W.
Window read_windows(const NodeContext& c, const Shape& x, const Shape& w) {
  const size_t axes = x.size() - 2;
  const std::vector<int64_t> strides = read_axis_values(c, "strides", axes, 1, 1);
  const std::vector<int64_t> dilations = read_axis_values(c, "dilations", axes, 1, 1);
  const std::vector<int64_t> extra = read_axis_values(c, "output_padding", axes, 0, 0);
  const std::vector<int64_t> pads = read_axis_values(c, "pads", 2 * axes, 0, 0);
  const AutoPad auto_pad = read_auto_pad(c);
  const bool same = auto_pad == AutoPad::kUpper || auto_pad == AutoPad::kLower;
  std::vector<int64_t> wanted = c.node().ints_or("output_shape", {});
  // Some exporters write batch and channels to output_shape too.
  if (wanted.size() == axes + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  c.expect(wanted.empty() || wanted.size() == axes, "attribute output_shape must have ",
           counted(axes, "value"), ", found ", to_string(wanted));
  Window window(axes);
  for (size_t i = 0; i < axes; ++i) {
    WindowAxis& a = window[i];
    a.output = x[2 + i];
    a.kernel = w[2 + i];
    a.stride = strides[i];
    a.dilation = dilations[i];
    c.expect(a.output >= 1, "axis ", 2 + i, " of its input X ", to_string(x), " is empty");
    const auto stretched = checked_product({a.output, a.stride});
    const int64_t full =
        stretched ? checked_sum({*stretched, -a.stride, a.span(), extra[i]}).value_or(-1) : -1;
    c.expect(full >= 0 && full <= kMaxStep, "axis ", 2 + i, " of its result would be too long: X has shape ",
             to_string(x), ", the stride is ", a.stride, " and a window spans ",
             counted(a.span(), "element"));
    if (!wanted.empty() || same) {
      a.input = wanted.empty() ? a.output * a.stride : wanted[i];
      // If the result is larger than the windows reach, the padding is 0, not negative: the elements beyond
      // are zero.
      a.pad(std::max<int64_t>(0, full - a.input), auto_pad);
    } else {
      if (auto_pad != AutoPad::kValid) {
        a.before = pads[i];
        a.after = pads[axes + i];
      }
      a.input = full - a.before - a.after;
    }
    c.expect(a.input <= kMaxStep, "axis ", 2 + i, " of its result would have ", counted(a.input, "element"),
             ", the most that are supported are ", kMaxStep);
    c.expect(a.input >= 1, "axis ", 2 + i, " of its result would have ", counted(a.input, "element"),
             ": padding ", a.before, " and ", a.after, " leave nothing of ", full);
  }
  return window;
}

}  // namespace

Transposed::Transposed(const NodeContext& c, size_t x_at, size_t w_at)
    : x(c.shape(x_at)), w(c.shape(w_at)), groups(read_groups(c)) {
  check_convolution_axes(c, x, w);
  c.expect(c.dtype(x_at) == c.dtype(w_at), "X and W must have the same type, found ",
           to_string(c.dtype(x_at)), " and ", to_string(c.dtype(w_at)));
  c.expect(w[0] == x[1], "its input X ", to_string(x), " has ", counted(x[1], "channel"),
           ", but the weights W ", to_string(w), " take ", w[0]);
  c.expect(x[1] % groups == 0, "the ", counted(x[1], "channel"), " of X ", to_string(x),
           agreeing(x[1], " is", " are"), " not divisible into ", counted(groups, "group"));
  read_kernel(c, w);
  window = read_windows(c, x, w);
  const auto channels = checked_product({w[1], groups});
  c.expect(channels.has_value(), "attribute group is too large, found ", groups);
  y = {x[0], *channels};
  for (const WindowAxis& a : window) y.push_back(a.input);
}

}  // namespace ortrain
