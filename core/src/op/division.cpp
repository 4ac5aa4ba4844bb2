#include "op/division.h"

#include <algorithm>
#include <numeric>

#include "op/operator.h"

namespace ortrain {
namespace {

const DivisionRules* rules_of(const Node& node) { return OperatorFacts<DivisionRules>::find(node); }

}  // namespace

int64_t Division::length() const { return std::accumulate(sections.begin(), sections.end(), int64_t{0}); }

Division simplified(Division division) {
  std::vector<int64_t>& all = division.sections;
  const bool equal = std::all_of(all.begin(), all.end(), [&](int64_t one) { return one == all.front(); });
  if (all.size() > 1 && equal) {
    if (division.repeats > 0) division.repeats *= static_cast<int64_t>(all.size());
    all.erase(all.begin() + 1, all.end());
  }
  return division;
}

std::optional<NodeDivision> divide_positions(const DivisionQuery& q) {
  const Operator* op = find_operator(q.node.domain, q.node.op_type);
  if (!op || !op->traits.positions || q.output != 0) return std::nullopt;
  for (size_t o = 1; o < q.node.outputs.size(); ++o)
    if (q.node.has_output(o)) return std::nullopt;
  // Neither the first position nor the last, which inputs that are broadcast may have alone.
  const PositionQuery query{q.node, q.opset, q.inputs, q.dims(), q.wanted.axis, 1};
  const std::optional<InputPositions> found = op->traits.positions(query);
  if (!found || !found->integers.empty()) return std::nullopt;
  NodeDivision result{std::vector<std::optional<Division>>(q.inputs.size()), {q.wanted}};
  for (size_t i = 0; i < found->axes.size() && i < q.inputs.size(); ++i)
    if (found->axes[i] >= 0) result.inputs[i] = Division{found->axes[i], q.wanted.sections, q.wanted.repeats};
  return result;
}

NodeDivision divide_first(const DivisionQuery& q, int64_t axis) {
  NodeDivision result{std::vector<std::optional<Division>>(q.inputs.size()), {q.wanted}};
  result.inputs[0] = Division{axis, q.wanted.sections, q.wanted.repeats};
  return result;
}

std::optional<NodeDivision> divide(const DivisionQuery& query) {
  const DivisionRules* own = rules_of(query.node);
  return own && own->output ? own->output(query) : divide_positions(query);
}

std::optional<SummedAxes> summed_axes(const Node& node, int64_t left_rank, int64_t right_rank) {
  const DivisionRules* own = rules_of(node);
  return own && own->sum ? own->sum(node, left_rank, right_rank) : std::nullopt;
}

std::optional<ExtentPlace> place_of_extent(const Node& node, int64_t axis, int64_t rank) {
  const DivisionRules* own = rules_of(node);
  return own && own->extents ? std::optional(own->extents(node, axis, rank)) : std::nullopt;
}

bool adds_up_ranks(const Node& node) {
  const DivisionRules* own = rules_of(node);
  return own && own->adds_up_ranks;
}

}  // namespace ortrain
