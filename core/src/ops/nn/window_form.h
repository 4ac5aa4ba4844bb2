// Windows in standard forms: what Conv, ConvTranspose and pooling state about their windows, completed by
// what the model states about shapes.
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

// The axes of the current node. `input` and `output`: the values that the windows are taken of, and that have
// one element per window; both are [N, C, spatial...]. `kernel`: the sizes of a window, unless the node
// states them. Rejects the node if auto_pad needs sizes that are not known.
std::vector<WindowForm> windows_of(const DecompositionContext& e, const Dims& input, const Dims& output,
                                   const std::vector<int64_t>& kernel);

// The sizes of the spatial axes of weights [., ., kernel...]; rejects the node if they are not known.
std::vector<int64_t> kernel_of(const DecompositionContext& e, const std::string& weights);

// Adds up what each window holds: dY's elements times the weights [C of dY, C of the result / groups,
// kernel...], at the places of the window. The result has the spatial shape of `like`, [N, ., spatial...].
std::string spread_windows(DecompositionContext& e, const std::vector<WindowForm>& windows,
                           const std::string& dy, const std::string& weights, int64_t groups,
                           const std::string& like);

// The same for one group, as a convolution of dY with the filters turned around, if that is likely to be
// faster; else an empty name. The matrix products of ConvTranspose have as many columns as a sample has
// windows, so that they are slow for many channels of few elements.
std::string spread_by_convolution(DecompositionContext& e, const std::vector<WindowForm>& windows,
                                  const std::string& dy, const std::string& weights);

// The gradient of the weights of a convolution of `x` whose result has the gradient `dy`: [C of dY, C of X /
// groups, kernel...].
std::string weight_gradient(DecompositionContext& e, const std::vector<WindowForm>& windows,
                            const std::string& dy, const std::string& x, int64_t groups);

}  // namespace ortrain
