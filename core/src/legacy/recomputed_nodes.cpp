// Finds the values that the recompute options mean, such as the outputs of Gelu or of transformer layers, and
// copies the nodes that produce them, so that the backward nodes read the copies. It works on any graph and
// knows no parameters; graph_gradients.cpp decides which values are copied.
#include "legacy/recomputed_nodes.h"

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "legacy/transformer_role.h"
#include "op/operator.h"

namespace ortrain {
namespace {

using Producers = std::unordered_map<std::string, const Node*>;

Producers producers_of(const Graph& graph) {
  Producers producers;
  for (const Node& node : graph.nodes)
    for (const std::string& output : node.outputs)
      if (!output.empty()) producers[output] = &node;
  return producers;
}

std::set<std::string> first_outputs(const Graph& graph, TransformerRole role) {
  std::set<std::string> values;
  for (const Node& node : graph.nodes)
    if (transformer_role(node) == role) values.insert(node.outputs[0]);
  return values;
}

}  // namespace

std::set<std::string> gelu_outputs(const Graph& graph) {
  return first_outputs(graph, TransformerRole::kGelu);
}

std::set<std::string> attention_dropout_outputs(const Graph& graph) {
  const Producers producers = producers_of(graph);
  std::set<std::string> values;
  for (const Node& node : graph.nodes) {
    if (transformer_role(node) != TransformerRole::kDropout) continue;
    const auto at = producers.find(node.inputs[0]);
    if (at != producers.end() && transformer_role(*at->second) == TransformerRole::kSoftmax)
      values.insert(node.outputs[0]);
  }
  return values;
}

std::vector<std::set<std::string>> transformer_layers(const Graph& graph,
                                                      const std::unordered_set<std::string>& weights,
                                                      const std::string& loss) {
  // The nodes between weights and loss, and the active values that they produce.
  std::unordered_set<std::string> active = weights;
  for (const Node& node : graph.nodes) {
    const std::vector<std::string> read = values_read(node);
    const Operator* op = find_operator(node.domain, node.op_type);
    if (op && op->traits.stops_gradient) continue;
    if (std::any_of(read.begin(), read.end(), [&](const std::string& v) { return active.count(v) > 0; }))
      for (const std::string& output : node.outputs) active.insert(output);
  }
  std::unordered_set<std::string> needed = {loss};
  std::vector<const Node*> path;
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (std::none_of(node.outputs.begin(), node.outputs.end(),
                     [&](const std::string& v) { return active.count(v) > 0 && needed.count(v) > 0; }))
      continue;
    path.insert(path.begin(), &node);
    for (const std::string& value : values_read(node)) needed.insert(value);
  }
  const auto is_inner = [&](const std::string& v) { return active.count(v) > 0 && !weights.count(v); };
  std::unordered_map<std::string, size_t> last_reader;
  for (size_t i = 0; i < path.size(); ++i)
    for (const std::string& value : values_read(*path[i]))
      if (is_inner(value)) last_reader[value] = i;
  // Finds the cuts, at which later nodes read a single active value.
  std::vector<std::optional<std::string>> cut(path.size());
  std::set<std::string> live;
  for (size_t i = 0; i < path.size(); ++i) {
    for (const std::string& output : path[i]->outputs)
      if (last_reader.count(output)) live.insert(output);
    std::erase_if(live, [&](const std::string& v) { return last_reader.at(v) <= i; });
    if (live.size() == 1) cut[i] = *live.begin();
  }
  // A layer begins at the last cut before an attention: a softmax whose result is multiplied.
  std::unordered_map<std::string, std::vector<const Node*>> readers;
  for (const Node* node : path)
    for (const std::string& value : values_read(*node)) readers[value].push_back(node);
  const auto is_attention = [&](const Node& node) {
    if (transformer_role(node) != TransformerRole::kSoftmax) return false;
    std::vector<std::string> open = {node.outputs[0]};
    for (size_t k = 0; k < open.size() && k < 8; ++k)
      for (const Node* reader : readers[open[k]]) {
        const Operator* op = find_operator(reader->domain, reader->op_type);
        if (op && op->traits.operations) return true;
        open.push_back(reader->outputs[0]);
      }
    return false;
  };
  std::vector<size_t> begins;
  std::optional<size_t> last_cut;
  for (size_t i = 0; i < path.size(); ++i) {
    if (is_attention(*path[i]) && last_cut && (begins.empty() || begins.back() != *last_cut))
      begins.push_back(*last_cut);
    if (cut[i]) last_cut = i;
  }
  std::vector<std::set<std::string>> layers;
  for (size_t k = 0; k < begins.size(); ++k) {
    // The last layer ends at the last cut, which is before the head or in it.
    const size_t end = k + 1 < begins.size() ? begins[k + 1] : *last_cut;
    std::set<std::string>& values = layers.emplace_back();
    for (size_t i = begins[k] + 1; i <= end; ++i)
      for (const std::string& output : path[i]->outputs)
        if (!output.empty()) values.insert(output);
    values.erase(*cut[end]);
    values.erase(loss);
  }
  return layers;
}

void recompute(Graph& graph, const std::unordered_set<std::string>& forward,
               const std::set<std::string>& values) {
  const std::vector<Node> given = graph.nodes;
  Producers producers;
  for (const Node& node : given)
    for (const std::string& output : node.outputs)
      if (!output.empty()) producers[output] = &node;
  std::unordered_map<std::string, std::string> copies;  // the value itself if it cannot be computed twice
  std::vector<Node> nodes;
  // The name of the value's copy, made if there is none yet; the value itself if it has no copy.
  const auto copy_of = [&](const auto& self, const std::string& value) -> std::string {
    if (!values.count(value) || !producers.count(value)) return value;
    if (const auto at = copies.find(value); at != copies.end()) return at->second;
    const Node& node = *producers.at(value);
    const Operator* op = find_operator(node.domain, node.op_type);
    std::optional<Node> again;
    if (op && op->traits.repeat && value == node.outputs[0])
      again = op->traits.repeat(node, [&](size_t o) { return node.outputs.at(o); });
    else if (op && !op->traits.repeat && !op->traits.updates && !runs_once(node))
      again = node;
    if (!again) return copies[value] = value;
    for (std::string& input : again->inputs) input = self(self, input);
    if (!again->name.empty()) again->name += "_recompute";
    for (size_t o = 0; o < again->outputs.size(); ++o) {
      std::string& output = again->outputs[o];
      if (output.empty()) continue;
      const std::string name = graph.unique_name(output + "_recompute");
      copies[output] = name;
      if (const auto info = graph.info(output)) {
        graph.value_info[name] = *info;
        graph.value_info[name].name = name;
      }
      output = name;
    }
    nodes.push_back(*again);
    return copies.at(value);
  };
  for (const Node& node : given) {
    const bool is_forward = std::any_of(node.outputs.begin(), node.outputs.end(),
                                        [&](const std::string& v) { return forward.count(v) > 0; });
    Node changed = node;
    if (!is_forward)
      for (std::string& input : changed.inputs) input = copy_of(copy_of, input);
    nodes.push_back(std::move(changed));
  }
  graph.nodes = std::move(nodes);
}

}  // namespace ortrain
