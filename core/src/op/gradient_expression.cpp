#include "op/gradient_expression.h"

#include <cstdint>

namespace ortrain {

Expression Expression::call(std::string_view type, NewAttributes attributes, std::string_view domain) const {
  return {*g_, (*g_)(type, {name_}, attributes, domain)};
}

Expression Expression::call(std::string_view type, const Expression& other, NewAttributes attributes,
                            std::string_view domain) const {
  return {*g_, (*g_)(type, {name_, other.name_}, attributes, domain)};
}

Expression Expression::number(double value) const { return {*g_, g_->scalar_like(name_, value)}; }

Expression Expression::as(const Expression& other) const {
  return call("Cast", {{"to", static_cast<int64_t>(g_->dtype(other.name_))}});
}

Expression Expression::choose(const Expression& yes, const Expression& no) const {
  return {*g_, (*g_)("Where", {name_, yes.name_, no.name_})};
}

Expression operator+(const Expression& a, const Expression& b) { return a.call("Add", b); }
Expression operator-(const Expression& a, const Expression& b) { return a.call("Sub", b); }
Expression operator*(const Expression& a, const Expression& b) { return a.call("Mul", b); }
Expression operator/(const Expression& a, const Expression& b) { return a.call("Div", b); }
Expression operator>(const Expression& a, const Expression& b) { return a.call("Greater", b); }
Expression operator<(const Expression& a, const Expression& b) { return a.call("Less", b); }
Expression operator&&(const Expression& a, const Expression& b) { return a.call("And", b); }
Expression operator+(const Expression& a, double b) { return a + a.number(b); }
Expression operator+(double a, const Expression& b) { return b.number(a) + b; }
Expression operator-(const Expression& a, double b) { return a - a.number(b); }
Expression operator-(double a, const Expression& b) { return b.number(a) - b; }
Expression operator*(const Expression& a, double b) { return a * a.number(b); }
Expression operator*(double a, const Expression& b) { return b.number(a) * b; }
Expression operator/(const Expression& a, double b) { return a / a.number(b); }
Expression operator/(double a, const Expression& b) { return b.number(a) / b; }
Expression operator>(const Expression& a, double b) { return a > a.number(b); }
Expression operator<(const Expression& a, double b) { return a < a.number(b); }
Expression operator-(const Expression& a) { return a.call("Neg"); }

}  // namespace ortrain
