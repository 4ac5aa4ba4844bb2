#include "session/gradient_rows.h"

#include "passes/passes.h"
#include "session/parameter_layouts.h"

namespace ortrain {

namespace {

// Elements below which clearing a gradient takes no longer than looking up its rows.
constexpr int64_t kWorthTracking = 4096;

}  // namespace

GradientRows::GradientRows(const CheckpointState& state) : gradients_version_(state.gradients_version()) {
  for (const Parameter& p : state.parameters()) {
    Table& table = tables_.emplace_back();
    const DType dtype = p.data.dtype();
    if (!p.trainable || p.layout || (dtype != DType::kFloat && dtype != DType::kDouble)) continue;
    if (p.data.size() < kWorthTracking || p.data.shape()[0] > INT32_MAX) continue;
    table.name = name_of_rows(p.name + std::string(kBufferSuffix));
    table.rows = p.data.shape()[0];
    table.set = RowSet::of_all(table.rows);
  }
}

void GradientRows::add_inputs(Graph& graph) const {
  for (const Table& table : tables_)
    if (!table.name.empty())
      graph.inputs.push_back({table.name, DType::kInt64, std::vector<Dim>{{table.set.size(), ""}}});
}

void GradientRows::add_states(std::unordered_map<std::string, Tensor>& states) const {
  for (const Table& table : tables_)
    if (!table.name.empty()) states[table.name] = table.set;
}

void GradientRows::update(const CheckpointState& state) {
  if (state.gradients_version() == gradients_version_) return;
  gradients_version_ = state.gradients_version();
  for (const Table& table : tables_)
    if (!table.name.empty()) RowSet(table.set.data<int64_t>(), table.rows).add_all();
}

std::optional<RowSet> GradientRows::of(size_t parameter) const {
  const Table& table = tables_[parameter];
  if (table.name.empty()) return std::nullopt;
  const RowSet set(table.set.data<int64_t>(), table.rows);
  return set.has_all() ? std::nullopt : std::optional(set);
}

}  // namespace ortrain
