#include "op/positions.h"

#include "op/opset.h"

namespace ortrain {

std::optional<InputPositions> elementwise_positions(const PositionQuery& q) {
  for (size_t i = 1; i < q.inputs.size(); ++i)
    if (q.has_input(i) && q.rank(i) > 0) return std::nullopt;
  InputPositions found{std::vector<int64_t>(q.inputs.size(), -1)};
  found.axes[0] = q.axis;
  return found;
}

std::optional<InputPositions> broadcast_positions(const PositionQuery& q) {
  if (q.opset < since::kBroadcasting) return std::nullopt;  // before, operands were aligned differently
  InputPositions found{std::vector<int64_t>(q.inputs.size(), -1)};
  for (size_t i = 0; i < q.inputs.size(); ++i)
    if (!q.has_input(i) || !add_broadcast(q, i, found)) return std::nullopt;
  return found;
}

std::optional<InputPositions> row_positions(const PositionQuery& q, int64_t otherwise) {
  const int64_t first = q.node.int_or("axis", otherwise);
  if (q.axis >= (first < 0 ? first + q.rank() : first)) return std::nullopt;
  for (size_t i = 1; i < q.inputs.size(); ++i)  // a scale that differs from position to position
    if (q.has_input(i) && q.rank(i) >= q.rank() - q.axis) return std::nullopt;
  InputPositions found{std::vector<int64_t>(q.inputs.size(), -1)};
  found.axes[0] = q.axis;
  return found;
}

bool add_broadcast(const PositionQuery& q, size_t i, InputPositions& found) {
  const int64_t own = q.axis - (q.rank() - q.rank(i));
  if (own < 0) return true;
  const Dim& dim = (*q.inputs[i])[static_cast<size_t>(own)];
  if (dim.value == 1) return true;
  const bool same = dim.same(q.output[static_cast<size_t>(q.axis)]);
  if (!same && q.index != 0 && q.index != -1) return false;
  found.axes[i] = own;
  return true;
}

}  // namespace ortrain
