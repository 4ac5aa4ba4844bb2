#include "ops/control/control_flow.h"

#include <algorithm>

#include "ops/control/sequence.h"

namespace ortrain {

const Graph& subgraph_of(const Node& node, const std::string& attribute) {
  const auto found = node.attributes.find(attribute);
  const auto* graph =
      found == node.attributes.end() ? nullptr : std::get_if<std::shared_ptr<Graph>>(&found->second);
  require(graph && *graph, ErrorCode::kInvalidGraph, node.label(), ": attribute '", attribute,
          "' is missing or not a graph");
  return **graph;
}

std::string body_fault(const Node& node, size_t inputs, size_t outputs) {
  const Graph& body = subgraph_of(node, "body");
  if (body.inputs.size() == inputs && body.outputs.size() >= outputs) return "";
  return concat("its body must have ", counted(inputs, "input"), " and at least ", counted(outputs, "output"),
                ", found ", body.inputs.size(), " and ", body.outputs.size());
}

ValueInfo either(const ValueInfo& a, const ValueInfo& b) {
  ValueInfo result = a;
  if (a.dtype == DType::kUndefined) result.dtype = b.dtype;
  result.is_sequence = a.is_sequence || b.is_sequence;
  result.is_optional = a.is_optional || b.is_optional;
  if (!a.dims || !b.dims || a.dims->size() != b.dims->size()) {
    result.dims.reset();
    return result;
  }
  for (size_t d = 0; d < a.dims->size(); ++d)
    if (!(*a.dims)[d].same((*b.dims)[d])) (*result.dims)[d] = Dim{};
  return result;
}

CarriedTypes carried_types(TypeContext& c, const std::string& attribute, std::vector<ValueInfo> inputs,
                           size_t first, size_t count, size_t first_result) {
  // A dimension that changes in an iteration is unknown. Other dimensions may depend on it, so the types of
  // the body are computed again until no dimension changes. After a few rounds, shapes that still change are
  // unknown.
  constexpr int kRounds = 3;
  CarriedTypes types;
  for (int round = 0; round <= kRounds; ++round) {
    types.results = c.body(attribute, inputs);
    require(types.results.size() >= first_result + count, ErrorCode::kInvalidGraph, c.node().label(),
            ": its body must have at least ", counted(first_result + count, "output"), ", found ",
            types.results.size());
    types.carried.clear();
    bool settled = true;
    for (size_t k = 0; k < count; ++k) {
      ValueInfo& in = inputs.at(first + k);
      ValueInfo both = either(in, types.results.at(first_result + k));
      const bool same = both.dims == in.dims;
      settled &= same;
      if (!same && round + 1 >= kRounds) both.dims.reset();
      if (both.dims && !both.is_sequence)
        for (Dim& dim : *both.dims)
          if (!dim.known() && dim.symbol.empty()) dim = c.unknown();
      in = both;
      types.carried.push_back(std::move(both));
    }
    if (settled) break;
  }
  return types;
}

std::string add_zeros(SubgraphContext& s, Graph& graph, const std::string& like, const ValueInfo& info) {
  return info.is_sequence ? zeros_like_sequence(writer_of(s, graph), like, info.dtype)
                          : add_zeros_like(s, graph, like, info.dtype);
}

Shape stacked(const Shape& slice, int64_t count, size_t axis) {
  Shape shape = slice;
  shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(axis), count);
  return shape;
}

void stack_nothing(DynamicContext& c, size_t o, const ValueInfo& slice, size_t axis) {
  Shape shape;
  for (const Dim& dim : slice.dims.value_or(std::vector<Dim>{}))
    shape.push_back(std::max<int64_t>(dim.value, 0));
  c.out(o, slice.dtype == DType::kUndefined ? DType::kFloat : slice.dtype,
        stacked(shape, 0, std::min(axis, shape.size())));
}

}  // namespace ortrain
