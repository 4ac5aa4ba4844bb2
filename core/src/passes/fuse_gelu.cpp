// Gelu(x) = x · (1 + erf(x / √2)) / 2, D. Hendrycks and K. Gimpel, "Gaussian error linear units", 2016.
//
// Exporters write it as Div (or Mul), Erf, Add and two Muls, with the factors of the product in any order.
// Its approximation, x · (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2, becomes FastGelu.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "op/operator.h"
#include "passes/passes.h"
#include "passes/pattern.h"

namespace ortrain {
namespace {

// x, where `value` is erf(x / √2) and nothing else reads the values in between.
std::optional<std::string> input_of_erf(const Pattern& p, const std::string& value) {
  const Node* erf = p.made_by(value, "Erf");
  if (!erf || p.uses(value) != 1) return std::nullopt;
  const std::string& scaled = erf->inputs.at(0);
  if (p.uses(scaled) != 1) return std::nullopt;
  if (const Node* div = p.made_by(scaled, "Div")) {
    if (p.is_scalar(div->inputs.at(1), std::sqrt(2.0))) return div->inputs[0];
  } else if (const Node* mul = p.made_by(scaled, "Mul")) {
    return p.other_than(*mul, std::sqrt(0.5));
  }
  return std::nullopt;
}

// x, where `value` is x³ and nothing else reads the values in between.
std::optional<std::string> base_of_cube(const Pattern& p, const std::string& value) {
  if (p.uses(value) != 1) return std::nullopt;
  if (const Node* pow = p.made_by(value, "Pow"))
    return p.is_scalar(pow->inputs.at(1), 3) ? std::optional(pow->inputs[0]) : std::nullopt;
  const Node* product = p.made_by(value, "Mul");
  if (!product) return std::nullopt;
  for (size_t side = 0; side < 2; ++side) {
    const std::string &x = product->inputs[1 - side], &squared = product->inputs[side];
    const Node* square = p.uses(squared) == 1 ? p.made_by(squared, "Mul") : nullptr;
    if (square && square->inputs[0] == x && square->inputs[1] == x) return x;
  }
  return std::nullopt;
}

// x, where `value` is tanh(√(2/π) (x + 0.044715 x³)) and nothing else reads the values in between.
std::optional<std::string> input_of_tanh(const Pattern& p, const std::string& value) {
  const Node* tanh = p.made_by(value, "Tanh");
  const Node* scaled = tanh && p.uses(value) == 1 ? p.made_by(tanh->inputs.at(0), "Mul") : nullptr;
  if (!scaled || p.uses(tanh->inputs[0]) != 1) return std::nullopt;
  const auto argument = p.other_than(*scaled, std::sqrt(2 / std::numbers::pi));
  const Node* sum = argument && p.uses(*argument) == 1 ? p.made_by(*argument, "Add") : nullptr;
  if (!sum) return std::nullopt;
  for (size_t side = 0; side < 2; ++side) {
    const std::string &x = sum->inputs[1 - side], &term = sum->inputs[side];
    const Node* product = p.uses(term) == 1 ? p.made_by(term, "Mul") : nullptr;
    const auto cube = product ? p.other_than(*product, 0.044715) : std::nullopt;
    if (cube && base_of_cube(p, *cube) == x) return x;
  }
  return std::nullopt;
}

struct Gelu {
  std::string_view op_type;
  std::string x;
};

// The factors of a product of x, 1 + erf (or tanh) and one half, in any grouping; empty if it is not such a
// product.
std::vector<std::string> factors(const Pattern& p, const Node& product) {
  std::vector<std::string> result = product.inputs;
  for (size_t side = 0; side < 2 && result.size() == 2; ++side) {
    const Node* inner = p.made_by(product.inputs[side], "Mul");
    if (!inner || p.uses(product.inputs[side]) != 1) continue;
    // Only the inner product with this sum is split into factors; x may itself be a product.
    const bool has_half = p.other_than(*inner, 0.5).has_value();
    const bool other_is_half = p.is_scalar(product.inputs[1 - side], 0.5);
    if (has_half == other_is_half) continue;
    result = inner->inputs;
    result.push_back(product.inputs[1 - side]);
  }
  return result.size() == 3 ? result : std::vector<std::string>{};
}

std::optional<Gelu> match(const Pattern& p, const Node& product) {
  if (!product.domain.empty() || product.op_type != "Mul") return std::nullopt;
  const std::vector<std::string> parts = factors(p, product);
  if (parts.empty()) return std::nullopt;
  for (const std::string& part : parts) {
    const Node* add = p.made_by(part, "Add");
    if (!add || p.uses(part) != 1) continue;
    const std::optional<std::string> curve = p.other_than(*add, 1.0);
    if (!curve) continue;
    const bool has_tanh = p.made_by(*curve, "Tanh") != nullptr;
    const std::optional<std::string> x = has_tanh ? input_of_tanh(p, *curve) : input_of_erf(p, *curve);
    const std::string_view op_type = has_tanh ? "FastGelu" : "Gelu";
    if (!x || !is_built(kMicrosoft, op_type)) continue;
    const bool has_x = std::find(parts.begin(), parts.end(), *x) != parts.end();
    const bool has_half =
        std::any_of(parts.begin(), parts.end(), [&](const std::string& v) { return p.is_scalar(v, 0.5); });
    if (has_x && has_half) return Gelu{op_type, *x};
  }
  return std::nullopt;
}

}  // namespace

bool fuse_gelu(Model& model) {
  Graph& graph = model.graph;
  std::vector<std::pair<size_t, Gelu>> found;  // by the last node of the pattern
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (auto gelu = match(pattern, graph.nodes[n])) found.emplace_back(n, std::move(*gelu));
  }
  for (const auto& [n, gelu] : found) {
    Node& last = graph.nodes[n];
    last.domain = kMicrosoft;
    last.op_type = gelu.op_type;
    if (!last.name.empty()) last.name += concat("/", gelu.op_type);
    last.inputs = {gelu.x};
    last.attributes.clear();
  }
  if (found.empty()) return false;
  model.opsets.emplace(kMicrosoft, 1);
  return true;
}

}  // namespace ortrain
