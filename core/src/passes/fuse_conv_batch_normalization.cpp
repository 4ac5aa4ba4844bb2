// A convolution with constant weights and the BatchNormalization after it are one convolution:
//
//   (Conv(X, W, B) - mean) k + bias = Conv(X, k W, k (B - mean) + bias),   k = scale / √(variance + ε)
//
// This applies to the frozen parts of a network whose statistics no longer change.
#include <algorithm>
#include <cmath>

#include "op/opset.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

struct Found {
  size_t normalization;       // number of its node
  std::string conv;           // its output
  std::vector<Tensor> known;  // W, B or undefined, scale, bias, mean, variance
  double epsilon;
};

bool is_inference(const Node& node, int64_t opset) {
  if (node.int_or("training_mode", 0) != 0) return false;
  for (size_t o = 1; o < node.outputs.size(); ++o)
    if (node.has_output(o) && opset < since::kTrainingMode) return false;
  return node.outputs.size() == 1;
}

std::optional<Found> match(const Pattern& p, const Graph& graph, size_t n, int64_t opset) {
  const Node& node = graph.nodes[n];
  if (node.op_type != "BatchNormalization" || !node.domain.empty() || !is_inference(node, opset))
    return std::nullopt;
  const Node* conv = p.made_by(node.inputs.at(0), "Conv");
  if (!conv || p.uses(node.inputs[0]) != 1) return std::nullopt;
  Found found{n, node.inputs[0], {}, node.float_or("epsilon", 1e-5f)};
  const auto add = [&](const std::string& name) {
    const std::optional<Tensor> tensor = p.constant(name);
    // Weights of 16 bits would be rounded once more.
    const bool usable = tensor && is_floating(tensor->dtype()) && !is_half(tensor->dtype());
    if (usable) found.known.push_back(*tensor);
    return usable;
  };
  if (!add(conv->inputs.at(1))) return std::nullopt;
  if (!conv->has_input(2))
    found.known.emplace_back();
  else if (!add(conv->inputs[2]))
    return std::nullopt;
  for (size_t i = 1; i < 5; ++i)
    if (!add(node.inputs.at(i))) return std::nullopt;
  // The shape rules reject other sizes, but only when shapes are known.
  const Shape& weights = found.known[0].shape();
  for (size_t i = 1; i < found.known.size(); ++i)
    if (found.known[i].defined() && (weights.empty() || found.known[i].shape() != Shape{weights[0]}))
      return std::nullopt;
  return found;
}

// Tensors with the type and shape of `like` and the given values.
Tensor rounded(const Tensor& like, Shape shape, const std::vector<double>& values) {
  Tensor out(like.dtype(), std::move(shape));
  for (size_t i = 0; i < values.size(); ++i) {
    if (like.dtype() == DType::kDouble)
      out.data<double>()[i] = values[i];
    else
      out.data<float>()[i] = static_cast<float>(values[i]);
  }
  return out;
}

}  // namespace

bool fuse_conv_batch_normalization(Model& model) {
  Graph& graph = model.graph;
  std::vector<Found> found;
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto match_here = match(pattern, graph, n, model.opset("")))
        found.push_back(std::move(*match_here));
  }
  for (const Found& f : found) {
    const Tensor& weights = f.known[0];
    std::vector<double> w = weights.to_double();
    const std::vector<double> scale = f.known[2].to_double(), shift = f.known[3].to_double(),
                              mean = f.known[4].to_double(), variance = f.known[5].to_double();
    std::vector<double> bias =
        f.known[1].defined() ? f.known[1].to_double() : std::vector<double>(scale.size(), 0.0);
    const size_t filter = w.size() / std::max<size_t>(scale.size(), 1);
    for (size_t channel = 0; channel < scale.size(); ++channel) {
      const double k = scale[channel] / std::sqrt(variance[channel] + f.epsilon);
      for (size_t i = 0; i < filter; ++i) w[channel * filter + i] *= k;
      bias[channel] = (bias[channel] - mean[channel]) * k + shift[channel];
    }
    Node& normalization = graph.nodes[f.normalization];
    const std::string w_name = graph.unique_name(f.conv + "/weights"),
                      b_name = graph.unique_name(f.conv + "/bias");
    const auto conv = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
      return !node.outputs.empty() && node.outputs[0] == f.conv;
    });
    Node fused = *conv;
    fused.inputs = {conv->inputs[0], w_name, b_name};
    fused.outputs = {normalization.outputs[0]};
    normalization = std::move(fused);  // nothing reads the convolution itself any more
    graph.add_initializer(w_name, rounded(weights, weights.shape(), w));
    graph.add_initializer(b_name, rounded(weights, {static_cast<int64_t>(bias.size())}, bias));
  }
  return !found.empty();
}

}  // namespace ortrain
