#include "session/gradient_bounds.h"

#include <algorithm>
#include <limits>

#include "passes/passes.h"
#include "session/parameter_layouts.h"

namespace ortrain {

namespace {

// From this number of elements on, computing the bound of a gradient takes less time than reading the
// gradient, whatever the batch.
constexpr int64_t kWorthBounding = 4096;

double largest_number(DType dtype) {
  switch (dtype) {
    case DType::kDouble:
      return std::numeric_limits<double>::max();
    case DType::kFloat16:
      return 65504;
    case DType::kBFloat16:
      return 0x1.fep127;
    default:
      return 0x1.fffffep127;
  }
}

}  // namespace

GradientBounds::GradientBounds(const CheckpointState& state)
    : bounds_(DType::kDouble, {static_cast<int64_t>(state.parameters().size())}),
      gradients_version_(state.gradients_version()) {
  for (const Parameter& p : state.parameters()) {
    const bool bounded = p.trainable && p.data.size() >= kWorthBounding;
    names_.push_back(bounded ? name_of_bound(p.name + std::string(kBufferSuffix)) : "");
    limits_.push_back(largest_number(p.data.dtype()));
  }
  forget();
}

void GradientBounds::add_inputs(Graph& graph) const {
  for (const std::string& name : names_)
    if (!name.empty()) graph.inputs.push_back({name, DType::kDouble, std::vector<Dim>{{1, ""}}});
}

void GradientBounds::add_states(std::unordered_map<std::string, Tensor>& states) const {
  for (size_t i = 0; i < names_.size(); ++i)
    if (!names_[i].empty())
      states[names_[i]] = Tensor(DType::kDouble, {1}, bounds_.raw() + i * sizeof(double));
}

void GradientBounds::update(const CheckpointState& state) {
  if (state.gradients_version() == gradients_version_) return;
  gradients_version_ = state.gradients_version();
  forget();
}

bool GradientBounds::is_finite(size_t parameter) const {
  return !names_[parameter].empty() && bounds_.data<double>()[parameter] <= limits_[parameter];
}

void GradientBounds::forget() {
  std::fill_n(bounds_.data<double>(), bounds_.size(), std::numeric_limits<double>::infinity());
}

}  // namespace ortrain
