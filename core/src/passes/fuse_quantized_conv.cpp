// A convolution between dequantized and quantized values is a convolution of the codes:
//
//   QuantizeLinear(Relu(Conv(DequantizeLinear(x), DequantizeLinear(W), B)))  →  QLinearConv(x, W, B)
//
// with constant W, scales and bias. Relu and Clip bound the codes, since quantization keeps the order of
// values. The bias is rounded to steps of the product of the scales of x and W, which are much smaller than a
// step of the result. Only for sessions that do not train: the convolution itself is never computed.
#include <algorithm>
#include <limits>

#include "op/session_domain.h"
#include "passes/dequantized.h"
#include "passes/passes.h"

namespace ortrain {
namespace {

struct Found {
  size_t last;  // number of the QuantizeLinear
  Node conv;
  Dequantized x, w, y;
  std::vector<int32_t> bias;  // empty: none
  int32_t lowest, highest;    // codes of y
};

struct Bounds {
  double low = -std::numeric_limits<double>::infinity(), high = -low;
};

// The code that QuantizeLinear gives for v.
int32_t code_of(double v, const Dequantized& y) {
  const bool is_signed = y.dtype == DType::kInt8;
  const double q = std::nearbyint(static_cast<double>(static_cast<float>(v) / y.scales[0])) +
                   static_cast<double>(y.zeros[0]);
  return static_cast<int32_t>(std::clamp(q, is_signed ? -128.0 : 0.0, is_signed ? 127.0 : 255.0));
}

// The convolution whose result `node` bounds, if it is a Relu or Clip; `node` itself if it is another node.
// Null if the bounds are not constant, or if the convolution has other readers.
const Node* skip_bounds(const Pattern& p, const Node* node, Bounds& bounds) {
  if (!node->domain.empty()) return nullptr;
  if (node->op_type == "Relu") {
    bounds.low = 0;
  } else if (node->op_type == "Clip") {
    const auto read = [&](size_t i, const char* name, double& bound) {
      if (node->has(name)) bound = static_cast<double>(node->float_or(name, 0));
      if (!node->has_input(i)) return true;
      const std::optional<double> given = p.scalar(node->inputs[i]);
      if (given) bound = *given;
      return given.has_value();
    };
    if (!read(1, "min", bounds.low) || !read(2, "max", bounds.high) || !(bounds.low <= bounds.high))
      return nullptr;
  } else {
    return node;
  }
  return p.uses(node->inputs.at(0)) == 1 ? p.made_by(node->inputs[0], "Conv") : nullptr;
}

// Reads the bias in steps of the sums. False if the bias is not constant, or if sums may not fit in 32 bits.
bool read_bias(const Pattern& p, const Graph& graph, const Tensor& w, Found& found) {
  const int64_t filters = w.shape()[0];
  const double largest = 255.0 * 255.0 * static_cast<double>(w.size() / filters), limit = 2147483647.0;
  if (largest >= limit) return false;
  if (!found.conv.has_input(2)) return true;
  const std::optional<std::vector<double>> bias = constant_numbers(p, graph, found.conv.inputs[2]);
  if (!bias || static_cast<int64_t>(bias->size()) != filters) return false;
  for (size_t f = 0; f < bias->size(); ++f) {
    const double steps = std::nearbyint((*bias)[f] / (found.x.scale(0) * found.w.scale(f)));
    if (!(std::abs(steps) + largest < limit)) return false;
    found.bias.push_back(static_cast<int32_t>(steps));
  }
  return true;
}

// The quantization that `node` does, if it is a QuantizeLinear with a single scale.
std::optional<Dequantized> quantized(const Pattern& p, const Node& node) {
  if (!node.domain.empty() || node.op_type != "QuantizeLinear") return std::nullopt;
  if (static_cast<DType>(node.int_or("precision", static_cast<int64_t>(DType::kFloat))) != DType::kFloat)
    return std::nullopt;
  auto dtype = static_cast<DType>(node.int_or("output_dtype", 0));
  if (node.has_input(2)) {
    const std::optional<Tensor> zero = p.constant(node.inputs[2]);
    if (!zero) return std::nullopt;
    dtype = zero->dtype();
  } else if (dtype == DType::kUndefined) {
    dtype = DType::kUInt8;
  }
  std::optional<Dequantized> y = is_byte(dtype) ? read_scales(p, node, dtype) : std::nullopt;
  return y && y->scales.size() == 1 ? y : std::nullopt;
}

std::optional<Found> match(const Pattern& p, const Graph& graph, size_t n) {
  const Node& node = graph.nodes[n];
  const std::optional<Dequantized> y = quantized(p, node);
  if (!y || p.uses(node.inputs[0]) != 1) return std::nullopt;
  const Node* conv = nullptr;
  for (const char* type : {"Conv", "Relu", "Clip"})
    if (!conv) conv = p.made_by(node.inputs[0], type);
  Bounds bounds;
  if (conv) conv = skip_bounds(p, conv, bounds);
  if (!conv) return std::nullopt;
  const std::optional<Dequantized> x = dequantized_bytes(p, graph, conv->inputs.at(0)),
                                   w = dequantized(p, graph, conv->inputs.at(1));
  if (!x || !w || !is_byte(w->dtype)) return std::nullopt;
  const std::optional<Tensor> codes = p.constant(w->codes);
  if (!codes || codes->shape().size() < 3 || codes->size() == 0 ||
      !w->along(0, static_cast<int64_t>(codes->shape().size())))
    return std::nullopt;
  if (w->scales.size() > 1 && static_cast<int64_t>(w->scales.size()) != codes->shape()[0])
    return std::nullopt;
  Found found{n, *conv, *x, *w, *y, {}, code_of(bounds.low, *y), code_of(bounds.high, *y)};
  return read_bias(p, graph, *codes, found) ? std::optional(std::move(found)) : std::nullopt;
}

void replace(Graph& graph, Found& f) {
  Node& last = graph.nodes[f.last];
  const std::string base = last.outputs[0];
  const auto [x_scale, x_zero] = add_scales(graph, f.x, base + "/x");
  const auto [w_scale, w_zero] = add_scales(graph, f.w, base + "/w");
  const auto [y_scale, y_zero] = add_scales(graph, f.y, base + "/y");
  Node fused = std::move(f.conv);
  fused.op_type = "QLinearConv";
  fused.inputs = {f.x.codes, x_scale, x_zero, f.w.codes, w_scale, w_zero, y_scale, y_zero};
  if (!f.bias.empty()) {
    Tensor bias(DType::kInt32, {static_cast<int64_t>(f.bias.size())});
    std::copy(f.bias.begin(), f.bias.end(), bias.data<int32_t>());
    fused.inputs.push_back(graph.unique_name(base + "/bias"));
    graph.add_initializer(fused.inputs.back(), std::move(bias));
  }
  const double infinity = std::numeric_limits<double>::infinity();
  if (f.lowest > code_of(-infinity, f.y) || f.highest < code_of(infinity, f.y)) {
    fused.domain = kSessionDomain;
    fused.attributes["lowest"] = int64_t{f.lowest};
    fused.attributes["highest"] = int64_t{f.highest};
  }
  fused.outputs = {last.outputs[0]};
  last = std::move(fused);
}

}  // namespace

bool fuse_quantized_conv(Model& model) { return replace_matches(model.graph, match, replace); }

}  // namespace ortrain
