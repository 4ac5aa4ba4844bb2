// Windows in standard forms: the attributes of the windows of Conv, ConvTranspose and pooling, completed by
// the shapes that the model states.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "op/decomposition.h"

namespace ortrain {

// One spatial axis of a node with windows.
struct WindowForm {
  int64_t kernel, stride, dilation, before, after;
  std::optional<int64_t> input, output;  // sizes, if the model states them

  int64_t span() const { return (kernel - 1) * dilation + 1; }
};

// The dimensions of a value, as far as the model states them.
using Dims = std::optional<std::vector<Dim>>;

// The axes of the current node. `input`: the shape of the value under the windows; `output`: the shape of the
// value with one element per window; both are [N, C, spatial...]. `kernel`: the sizes of a window, unless the
// node states them. Rejects the node if auto_pad needs sizes that are not known.
std::vector<WindowForm> windows_of(const DecompositionContext& e, const Dims& input, const Dims& output,
                                   const std::vector<int64_t>& kernel);

// The sizes of the spatial axes of weights [., ., kernel...]; rejects the node if they are not known.
std::vector<int64_t> kernel_of(const DecompositionContext& e, const std::string& weights);

// For each element of dY, adds the element times the weights [C of dY, C of the result / groups, kernel...]
// to the elements of its window. The result has the spatial shape of `like`, [N, ., spatial...].
Name spread_windows(DecompositionContext& e, const std::vector<WindowForm>& windows, Name dy, Name weights,
                    int64_t groups, Name like);

// Like spread_windows(), for one group, as a convolution of dY with the filters turned around. Returns an
// empty name if that is not likely to be faster. The matrix products of ConvTranspose have as many columns as
// a sample has windows, so they are slow for many channels of few elements.
Name spread_by_convolution(DecompositionContext& e, const std::vector<WindowForm>& windows, Name dy,
                           Name weights);

// The gradient of the weights of a convolution of `x` whose result has the gradient `dy`: [C of dY, C of X /
// groups, kernel...].
Name weight_gradient(DecompositionContext& e, const std::vector<WindowForm>& windows, Name dy, Name x,
                     int64_t groups);

}  // namespace ortrain
