// Gradient rules and decompositions as formulas: arithmetic on values of the graph, where each operation
// emits a node.
//
//     const Expression x = rule.x(0);
//     rule.g.set(0, dy / (1.0 + x * x));
#pragma once

#include <string>
#include <string_view>

#include "op/node_writer.h"

namespace ortrain {

// A value of the graph being written. Plain numbers become constants of the other operand's type.
class Expression {
 public:
  Expression(NodeWriter& g, Name name) : g_(&g), name_(name) {}

  Name name() const { return name_; }
  operator Name() const { return name_; }
  operator const std::string&() const { return name_; }

  // The node `type` with this value as its only input: x.call("Cos").
  Expression call(std::string_view type, NewAttributes attributes = {}, std::string_view domain = "") const;
  Expression call(std::string_view type, const Expression& other, NewAttributes attributes = {},
                  std::string_view domain = "") const;
  // A constant of this value's type.
  Expression number(double value) const;
  // A boolean (this) as 1 or 0 of the type of `other`.
  Expression as(const Expression& other) const;
  // `yes` where this (a boolean) is true, elsewhere `no`.
  Expression choose(const Expression& yes, const Expression& no) const;

  friend Expression operator+(const Expression& a, const Expression& b);
  friend Expression operator-(const Expression& a, const Expression& b);
  friend Expression operator*(const Expression& a, const Expression& b);
  friend Expression operator/(const Expression& a, const Expression& b);
  friend Expression operator>(const Expression& a, const Expression& b);
  friend Expression operator<(const Expression& a, const Expression& b);
  friend Expression operator&&(const Expression& a, const Expression& b);
  friend Expression operator+(const Expression& a, double b);
  friend Expression operator+(double a, const Expression& b);
  friend Expression operator-(const Expression& a, double b);
  friend Expression operator-(double a, const Expression& b);
  friend Expression operator*(const Expression& a, double b);
  friend Expression operator*(double a, const Expression& b);
  friend Expression operator/(const Expression& a, double b);
  friend Expression operator/(double a, const Expression& b);
  friend Expression operator>(const Expression& a, double b);
  friend Expression operator<(const Expression& a, double b);
  friend Expression operator-(const Expression& a);

 private:
  NodeWriter* g_;
  Name name_;
};

}  // namespace ortrain
