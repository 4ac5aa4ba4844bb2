// Sliding windows, shared by convolution and pooling: their positions and number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "op/operator.h"
#include "runtime/shape.h"

namespace ortrain {

// Attribute auto_pad.
enum class AutoPad { kNone, kValid, kUpper, kLower };

// One spatial axis. Element k of window o reads input element o * stride + k * dilation - before.
struct WindowAxis {
  int64_t input = 1;     // size of the input
  int64_t output = 1;    // number of windows
  int64_t kernel = 1;    // elements of a window
  int64_t stride = 1;    // between the first elements of two windows
  int64_t dilation = 1;  // between two elements of a window
  int64_t before = 0;    // padding before the input
  int64_t after = 0;     // padding after the input, as the node states it

  // From the first to after the last element of a window.
  int64_t span() const { return (kernel - 1) * dilation + 1; }
  // Pads by `total` elements; if `total` is odd, the larger half is before the input unless auto_pad is
  // SAME_UPPER.
  void pad(int64_t total, AutoPad auto_pad) {
    before = auto_pad == AutoPad::kUpper ? total / 2 : total - total / 2;
    after = total - before;
  }
  // The padding after the input that the last window actually reaches: more than `after` if the number of
  // windows is rounded up, less (even negative) if it is rounded down.
  int64_t reach() const { return (output - 1) * stride + span() - input - before; }
};

using Window = std::vector<WindowAxis>;

// The largest kernel, stride, dilation and padding that a node may state: kernels hold them in 32 bits, and
// their products and sums fit in 64.
inline constexpr int64_t kMaxStep = INT32_MAX;

// The `count` values of an attribute of windows, or `count` times `otherwise` if the node does not have the
// attribute. Rejects other counts, and values outside [smallest, kMaxStep].
std::vector<int64_t> read_axis_values(const NodeContext& c, const char* name, size_t count, int64_t otherwise,
                                      int64_t smallest);

AutoPad read_auto_pad(const NodeContext& c);

// Attribute group, at least 1.
int64_t read_groups(const NodeContext& c);

// Rejects X and W of a convolution that do not have the same number of axes, or that have too few or too many
// axes.
void check_convolution_axes(const NodeContext& c, const Shape& x, const Shape& w);

// The kernel that the weights [., ., kernel...] have; rejects a kernel_shape that differs.
std::vector<int64_t> read_kernel(const NodeContext& c, const Shape& w);

// Rejects values of the attributes of windows, and of group, that are invalid for all inputs. Shape rules
// call this function first (see check_signatures()).
void check_window_attributes(const NodeContext& c);

// The windows of a node over an input [N, C, spatial...] from the attributes kernel_shape (or `kernel` if it
// is not empty), strides, dilations, pads, auto_pad and ceil_mode. Rejects attributes that do not fit the
// input.
Window read_window(const NodeContext& c, const Shape& input, const std::vector<int64_t>& kernel = {});

// The windows of a convolution of the given X [N, C, spatial...] and W [M, C / group, kernel...]. Rejects
// shapes and attributes that do not fit.
Window read_convolution(const NodeContext& c, const Shape& x, const Shape& w);

// Like read_window(), for gradients of pooling, whose input is dY: `output`, the shape of dY, gives the
// number of windows. The sizes of the pooled input are `stated` or, if they are not, follow from the number
// of windows. Rejects the node if more than one size is possible.
Window read_window_from_output(const NodeContext& c, const Shape& output, const std::vector<int64_t>& stated);

// [N, C, number of windows...]
Shape output_shape(int64_t batch, int64_t channels, const Window& window);

// Three spatial axes: axes of size 1 are prepended, so that one loop nest handles one to three dimensions.
Window three_axes(const Window& window);

}  // namespace ortrain
