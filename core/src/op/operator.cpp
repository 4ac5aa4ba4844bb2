#include "op/operator.h"

#include <algorithm>
#include <map>

namespace ortrain {

namespace {

using Key = std::pair<std::string_view, std::string_view>;

std::map<Key, Operator>& registry() {
  static std::map<Key, Operator> operators;
  return operators;
}

}  // namespace

RegisterOperator::RegisterOperator(const Operator& op) { registry().emplace(Key{op.domain, op.type}, op); }

const Operator* find_operator(std::string_view domain, std::string_view type) {
  const auto found = registry().find(Key{domain, type});
  return found == registry().end() ? nullptr : &found->second;
}

std::vector<const Operator*> all_operators() {
  std::vector<const Operator*> out;
  for (const auto& [key, op] : registry()) out.push_back(&op);
  return out;
}

const Tensor& NodeContext::need_constant(size_t i) const {
  expect(has_input(i), "input ", i, " is missing");
  if (const Tensor* value = constant(i)) return *value;
  throw DataDependent(
      ErrorCode::kNotImplemented,
      concat(node_.label(), ": input ", i, " ('", node_.inputs[i],
             "') decides the shape of the result, but its value is only known while the model runs"),
      node_.inputs[i]);
}

void NodeContext::reject_dtype(size_t i) const {
  fail(ErrorCode::kNotImplemented, node_.label(), ": input ", i, " ('", node_.inputs[i], "') has type ",
       to_string(dtype(i)), ", which this operator does not take");
}

void shape_like_first(ShapeContext& c) { c.output(0, c.dtype(0), c.shape(0)); }

}  // namespace ortrain
