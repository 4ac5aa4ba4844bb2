#include "op/operator.h"

#include <algorithm>

#include "op/custom.h"
#include "runtime/registry.h"

namespace ortrain {

namespace {

using Key = std::pair<std::string_view, std::string_view>;  // domain and type

Registry<Key, Operator>& registry() {
  static Registry<Key, Operator> operators;
  return operators;
}

}  // namespace

RegisterOperator::RegisterOperator(void (*describe)(Operator&), SourcePlace where) {
  Operator op;
  describe(op);
  registry().add({op.domain, op.type}, op,
                 concat("operator '", op.domain, op.domain.empty() ? "" : ".", op.type, "'"), where);
}

DType element_type(const Operator& op, const ElementTypes& types, size_t o) {
  if (op.rules.element_type) return op.rules.element_type(types, o);
  size_t first = 0;  // the gradient of the first output may be missing
  while (first < types.node().inputs.size() && !types.node().has_input(first)) ++first;
  return types[first];
}

void infer_shapes(const Operator& op, ShapeContext& c) {
  try {
    op.rules.shape(c);
  } catch (const DataDependent&) {
    throw;
  } catch (const Error& error) {
    const std::string label = c.node().label();
    if (error.message().find(label) != std::string::npos) throw;
    fail(error.code(), label, ": ", error.message());
  }
}

const Operator* find_operator(std::string_view domain, std::string_view type) {
  const Operator* op = registry().find({domain, type});
  return op ? op : find_custom_operator(domain, type);
}

bool runs_once(const Node& node) {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (op && (op->traits.impure || op->traits.updates != 0)) return true;
  for (const auto& [name, attribute] : node.attributes)
    if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute); graph && *graph)
      if (std::any_of((*graph)->nodes.begin(), (*graph)->nodes.end(), runs_once)) return true;
  return false;
}

std::vector<const Operator*> all_operators() {
  std::vector<const Operator*> out;
  registry().each([&](const Operator& op) { out.push_back(&op); });
  return out;
}

const Tensor& NodeContext::need_constant(size_t i) const {
  expect(has_input(i), "input ", i, " is missing");
  if (const Tensor* value = constant(i)) return *value;
  throw DataDependent(
      ErrorCode::kNotImplemented,
      concat(node_.label(), ": input ", i, " ('", node_.inputs[i],
             "') determines the shape of the result, but its value is only known while the model runs"),
      node_.inputs[i]);
}

void NodeContext::reject_with(const char* kinds, ...) const {
  va_list parts;
  va_start(parts, kinds);
  const std::string reason = concat_list(kinds, parts);
  va_end(parts);
  fail(ErrorCode::kInvalidGraph, node_.label(), ": ", reason);
}

void NodeContext::reject_dtype(size_t i) const {
  fail(ErrorCode::kNotImplemented, node_.label(), ": input ", i, " ('", node_.inputs[i], "') has type ",
       to_string(dtype(i)), ", which this operator does not accept");
}

void shape_like_first(ShapeContext& c) { c.output(0, c.dtype(0), c.shape(0)); }

}  // namespace ortrain
