// The step of an optimizer as a formula: its declaration runs once with symbols in the place of numbers, and
// every operation is recorded as a node of ONNX. Models of the training step for other runtimes consist of
// these nodes, so that an optimizer is written once.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cpu/optimizer/rule.h"

namespace ortrain {

// A node of a formula by its index; a number if the index is negative.
struct FormulaOperand {
  int64_t node = -1;
  double number = 0;

  bool operator==(const FormulaOperand&) const = default;
};

struct FormulaNode {
  std::string op;     // of ONNX; empty: an input
  std::string input;  // its name: "rate", "step", a scalar, "w", "g" or a state
  std::vector<FormulaOperand> operands = {};

  bool operator==(const FormulaNode&) const = default;
};

struct Formula {
  std::vector<FormulaNode> nodes;
  size_t shared = 0;  // how many of them, the first ones, are the same for all parameters of a group
  std::vector<std::pair<std::string, FormulaOperand>> scalars, results;  // after the step: "w" and the states

  // The index of a node; an equal one is not added again.
  int64_t add(FormulaNode node);
};

// A number of a formula, or one that is known.
class Symbol {
 public:
  Symbol(double number = 0) : operand_{-1, number} {}
  Symbol(Formula& formula, const std::string& input)
      : formula_(&formula), operand_{formula.add({"", input}), 0} {}

  const FormulaOperand& operand() const { return operand_; }

  friend Symbol operator+(const Symbol& a, const Symbol& b);
  friend Symbol operator-(const Symbol& a, const Symbol& b);
  friend Symbol operator*(const Symbol& a, const Symbol& b);
  friend Symbol operator/(const Symbol& a, const Symbol& b);
  friend Symbol operator==(const Symbol& a, const Symbol& b);
  friend Symbol operator>(const Symbol& a, const Symbol& b);
  friend Symbol choose(const Symbol& condition, const Symbol& yes, const Symbol& no);
  friend Symbol sqrt(const Symbol& a);
  friend Symbol exp(const Symbol& a);
  friend Symbol abs(const Symbol& a);
  friend Symbol sign(const Symbol& a);
  friend Symbol max(const Symbol& a, const Symbol& b);
  friend Symbol larger(const Symbol& a, const Symbol& b) { return max(a, b); }
  friend Symbol smaller(const Symbol& a, const Symbol& b);
  friend Symbol power(double base, const Symbol& exponent);
  friend Symbol power(const Symbol& base, double exponent);
  friend Symbol one_minus_power(double base, const Symbol& exponent);
  friend Symbol at_least_normal(const Symbol& a);
  // Of all elements of a parameter.
  friend Symbol sum_of(const Symbol& a);
  friend Symbol mul_add(const Symbol& a, const Symbol& b, const Symbol& c) { return a * b + c; }
  friend Symbol neg_mul_add(const Symbol& a, const Symbol& b, const Symbol& c) { return c - a * b; }
  friend Symbol mix(const Symbol& average, const Symbol& x, const Symbol& kept) {
    return average * kept + x * (1 - kept);
  }
  friend Symbol mix_squares(const Symbol& average, const Symbol& x, const Symbol& kept) {
    return mix(average, x * x, kept);
  }

 private:
  bool is(double number) const { return operand_.node < 0 && operand_.number == number; }
  static Symbol node(const char* op, const std::vector<Symbol>& operands);
  // A node, or its value where all operands are known.
  template <typename F>
  static Symbol computed(const char* op, const std::vector<Symbol>& operands, F&& value);

  Formula* formula_ = nullptr;
  FormulaOperand operand_;
};

// What a declaration reads while it is recorded, as it reads OptimizerStep while it runs.
struct SymbolicStep {
  using Number = Symbol;

  const OptimizerRule& rule;
  const OptimizerValues& values;
  Symbol rate, step;
  std::vector<Symbol>& scalars;
  Symbol gradient_scale = 1;

  double operator[](std::string_view name) const;
  Symbol& scalar(std::string_view name) const;
};

template <class Rule>
[[gnu::cold]] void record_step(Formula& formula, const SymbolicStep& step,
                               const std::vector<std::string>& states) {
  struct {
    Symbol w, g;
    std::array<Symbol, Rule::kStates> s;
  } e;
  auto factors = Rule::factors(step);
  formula.shared = formula.nodes.size();
  e.w = Symbol(formula, "w");
  e.g = Symbol(formula, "g");
  for (size_t k = 0; k < Rule::kStates; ++k) e.s[k] = Symbol(formula, states.at(k));
  if constexpr (requires { Rule::kSums; }) {
    std::array<Symbol, Rule::kSums> sums;
    Rule::measure(e, factors, sums);
    for (Symbol& sum : sums) sum = sum_of(sum);
    Rule::combine(sums.data(), factors);
  }
  Rule::update(e, factors);
  formula.results.emplace_back("w", e.w.operand());
  for (size_t k = 0; k < Rule::kStates; ++k) formula.results.emplace_back(states[k], e.s[k].operand());
}

// The step of a group with these settings and a learning rate of `rate_factor` times that of the session.
Formula formula_of(const OptimizerRule& rule, const OptimizerPasses& passes, const OptimizerValues& values,
                   double rate_factor, const std::vector<std::string>& states);

}  // namespace ortrain
