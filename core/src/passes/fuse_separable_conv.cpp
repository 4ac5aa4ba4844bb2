// A depthwise convolution and the pointwise convolutions around it become one node, which never stores the
// values between the convolutions:
//
//   Conv(1x1) → Conv(depthwise) → Conv(1x1)  →  SeparableConv      one of the pointwise ones may be missing
//
// The weights must be constant: their shapes tell depthwise from pointwise convolutions, and gradients of
// trained weights would read the values between the convolutions.
#include <limits>

#include "geometry/separable_convolution.h"
#include "op/operator.h"
#include "op/session_domain.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

// The largest sizes, strides and other steps of a window that the pass fuses; useful models have smaller
// ones.
constexpr int64_t kLargestKernel = 16, kLargestStride = 8, kLargestStep = 1 << 12;

bool is_conv(const Node& node) {
  return node.domain.empty() ? node.op_type == "Conv"
                             : node.domain == kMicrosoft && node.op_type == "FusedConv";
}

// The bounds to which a convolution clips its results; nothing if its activation does more than that.
std::optional<std::pair<float, float>> bounds_of(const Node& conv) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Activation activation = read_activation(conv);
  switch (activation.kind) {
    case Activation::Kind::kNone:
      return std::pair(-kInfinity, kInfinity);
    case Activation::Kind::kRelu:
      return std::pair(0.0f, kInfinity);
    case Activation::Kind::kClip:
      return std::pair(activation.a, activation.b);
    default:
      return std::nullopt;
  }
}

// The weights of a convolution over images that this pass can fuse, else nothing.
std::optional<Shape> weights_of(const Pattern& p, const Node& node) {
  if (!is_conv(node) || node.inputs.size() < 2 || node.has_input(3) || !bounds_of(node)) return std::nullopt;
  const std::optional<Tensor> w = p.constant(node.inputs[1]);
  if (!w || w->dtype() != DType::kFloat || w->shape().size() != 4 || w->size() == 0) return std::nullopt;
  return w->shape();
}

bool is_pointwise(const Pattern& p, const Node& node) {
  const std::optional<Shape> w = weights_of(p, node);
  const std::string pad = node.string_or("auto_pad", "NOTSET");
  const auto all = [&](const char* name, int64_t value) {
    for (const int64_t v : node.ints_or(name, {}))
      if (v != value) return false;
    return true;
  };
  return w && (*w)[2] == 1 && (*w)[3] == 1 && node.int_or("group", 1) == 1 && all("strides", 1) &&
         all("pads", 0) && (pad == "NOTSET" || pad == "VALID");
}

bool is_depthwise(const Pattern& p, const Node& node) {
  const std::optional<Shape> w = weights_of(p, node);
  if (!w || (*w)[1] != 1 || node.int_or("group", 1) != (*w)[0]) return false;
  const auto up_to = [&](const char* name, int64_t most) {
    for (const int64_t v : node.ints_or(name, {}))
      if (v > most) return false;
    return true;
  };
  return (*w)[2] <= kLargestKernel && (*w)[3] <= kLargestKernel && up_to("strides", kLargestStride) &&
         up_to("dilations", kLargestStep) && up_to("pads", kLargestStep);
}

// The nodes of a block by number; SIZE_MAX: there is no such convolution.
struct Block {
  size_t first = SIZE_MAX, middle = SIZE_MAX, last = SIZE_MAX;
};

Node fused(const Graph& graph, const Block& block) {
  const Node& middle = graph.nodes[block.middle];
  Node out = middle;
  out.domain = kSessionDomain;
  out.op_type = "SeparableConv";
  out.inputs.assign(kSeparableInputs, "");
  out.inputs[0] = middle.inputs[0];
  std::vector<float> bounds;
  const auto add = [&](size_t number, size_t at) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (number == SIZE_MAX) return (void)bounds.insert(bounds.end(), {-kInfinity, kInfinity});
    const Node& conv = graph.nodes[number];
    const auto [low, high] = *bounds_of(conv);
    bounds.insert(bounds.end(), {low, high});
    out.inputs[at] = conv.inputs[1];
    if (conv.has_input(2)) out.inputs[at + 1] = conv.inputs[2];
  };
  add(block.first, kSeparableFirst);
  add(block.middle, kSeparableMiddle);
  add(block.last, kSeparableLast);
  if (block.first != SIZE_MAX) out.inputs[0] = graph.nodes[block.first].inputs[0];
  if (block.last != SIZE_MAX) out.outputs = graph.nodes[block.last].outputs;
  out.attributes.erase("activation");
  out.attributes.erase("activation_params");
  out.attributes[kSeparableBounds] = std::move(bounds);
  return out;
}

}  // namespace

bool fuse_separable_conv(Model& model) {
  Graph& graph = model.graph;
  std::vector<Block> found;
  {
    const Pattern pattern(graph);
    std::unordered_map<std::string, size_t> producer, reader;  // of values with one reader
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      for (const std::string& output : node.outputs) producer[output] = n;
      if (!node.inputs.empty() && pattern.uses(node.inputs[0]) == 1) reader[node.inputs[0]] = n;
    }
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (!is_depthwise(pattern, node)) continue;
      Block block{.middle = n};
      const auto before = producer.find(node.inputs[0]);
      if (before != producer.end() && pattern.uses(node.inputs[0]) == 1 &&
          is_pointwise(pattern, graph.nodes[before->second]))
        block.first = before->second;
      const auto after = reader.find(node.outputs.at(0));
      if (after != reader.end() && is_pointwise(pattern, graph.nodes[after->second]))
        block.last = after->second;
      if (block.first != SIZE_MAX || block.last != SIZE_MAX) found.push_back(block);
    }
  }
  std::vector<bool> taken(graph.nodes.size());
  bool changed = false;
  for (Block block : found) {
    // A pointwise convolution between two depthwise ones belongs to the first of them.
    if (block.first != SIZE_MAX && taken[block.first]) block.first = SIZE_MAX;
    if (block.first == SIZE_MAX && block.last == SIZE_MAX) continue;
    Node node = fused(graph, block);
    for (const size_t n : {block.first, block.middle, block.last})
      if (n != SIZE_MAX) taken[n] = true;
    graph.nodes[block.last != SIZE_MAX ? block.last : block.middle] = std::move(node);
    changed = true;
  }
  if (changed) model.opsets.emplace(kSessionDomain, 1);
  return changed;
}

}  // namespace ortrain
