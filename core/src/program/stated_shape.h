// The declared dimensions of a value, as numbers for the current inputs.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace ortrain {

class StatedShapes {
 public:
  // `shape_of` returns the shape of a value if it is known, else null.
  using ShapeOf = std::function<const Shape*(const std::string&)>;
  StatedShapes(const Graph& graph, ShapeOf shape_of);

  // The dimensions of a value, -1 for those that are not known numbers; empty if nothing is stated.
  std::vector<int64_t> operator()(const std::string& name) const;

 private:
  const Graph& graph_;
  ShapeOf shape_of_;
  std::unordered_map<std::string, int64_t> symbols_;  // the named dimensions of the graph's inputs
};

}  // namespace ortrain
