#include "program/stated_shape.h"

namespace ortrain {

StatedShapes::StatedShapes(const Graph& graph, ShapeOf shape_of)
    : graph_(graph), shape_of_(std::move(shape_of)) {
  for (const ValueInfo& info : graph_.inputs) {
    const Shape* shape = info.dims ? shape_of_(info.name) : nullptr;
    if (!shape || info.dims->size() != shape->size()) continue;
    for (size_t k = 0; k < shape->size(); ++k)
      if (!(*info.dims)[k].known() && !(*info.dims)[k].symbol.empty())
        symbols_.emplace((*info.dims)[k].symbol, (*shape)[k]);
  }
}

std::vector<int64_t> StatedShapes::operator()(const std::string& name) const {
  // The gradient of value v is named v_grad, or v_grad_<k> if several are added up, and has the shape of v.
  if (const size_t at = name.rfind("_grad"); at != std::string::npos)
    if (const Shape* shape = shape_of_(name.substr(0, at))) return *shape;
  const auto info = graph_.value_info.find(name);
  if (info == graph_.value_info.end() || !info->second.dims) return {};
  std::vector<int64_t> shape;
  for (const Dim& d : *info->second.dims) {
    const auto symbol = symbols_.find(d.symbol);
    shape.push_back(d.known() ? d.value : symbol != symbols_.end() ? symbol->second : -1);
  }
  return shape;
}

}  // namespace ortrain
