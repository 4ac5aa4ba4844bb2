// How a node is divided among processes, for any operator: its rule is looked up, and an operator without a
// rule whose positions are independent is divided along an axis. The rules of single operators are in
// partition_rules.cpp.
#include "legacy/partition.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "op/operator.h"

namespace ortrain {
namespace {

const PartitionRules* rules_of(const Node& node) { return OperatorFacts<PartitionRules>::find(node); }

}  // namespace

int64_t Partition::length() const { return std::accumulate(sections.begin(), sections.end(), int64_t{0}); }

Partition simplified(Partition partition) {
  std::vector<int64_t>& all = partition.sections;
  const bool equal = std::all_of(all.begin(), all.end(), [&](int64_t one) { return one == all.front(); });
  if (all.size() > 1 && equal) {
    if (partition.repeats > 0) partition.repeats *= static_cast<int64_t>(all.size());
    all.erase(all.begin() + 1, all.end());
  }
  return partition;
}

std::optional<NodePartition> partition_positions(const PartitionQuery& q) {
  const Operator* op = find_operator(q.node.domain, q.node.op_type);
  if (!op || !op->traits.positions || q.output != 0) return std::nullopt;
  for (size_t o = 1; o < q.node.outputs.size(); ++o)
    if (q.node.has_output(o)) return std::nullopt;
  // Position 1 is neither the first position nor the last. A broadcast input may have only one of those.
  const PositionQuery query{q.node, q.opset, q.inputs, q.dims(), q.wanted.axis, 1};
  const std::optional<InputPositions> found = op->traits.positions(query);
  if (!found || !found->integers.empty()) return std::nullopt;
  NodePartition result{std::vector<std::optional<Partition>>(q.inputs.size()), {q.wanted}};
  for (size_t i = 0; i < found->axes.size() && i < q.inputs.size(); ++i)
    if (found->axes[i] >= 0)
      result.inputs[i] = Partition{found->axes[i], q.wanted.sections, q.wanted.repeats};
  return result;
}

NodePartition partition_first(const PartitionQuery& q, int64_t axis) {
  NodePartition result{std::vector<std::optional<Partition>>(q.inputs.size()), {q.wanted}};
  result.inputs[0] = Partition{axis, q.wanted.sections, q.wanted.repeats};
  return result;
}

std::optional<NodePartition> partition_of(const PartitionQuery& query) {
  // Shapes that a model states may contradict each other.
  if (query.wanted.axis < 0 || std::cmp_greater_equal(query.wanted.axis, query.dims().size()))
    return std::nullopt;
  const PartitionRules* own = rules_of(query.node);
  return own && own->output ? own->output(query) : partition_positions(query);
}

std::optional<SummedAxes> summed_axes(const Node& node, int64_t left_rank, int64_t right_rank) {
  const PartitionRules* own = rules_of(node);
  return own && own->sum ? own->sum(node, left_rank, right_rank) : std::nullopt;
}

std::optional<DimPlace> place_of_dim(const Node& node, int64_t axis, int64_t rank) {
  const PartitionRules* own = rules_of(node);
  return own && own->dims ? std::optional(own->dims(node, axis, rank)) : std::nullopt;
}

bool adds_up_ranks(const Node& node) {
  const PartitionRules* own = rules_of(node);
  return own && own->adds_up_ranks;
}

}  // namespace ortrain
