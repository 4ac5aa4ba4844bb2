// The gradient of a parameter is computed as soon as its inputs are known, and goes into its accumulation
// buffer at once. A weight's gradient is usually the last consumer of the layer's input activation, which is
// then freed before the gradient for the layer below is computed.

#include <cstdint>
#include <set>
#include <unordered_map>

#include "op/operator.h"
#include "passes/passes.h"

namespace ortrain {

bool schedule_weight_gradients(Model& model) {
  Graph& graph = model.graph;
  const size_t count = graph.nodes.size();

  // The accumulator that a node works for: an accumulator works for itself, and another node for the
  // accumulator that all its readers work for. Nodes on the path to earlier layers work for many
  // accumulators.
  constexpr size_t kNone = SIZE_MAX, kMany = SIZE_MAX - 1;
  const auto join = [](size_t a, size_t b) { return a == kNone || a == b ? b : b == kNone ? a : kMany; };
  std::vector<size_t> works_for(count, kNone);
  std::unordered_map<std::string, size_t> read_for;  // by value: what its readers work for
  std::unordered_map<std::string, size_t> producer;
  for (size_t i = count; i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (node.op_type == "InPlaceAccumulatorV2" && node.domain == kMicrosoft) works_for[i] = i;
    for (const std::string& output : node.outputs) {
      if (output.empty()) continue;
      producer[output] = i;
      if (works_for[i] == i) continue;
      if (const auto found = read_for.find(output); found != read_for.end())
        works_for[i] = join(works_for[i], found->second);
      if (graph.is_output(output)) works_for[i] = kMany;
    }
    if (works_for[i] == kNone) works_for[i] = kMany;
    for (const std::string& input : values_read(node)) {
      const auto [at, fresh] = read_for.try_emplace(input, works_for[i]);
      if (!fresh) at->second = join(at->second, works_for[i]);
    }
  }

  // `own`: an accumulator and the nodes that work only for it. `others`: the nodes whose results these read.
  std::vector<std::set<size_t>> own(count), others(count);
  for (size_t i = 0; i < count; ++i) {
    if (works_for[i] == kMany) continue;
    own[works_for[i]].insert(i);
    for (const std::string& input : values_read(graph.nodes[i]))
      if (const auto at = producer.find(input); at != producer.end() && works_for[at->second] == kMany)
        others[works_for[i]].insert(at->second);
  }
  std::vector<size_t> waits_for(count, 0);
  std::vector<std::vector<size_t>> waiting(count);
  for (size_t a = 0; a < count; ++a) {
    waits_for[a] = others[a].size();
    for (const size_t i : others[a]) waiting[i].push_back(a);
  }

  // The other nodes keep their order. Each is followed by the accumulators for which it computes the last
  // missing input.
  std::vector<size_t> order;
  const auto append = [&](const std::set<size_t>& nodes) {
    order.insert(order.end(), nodes.begin(), nodes.end());
  };
  for (size_t i = 0; i < count; ++i) {
    if (works_for[i] == kMany) {
      order.push_back(i);
      for (const size_t a : waiting[i])
        if (--waits_for[a] == 0) append(own[a]);
    } else if (works_for[i] == i && others[i].empty()) {
      append(own[i]);
    }
  }

  bool changed = false;
  std::vector<Node> nodes;
  nodes.reserve(count);
  for (const size_t i : order) {
    changed |= i != nodes.size();
    nodes.push_back(std::move(graph.nodes[i]));
  }
  graph.nodes = std::move(nodes);
  return changed;
}

}  // namespace ortrain
