// How operators are divided among processes: the partition rules of those whose inputs follow from their
// outputs in another way than position by position (op/positions.h). Operators themselves know nothing of
// partitions.
#include <algorithm>
#include <optional>
#include <vector>

#include "legacy/partition.h"
#include "op/operator.h"
#include "ops/tensor/shape.h"

namespace ortrain {
namespace {

// Columns of the product are those of B; rows and matrices are independent too.
std::optional<NodePartition> matmul_partition(const PartitionQuery& q) {
  if (q.wanted.axis < q.rank() - 1 || !q.inputs[1] || q.inputs[1]->size() < 2) return partition_positions(q);
  const auto columns = static_cast<int64_t>(q.inputs[1]->size()) - 1;
  return NodePartition{{std::nullopt, Partition{columns, q.wanted.sections, q.wanted.repeats}}, {q.wanted}};
}

std::optional<SummedAxes> matmul_sum(const Node&, int64_t left_rank, int64_t right_rank) {
  if (left_rank < 1 || right_rank < 2) return std::nullopt;
  return SummedAxes{left_rank - 1, right_rank - 2};
}

std::optional<NodePartition> gemm_partition(const PartitionQuery& q) {
  if (q.wanted.axis == 0) return partition_positions(q);
  const int64_t columns = q.node.int_or("transB", 0) != 0 ? 0 : 1;
  NodePartition result{std::vector<std::optional<Partition>>(q.inputs.size()), {q.wanted}};
  result.inputs[1] = Partition{columns, q.wanted.sections, q.wanted.repeats};
  if (q.inputs.size() > 2 && q.inputs[2] && !q.inputs[2]->empty()) {
    const auto last = static_cast<int64_t>(q.inputs[2]->size()) - 1;
    const Dim& length = q.inputs[2]->back();
    if (!length.same(q.dims()[1]) && length.value != 1) return std::nullopt;
    if (length.value != 1) result.inputs[2] = Partition{last, q.wanted.sections, q.wanted.repeats};
  }
  return result;
}

std::optional<SummedAxes> gemm_sum(const Node& node, int64_t, int64_t) {
  SummedAxes axes{node.int_or("transA", 0) != 0 ? 0 : 1, node.int_or("transB", 0) != 0 ? 1 : 0};
  if (node.has_input(2)) axes.added = 2;
  if (axes.added && node.float_or("beta", 1.0f) != 1.0f) return std::nullopt;
  return axes;
}

// Each share of the output has the elements of a share of the input. Axes at the front and at the end that
// both sides have divide alike. Between them, the rule looks for the innermost axis of the input of whose
// inner elements the shares are whole multiples.
std::optional<NodePartition> moved_partition(const PartitionQuery& q) {
  if (!q.inputs[0]) return std::nullopt;
  const PartitionQuery::Dims &from = *q.inputs[0], &to = q.dims();
  const auto axis = static_cast<size_t>(q.wanted.axis);
  size_t front = 0, back = 0;
  while (front < std::min(from.size(), to.size()) && from[front].same(to[front])) ++front;
  if (axis < front) return partition_first(q, q.wanted.axis);
  while (front + back < std::min(from.size(), to.size()) &&
         from[from.size() - 1 - back].same(to[to.size() - 1 - back]))
    ++back;
  if (axis >= to.size() - back)
    return partition_first(q, q.wanted.axis + static_cast<int64_t>(from.size()) - q.rank());
  int64_t behind = 1;
  for (size_t k = axis + 1; k < to.size() - back; ++k) {
    if (!to[k].known()) return std::nullopt;
    behind *= to[k].value;
  }
  const int64_t period = q.wanted.length() * behind;
  int64_t inner = 1;
  for (size_t k = from.size() - back; k-- > front;) {
    const bool whole = std::all_of(q.wanted.sections.begin(), q.wanted.sections.end(), [&](int64_t section) {
      return section / q.processes * behind % inner == 0;
    });
    const bool first = k == front;  // all remaining elements, a multiple of the period
    if (!whole || (!from[k].known() && !first)) return std::nullopt;
    if (first || from[k].value * inner % period == 0) {
      Partition found{static_cast<int64_t>(k), {}, from[k].known() ? from[k].value * inner / period : -1};
      if (from[k].known() && from[k].value * inner % period != 0) return std::nullopt;
      for (const int64_t section : q.wanted.sections) found.sections.push_back(section * behind / inner);
      NodePartition result = partition_first(q, found.axis);
      result.inputs[0] = simplified(std::move(found));
      return result;
    }
    inner *= from[k].value;
  }
  return std::nullopt;
}

// The requested shape is replaced, because it may be computed from values that are not divided.
std::optional<NodePartition> reshape_partition(const PartitionQuery& q) {
  std::optional<NodePartition> result = moved_partition(q);
  if (!result || q.inputs.size() < 2) return std::nullopt;
  const int64_t divided = result->inputs[0]->axis;
  std::vector<int64_t> shape;
  for (size_t k = 0; k < q.dims().size(); ++k) {
    const Dim& to = q.dims()[k];
    const bool is_wanted = static_cast<int64_t>(k) == q.wanted.axis;
    if (to.known())
      shape.push_back(is_wanted ? to.value / q.processes : to.value);
    else if (!is_wanted && k < q.inputs[0]->size() && (*q.inputs[0])[k].same(to) &&
             static_cast<int64_t>(k) != divided)
      shape.push_back(0);
    else
      shape.push_back(-1);
  }
  if (std::count(shape.begin(), shape.end(), -1) > 1) {
    const Dim& length = q.dims()[static_cast<size_t>(q.wanted.axis)];
    if (!length.known()) return std::nullopt;
    shape.assign(q.dims().size(), kAsGiven);
    shape[static_cast<size_t>(q.wanted.axis)] = length.value / q.processes;
  } else if (q.node.has("allowzero")) {
    result->attributes["allowzero"] = int64_t{0};
  }
  result->integers = {{1, shape}};
  return result;
}

// Along the axis of the split, the input has the sections of all outputs.
std::optional<NodePartition> split_partition(const PartitionQuery& q) {
  const int64_t given = q.node.int_or("axis", 0), axis = given < 0 ? given + q.rank() : given;
  NodePartition result = partition_first(q, q.wanted.axis);
  result.outputs.assign(q.outputs.size(), std::nullopt);
  if (q.wanted.axis != axis) {
    for (size_t o = 0; o < q.outputs.size(); ++o)
      if (q.outputs[o]) result.outputs[o] = q.wanted;
    return result;
  }
  std::vector<int64_t> lengths;
  Partition& input = *result.inputs[0];
  input.sections.clear();
  input.repeats = 1;
  for (size_t o = 0; o < q.outputs.size(); ++o) {
    if (!q.outputs[o] || !(*q.outputs[o])[static_cast<size_t>(axis)].known()) return std::nullopt;
    const int64_t length = (*q.outputs[o])[static_cast<size_t>(axis)].value;
    const Partition part = o == q.output ? q.wanted : Partition{axis, {length}, 1};
    if (part.repeats != 1 || length % q.processes != 0) return std::nullopt;
    result.outputs[o] = part;
    input.sections.insert(input.sections.end(), part.sections.begin(), part.sections.end());
    lengths.push_back(length / q.processes);
  }
  input = simplified(std::move(input));
  if (q.node.has("split"))
    result.attributes["split"] = lengths;
  else if (q.inputs.size() > 1 && q.inputs[1])
    result.integers = {{1, lengths}};
  else if (std::any_of(lengths.begin(), lengths.end(), [&](int64_t one) { return one != lengths.front(); }))
    return std::nullopt;
  return result;
}

std::optional<NodePartition> concat_partition(const PartitionQuery& q) {
  const int64_t axis = q.node.int_or("axis", 1);
  if (q.wanted.axis == (axis < 0 ? axis + q.rank() : axis)) return std::nullopt;
  return NodePartition{std::vector<std::optional<Partition>>(q.inputs.size(), q.wanted), {q.wanted}};
}

// Divides along the axes of the data other than that of the indices.
std::optional<NodePartition> gather_partition(const PartitionQuery& q) {
  if (!q.inputs[0] || !q.inputs[1]) return std::nullopt;
  const auto data = static_cast<int64_t>(q.inputs[0]->size()),
             indices = static_cast<int64_t>(q.inputs[1]->size());
  const int64_t given = q.node.int_or("axis", 0), axis = given < 0 ? given + data : given;
  if (q.wanted.axis < axis) return partition_first(q, q.wanted.axis);
  if (q.wanted.axis < axis + indices) return std::nullopt;
  return partition_first(q, q.wanted.axis - indices + 1);
}

// Divides along the axes that the node does not slice.
std::optional<NodePartition> slice_partition(const PartitionQuery& q) {
  std::vector<int64_t> axes = q.node.ints_or("axes", {});
  if (q.inputs.size() > 3 && q.constants[3]) axes = q.constants[3]->to_int64();
  if (axes.empty()) return std::nullopt;
  for (const int64_t axis : axes)
    if ((axis < 0 ? axis + q.rank() : axis) == q.wanted.axis) return std::nullopt;
  return partition_first(q, q.wanted.axis);
}

std::optional<NodePartition> expand_partition(const PartitionQuery& q) {
  if (!q.inputs[0]) return std::nullopt;
  const PartitionQuery::Dims& from = *q.inputs[0];
  const int64_t added = q.rank() - static_cast<int64_t>(from.size());
  std::vector<int64_t> shape;
  for (int64_t k = 0; k < q.rank(); ++k) {
    const Dim& to = q.dims()[static_cast<size_t>(k)];
    if (k >= added && from[static_cast<size_t>(k - added)].same(to))
      shape.push_back(1);
    else if (to.known())
      shape.push_back(k == q.wanted.axis ? to.value / q.processes : to.value);
    else if (k == q.wanted.axis)
      return std::nullopt;
    else
      shape.push_back(kAsGiven);
  }
  NodePartition result = partition_first(q, q.wanted.axis - added);
  if (q.wanted.axis < added ||
      !from[static_cast<size_t>(q.wanted.axis - added)].same(q.dims()[static_cast<size_t>(q.wanted.axis)]))
    result.inputs[0] = std::nullopt;
  result.integers = {{1, shape}};
  return result;
}

DimPlace place_of_axis(const Node& node, int64_t axis, int64_t rank) {
  const auto [start, end] = shape_axes(node, rank);
  DimPlace found{{}, static_cast<size_t>(end - start)};
  if (axis >= start && axis < end) found.place = static_cast<size_t>(axis - start);
  return found;
}

ORTRAIN_OPERATOR_FACT(PartitionRules, "", "MatMul", {.output = matmul_partition, .sum = matmul_sum});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Gemm", {.output = gemm_partition, .sum = gemm_sum});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Flatten", {.output = moved_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Squeeze", {.output = moved_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Unsqueeze", {.output = moved_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Reshape", {.output = reshape_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Split", {.output = split_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Concat", {.output = concat_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Gather", {.output = gather_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Slice", {.output = slice_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Expand", {.output = expand_partition});
ORTRAIN_OPERATOR_FACT(PartitionRules, "", "Shape", {.dims = place_of_axis});

}  // namespace
}  // namespace ortrain
