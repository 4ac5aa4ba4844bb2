#include "backend/cpu/optimizer/formula.h"

#include <algorithm>
#include <limits>

#include "runtime/error.h"

namespace ortrain {

int64_t Formula::add(FormulaNode node) {
  const auto found = std::find(nodes.begin(), nodes.end(), node);
  if (found != nodes.end()) return found - nodes.begin();
  nodes.push_back(std::move(node));
  return static_cast<int64_t>(nodes.size()) - 1;
}

Symbol Symbol::node(const char* op, const std::vector<Symbol>& operands) {
  FormulaNode made{op, ""};
  Symbol result;
  for (const Symbol& operand : operands) {
    if (operand.formula_ != nullptr) result.formula_ = operand.formula_;
    made.operands.push_back(operand.operand_);
  }
  result.operand_.node = result.formula_->add(std::move(made));
  return result;
}

template <typename F>
Symbol Symbol::computed(const char* op, const std::vector<Symbol>& operands, F&& value) {
  const auto known = [](const Symbol& x) { return x.operand_.node < 0; };
  if (!std::all_of(operands.begin(), operands.end(), known)) return node(op, operands);
  if constexpr (requires { value(0.0, 0.0); })
    return value(operands[0].operand_.number, operands[1].operand_.number);
  else
    return value(operands[0].operand_.number);
}

Symbol operator+(const Symbol& a, const Symbol& b) {
  if (a.is(0)) return b;
  if (b.is(0)) return a;
  return Symbol::computed("Add", {a, b}, [](double x, double y) { return x + y; });
}

Symbol operator-(const Symbol& a, const Symbol& b) {
  if (b.is(0)) return a;
  return Symbol::computed("Sub", {a, b}, [](double x, double y) { return x - y; });
}

Symbol operator*(const Symbol& a, const Symbol& b) {
  if (a.is(0) || b.is(0)) return 0;
  if (a.is(1)) return b;
  if (b.is(1)) return a;
  return Symbol::computed("Mul", {a, b}, [](double x, double y) { return x * y; });
}

Symbol operator/(const Symbol& a, const Symbol& b) {
  if (a.is(0)) return 0;
  if (b.is(1)) return a;
  return Symbol::computed("Div", {a, b}, [](double x, double y) { return x / y; });
}

Symbol operator==(const Symbol& a, const Symbol& b) {
  return Symbol::computed("Equal", {a, b}, [](double x, double y) { return x == y ? 1.0 : 0.0; });
}

Symbol operator>(const Symbol& a, const Symbol& b) {
  return Symbol::computed("Greater", {a, b}, [](double x, double y) { return x > y ? 1.0 : 0.0; });
}

Symbol choose(const Symbol& condition, const Symbol& yes, const Symbol& no) {
  if (condition.operand_.node < 0) return condition.is(0) ? no : yes;
  if (yes.operand_ == no.operand_) return yes;
  return Symbol::node("Where", {condition, yes, no});
}

Symbol sqrt(const Symbol& a) {
  return Symbol::computed("Sqrt", {a}, [](double x) { return std::sqrt(x); });
}

Symbol exp(const Symbol& a) {
  return Symbol::computed("Exp", {a}, [](double x) { return std::exp(x); });
}

Symbol abs(const Symbol& a) {
  return Symbol::computed("Abs", {a}, [](double x) { return std::abs(x); });
}

Symbol sign(const Symbol& a) {
  return Symbol::computed("Sign", {a}, [](double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0; });
}

Symbol max(const Symbol& a, const Symbol& b) {
  return Symbol::computed("Max", {a, b}, [](double x, double y) { return std::max(x, y); });
}

Symbol smaller(const Symbol& a, const Symbol& b) {
  return Symbol::computed("Min", {a, b}, [](double x, double y) { return std::min(x, y); });
}

Symbol power(double base, const Symbol& exponent) {
  return base == 0 ? Symbol(0) : exp(exponent * std::log(base));
}

Symbol power(const Symbol& base, double exponent) {
  if (exponent == 0) return 1;
  if (exponent == 1) return base;
  if (exponent == 2) return base * base;
  return Symbol::computed("Pow", {base, exponent}, [](double x, double y) { return std::pow(x, y); });
}

// 1 - base^exponent without cancellation in float: with a = exponent ln(base) / 2, it is -2 exp(a) sinh(a).
Symbol one_minus_power(double base, const Symbol& exponent) {
  if (base == 0) return 1;
  const Symbol half = exponent * (0.5 * std::log(base));
  return -2 * (exp(half) * Symbol::computed("Sinh", {half}, [](double x) { return std::sinh(x); }));
}

Symbol at_least_normal(const Symbol& a) {
  return max(a, static_cast<double>(std::numeric_limits<float>::min()));
}

Symbol sum_of(const Symbol& a) {
  const FormulaNode& last = a.formula_->nodes.at(static_cast<size_t>(a.operand_.node));
  const bool is_square = last.op == "Mul" && last.operands[0] == last.operands[1];
  if (!is_square) return Symbol::node("ReduceSum", {a});
  Symbol root = a;
  root.operand_ = last.operands[0];
  return Symbol::node("ReduceSumSquare", {root});
}

double SymbolicStep::operator[](std::string_view name) const {
  return static_cast<double>(values.settings.at(rule.setting(name)));
}

Symbol& SymbolicStep::scalar(std::string_view name) const { return scalars.at(rule.scalar(name)); }

Formula formula_of(const OptimizerRule& rule, const OptimizerPasses& passes, const OptimizerValues& values,
                   double rate_factor, const std::vector<std::string>& states) {
  Formula formula;
  std::vector<Symbol> scalars;
  for (const ScalarDeclaration& scalar : rule.scalars) scalars.emplace_back(formula, scalar.name);
  const Symbol rate = Symbol(formula, "rate") * rate_factor;
  passes.record(formula, {rule, values, rate, Symbol(formula, "step"), scalars}, states);
  for (size_t i = 0; i < scalars.size(); ++i)
    formula.scalars.emplace_back(rule.scalars[i].name, scalars[i].operand());
  return formula;
}

}  // namespace ortrain
