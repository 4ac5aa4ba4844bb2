// A value that the body of a Loop returns unchanged is no longer carried from one iteration to the next,
// which would copy it: the body reads it where it is defined, outside. Exporters carry all values that a body
// reads, including weights.

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "passes/passes.h"

namespace ortrain {

namespace {

constexpr size_t kCarried = 2;  // the first carried value among the inputs of the node and of the body

const Graph* body_of(const Node& node) {
  if (node.op_type != "Loop" || !node.domain.empty()) return nullptr;
  const auto found = node.attributes.find("body");
  const auto* body =
      found == node.attributes.end() ? nullptr : std::get_if<std::shared_ptr<Graph>>(&found->second);
  return body ? body->get() : nullptr;
}

// The carried values that the body returns unchanged.
std::vector<size_t> invariants(const Node& node, const Graph& body) {
  std::vector<size_t> found;
  if (body.inputs.size() != node.inputs.size() || node.inputs.size() < kCarried ||
      body.outputs.size() + 1 < node.inputs.size())
    return found;
  std::unordered_map<std::string, std::string> original;
  for (const Node& inner : body.nodes)
    if (inner.op_type == "Identity" && inner.domain.empty() && inner.inputs.size() == 1) {
      const auto of_input = original.find(inner.inputs[0]);
      original[inner.outputs[0]] = of_input == original.end() ? inner.inputs[0] : of_input->second;
    }
  for (size_t i = kCarried; i < node.inputs.size(); ++i) {
    const std::string& result = body.outputs[i - kCarried + 1].name;
    const auto renamed = original.find(result);
    if (node.has_input(i) && (renamed == original.end() ? result : renamed->second) == body.inputs[i].name)
      found.push_back(i);
  }
  return found;
}

Node identity(const std::string& from, const std::string& to) {
  Node node;
  node.op_type = "Identity";
  node.name = to + "_of_loop";
  node.inputs = {from};
  node.outputs = {to};
  return node;
}

// Reads `to` instead of `from`, in subgraphs too; no two graphs define the same name.
void rename_reads(Graph& graph, const std::string& from, const std::string& to) {
  for (Node& node : graph.nodes) {
    std::replace(node.inputs.begin(), node.inputs.end(), from, to);
    for (auto& [name, attribute] : node.attributes)
      if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner) {
        const std::vector<std::string> read = values_read(node);
        if (std::find(read.begin(), read.end(), from) == read.end()) continue;
        *inner = std::make_shared<Graph>(**inner);
        rename_reads(**inner, from, to);
      }
  }
}

template <typename T>
void erase_at(std::vector<T>& values, size_t i) {
  if (i < values.size()) values.erase(values.begin() + static_cast<std::ptrdiff_t>(i));
}

}  // namespace

bool hoist_invariants(Model& model) {
  Graph& graph = model.graph;
  const auto has_invariants = [](const Node& node) {
    const Graph* body = body_of(node);
    return body && !invariants(node, *body).empty();
  };
  if (std::none_of(graph.nodes.begin(), graph.nodes.end(), has_invariants)) return false;
  graph.make_inner_names_unique();  // so that no inner name hides an outer value
  std::vector<Node> nodes;
  for (Node& given : graph.nodes) {
    if (!has_invariants(given)) {
      nodes.push_back(std::move(given));
      continue;
    }
    Node node = std::move(given);
    const auto body = std::make_shared<Graph>(*body_of(node));
    std::vector<size_t> places = invariants(node, *body);
    std::reverse(places.begin(), places.end());
    std::vector<Node> results;
    for (const size_t i : places) {
      const size_t o = i - kCarried;
      const std::string outside = node.inputs[i], inside = body->inputs[i].name;
      if (node.has_output(o)) results.push_back(identity(outside, node.outputs[o]));
      erase_at(body->inputs, i);
      erase_at(body->outputs, o + 1);
      erase_at(node.inputs, i);
      erase_at(node.outputs, o);
      rename_reads(*body, inside, outside);
      // A graph must define its outputs itself.
      if (body->is_output(inside)) body->nodes.insert(body->nodes.begin(), identity(outside, inside));
    }
    node.attributes["body"] = body;
    nodes.push_back(std::move(node));
    nodes.insert(nodes.end(), results.begin(), results.end());
  }
  graph.nodes = std::move(nodes);
  return true;
}

}  // namespace ortrain
