// Gelu(x) = x · (1 + erf(x / √2)) / 2, D. Hendrycks and K. Gimpel, "Gaussian error linear units", 2016.
//
// Exporters write it as Div (or Mul), Erf, Add and two Muls, with the factors of the product in any order.
#include <algorithm>
#include <cmath>

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

// The factors of a product of x, 1 + erf and one half, in any grouping; empty if it is not such a product.
std::vector<std::string> factors(const Pattern& p, const Node& product) {
  std::vector<std::string> result = product.inputs;
  for (size_t side = 0; side < 2 && result.size() == 2; ++side) {
    const Node* inner = p.made_by(product.inputs[side], "Mul");
    if (!inner || p.uses(product.inputs[side]) != 1) continue;
    // Only the inner product with 1 + erf is split into factors; x may itself be a product.
    const bool has_half = p.other_than(*inner, 0.5).has_value();
    const bool other_is_half = p.is_scalar(product.inputs[1 - side], 0.5);
    if (has_half == other_is_half) continue;
    result = inner->inputs;
    result.push_back(product.inputs[1 - side]);
  }
  return result.size() == 3 ? result : std::vector<std::string>{};
}

std::optional<std::string> match(const Pattern& p, const Node& product) {
  if (!product.domain.empty() || product.op_type != "Mul") return std::nullopt;
  const std::vector<std::string> parts = factors(p, product);
  if (parts.empty()) return std::nullopt;
  for (const std::string& part : parts) {
    const Node* add = p.made_by(part, "Add");
    if (!add || p.uses(part) != 1) continue;
    const std::optional<std::string> erf = p.other_than(*add, 1.0);
    const std::optional<std::string> x = erf ? input_of_erf(p, *erf) : std::nullopt;
    if (!x) continue;
    const bool has_x = std::find(parts.begin(), parts.end(), *x) != parts.end();
    const bool has_half =
        std::any_of(parts.begin(), parts.end(), [&](const std::string& v) { return p.is_scalar(v, 0.5); });
    if (has_x && has_half) return x;
  }
  return std::nullopt;
}

}  // namespace

bool fuse_gelu(Model& model) {
  Graph& graph = model.graph;
  std::vector<std::pair<size_t, std::string>> found;  // the last node of the pattern, and x
  {
    const Pattern pattern(graph);
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      if (const auto x = match(pattern, graph.nodes[n])) found.emplace_back(n, *x);
  }
  for (const auto& [n, x] : found) {
    Node& last = graph.nodes[n];
    Node gelu{"com.microsoft", "Gelu", last.name.empty() ? "" : last.name + "/Gelu", {x}, last.outputs, {}};
    last = std::move(gelu);
  }
  if (found.empty()) return false;
  model.opsets.emplace("com.microsoft", 1);
  return true;
}

}  // namespace ortrain
