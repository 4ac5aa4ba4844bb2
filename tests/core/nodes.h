// Nodes of graphs that tests build.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace ortrain::test {

using Strings = std::vector<std::string>;

inline Node node(const std::string& type, Strings inputs, Strings outputs, Attributes attributes = {},
                 const std::string& name = "", const std::string& domain = "") {
  return Node{domain, type, name, std::move(inputs), std::move(outputs), std::move(attributes)};
}

}  // namespace ortrain::test
