// The formulas of an optimizer model.
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "backend/cpu/optimizer/formula.h"
#include "backend/cpu/optimizer/rule.h"
#include "capi/generated/bodies.h"
#include "capi/handles.h"
#include "capi/json.h"
#include "op/signature.h"
#include "session/optimizer.h"

namespace ortrain::capi {

namespace {

// A node by its index, or a number in a list of one.
std::string operand_text(const FormulaOperand& operand) {
  if (operand.node >= 0) return concat(operand.node);
  require(std::isfinite(operand.number), ErrorCode::kInvalidArgument,
          "the formula of an optimizer has a number that is not finite; are its settings in their ranges?");
  char text[40];
  std::snprintf(text, sizeof text, "[%.17g]", operand.number);
  return text;
}

std::string described_settings(const ParameterGroup& group, const OptimizerRule& rule) {
  std::string text;
  for (size_t i = 0; i < rule.settings.size(); ++i)
    text += concat(i == 0 ? "" : ", ", json_text(rule.settings[i].name), ": ",
                   json_number(group.values.settings[i]));
  return "{" + text + "}";
}

std::string described(const ParameterGroup& group, const Formula& formula, const OptimizerRule& rule) {
  const auto node = [](const FormulaNode& n) {
    if (n.op.empty()) return concat("{\"input\": ", json_text(n.input), "}");
    return concat("{\"op\": ", json_text(n.op), ", \"inputs\": ", json_list(n.operands, operand_text), "}");
  };
  const auto result = [](const std::pair<std::string, FormulaOperand>& r) {
    return concat("[", json_text(r.first), ", ", operand_text(r.second), "]");
  };
  const auto scalar = [](const ScalarDeclaration& s) {
    return concat("[", json_text(s.name), ", ", json_number(s.value), "]");
  };
  return concat(
      "{\"name\": ", json_text(group.name), ", \"parameters\": ", json_list(group.parameters, json_text),
      ", \"rate_factor\": ", json_number(group.learning_rate_factor),
      ", \"settings\": ", described_settings(group, rule), ", \"scalars\": ", json_list(rule.scalars, scalar),
      ", \"shared\": ", formula.shared, ", \"nodes\": ", json_list(formula.nodes, node),
      ", \"scalars_after\": ", json_list(formula.scalars, result),
      ", \"results\": ", json_list(formula.results, result), "}");
}

}  // namespace

void GetOptimizerFormulas(const void* model_data, size_t model_length, OrtAllocator* allocator, char** out) {
  const Optimizer optimizer(load_model(model_data, model_length, "optimizer model"));
  const std::optional<float> limit = optimizer.norm_limit();
  const auto group = [&](const ParameterGroup& g) {
    return described(g, optimizer.formula(g), optimizer.rule());
  };
  *out = copy_text(allocator, concat("{\"optimizer\": ", json_text(optimizer.rule().name),
                                     ", \"max_norm\": ", limit ? json_number(*limit) : "null",
                                     ", \"states\": ", json_list(optimizer.state_names(), json_text),
                                     ", \"groups\": ", json_list(optimizer.groups(), group), "}"));
}

}  // namespace ortrain::capi
