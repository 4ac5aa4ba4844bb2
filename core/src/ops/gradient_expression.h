// Gradient rules and expansions as formulas: arithmetic on values of the graph, where each operation emits a
// node.
//
//     const Expression x = rule.x(0);
//     rule.g.set(0, dy / (1.0 + x * x));
#pragma once

#include <string>
#include <utility>

#include "graph/node_writer.h"

namespace ortrain {

// A value of the graph that is written. Plain numbers become constants of the other operand's type.
class Expression {
 public:
  Expression(NodeWriter& g, std::string name) : g_(&g), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  operator const std::string&() const { return name_; }

  // The node `type` with this value as its only input: x.call("Cos").
  Expression call(const std::string& type, const Attributes& attributes = {},
                  const std::string& domain = "") const {
    return {*g_, (*g_)(type, {name_}, attributes, domain)};
  }
  Expression call(const std::string& type, const Expression& other, const Attributes& attributes = {},
                  const std::string& domain = "") const {
    return {*g_, (*g_)(type, {name_, other.name_}, attributes, domain)};
  }
  // A constant of this value's type.
  Expression number(double value) const { return {*g_, g_->scalar_like(name_, value)}; }
  // A boolean (this) as 1 or 0 of the type of `other`.
  Expression as(const Expression& other) const {
    return call("Cast", {{"to", static_cast<int64_t>(g_->dtype(other.name_))}});
  }
  // Where this (a boolean) holds `yes`, elsewhere `no`.
  Expression choose(const Expression& yes, const Expression& no) const {
    return {*g_, (*g_)("Where", {name_, yes.name_, no.name_})};
  }

  friend Expression operator+(const Expression& a, const Expression& b) { return a.call("Add", b); }
  friend Expression operator-(const Expression& a, const Expression& b) { return a.call("Sub", b); }
  friend Expression operator*(const Expression& a, const Expression& b) { return a.call("Mul", b); }
  friend Expression operator/(const Expression& a, const Expression& b) { return a.call("Div", b); }
  friend Expression operator>(const Expression& a, const Expression& b) { return a.call("Greater", b); }
  friend Expression operator<(const Expression& a, const Expression& b) { return a.call("Less", b); }
  friend Expression operator&&(const Expression& a, const Expression& b) { return a.call("And", b); }
  friend Expression operator+(const Expression& a, double b) { return a + a.number(b); }
  friend Expression operator+(double a, const Expression& b) { return b.number(a) + b; }
  friend Expression operator-(const Expression& a, double b) { return a - a.number(b); }
  friend Expression operator-(double a, const Expression& b) { return b.number(a) - b; }
  friend Expression operator*(const Expression& a, double b) { return a * a.number(b); }
  friend Expression operator*(double a, const Expression& b) { return b.number(a) * b; }
  friend Expression operator/(const Expression& a, double b) { return a / a.number(b); }
  friend Expression operator/(double a, const Expression& b) { return b.number(a) / b; }
  friend Expression operator>(const Expression& a, double b) { return a > a.number(b); }
  friend Expression operator<(const Expression& a, double b) { return a < a.number(b); }
  friend Expression operator-(const Expression& a) { return a.call("Neg"); }

 private:
  NodeWriter* g_;
  std::string name_;
};

}  // namespace ortrain
