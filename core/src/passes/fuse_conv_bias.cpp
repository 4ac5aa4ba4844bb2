// A constant that is added to each channel of a convolution becomes the bias of the convolution. Some
// exporters write the bias as a separate addition. Without the addition, the result keeps the layout of the
// convolution, and the nodes after it can be fused too.
#include <algorithm>

#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

struct Found {
  size_t sum;  // numbers of the nodes
  size_t conv;
  Tensor bias;                  // of any shape with one element per filter
  std::optional<Tensor> given;  // the bias that the convolution has
};

// Whether a constant of the given shape has one element for each filter, along the channel axis of a result
// with `axes` axes.
bool is_by_channel(const Shape& shape, int64_t filters, size_t axes) {
  if (shape.size() + 1 < axes || shape.size() > axes) return false;
  const size_t channel = shape.size() - (axes - 1);
  for (size_t i = 0; i < shape.size(); ++i)
    if (shape[i] != (i == channel ? filters : 1)) return false;
  return true;
}

std::optional<Found> match(const Pattern& p, const Graph& graph, size_t n) {
  const Node& sum = graph.nodes[n];
  if (sum.op_type != "Add" || !sum.domain.empty() || sum.inputs.size() != 2) return std::nullopt;
  for (const size_t i : {0, 1}) {
    const Node* conv = p.made_by(sum.inputs[i], "Conv");
    if (!conv || p.uses(sum.inputs[i]) != 1) continue;
    const std::optional<Tensor> weights = p.constant(conv->inputs.at(1)),
                                bias = p.constant(sum.inputs[1 - i]);
    if (!weights || !bias || weights->shape().size() < 3 || bias->dtype() != weights->dtype()) continue;
    if (!is_floating(bias->dtype()) || is_half(bias->dtype())) continue;
    if (!is_by_channel(bias->shape(), weights->shape()[0], weights->shape().size())) continue;
    Found found{n, static_cast<size_t>(conv - graph.nodes.data()), *bias, std::nullopt};
    if (conv->has_input(2)) {
      found.given = p.constant(conv->inputs[2]);
      // The shape rule rejects other biases, but only when shapes are known.
      if (!found.given || found.given->dtype() != bias->dtype() ||
          found.given->shape() != Shape{weights->shape()[0]})
        continue;
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace

bool fuse_conv_bias(Model& model) {
  Graph& graph = model.graph;
  std::vector<Found> found;
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto match_here = match(pattern, graph, n)) found.push_back(std::move(*match_here));
  }
  for (const Found& f : found) {
    Tensor bias(f.bias.dtype(), {f.bias.size()});
    visit_floating(bias.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < bias.size(); ++i)
        bias.data<T>()[i] = f.bias.data<T>()[i] + (f.given ? f.given->data<T>()[i] : T(0));
    });
    Node& sum = graph.nodes[f.sum];
    const std::string name = graph.unique_name(sum.outputs[0] + "/bias");
    Node fused = graph.nodes[f.conv];
    fused.inputs.resize(3);
    fused.inputs[2] = name;
    fused.outputs = {sum.outputs[0]};
    sum = std::move(fused);  // nothing reads the convolution itself any more
    graph.add_initializer(name, bias);
  }
  return !found.empty();
}

}  // namespace ortrain
