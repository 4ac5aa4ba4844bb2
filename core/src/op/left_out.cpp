#include "op/left_out.h"

#include <algorithm>
#include <memory>
#include <string>
#include <variant>

#include "op/operator.h"

namespace ortrain {

namespace {

// No operator has an empty name, so is_built() is true for an empty name only in a build of all operators.
constexpr bool kBuildsListed = !is_built("", "");

std::string hint() {
  std::string text;
  if (kBuildsListed)
    text +=
        "; this build of the library has only the operators that the CMake option ORTRAIN_OPERATORS lists: "
        "add "
        "those that are missing, and build it again";
  // Without kArtifactsPart, the library does not expand Gradient nodes.
  for (const LibraryPart* part : {&kMlPart, &kStringsPart, &kArtifactsPart})
    if (!part->is_built)
      text += concat("; this build of the library leaves out ", part->title, ": CMake option ", part->option);
  return text;
}

}  // namespace

bool leaves_out_operators() { return kBuildsListed || !kMlPart.is_built || !kStringsPart.is_built; }

std::string_view left_out_hint() {
  static const std::string text = hint();
  return text;
}

bool lacks_operators(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) {
    if (!find_operator(node.domain, node.op_type)) return true;
    return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
      const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute.second);
      return inner && *inner && lacks_operators(**inner);
    });
  });
}

}  // namespace ortrain
