#include "graph/graph.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_set>

#include "runtime/error.h"

namespace ortrain {

namespace {

const char* type_name(const Attribute& attribute) {
  static constexpr const char* names[] = {
      "an integer",       "a float",           "a string", "a tensor", "a list of integers",
      "a list of floats", "a list of strings", "a graph",  "a type"};
  static_assert(std::size(names) == std::variant_size_v<Attribute>);
  return names[attribute.index()];
}

// The attribute as a T, or null if the node does not have it.
template <typename T>
const T* find_attribute(const Node& node, std::string_view name) {
  const auto found = node.attributes.find(name);
  if (found == node.attributes.end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  require(value != nullptr, ErrorCode::kInvalidGraph, node.label(), ": attribute \"", name, "\" should be ",
          type_name(Attribute(T{})), ", found ", type_name(found->second));
  return value;
}

// Calls f with each value that `graph` reads from the graphs around it.
template <typename F>
void for_each_outer_read(const Graph& graph, F&& f) {
  std::unordered_set<std::string_view> own;
  for (const ValueInfo& input : graph.inputs) own.insert(input.name);
  for (const auto& [name, value] : graph.initializers) own.insert(name);
  for (const Node& node : graph.nodes) own.insert(node.outputs.begin(), node.outputs.end());
  for (const Node& node : graph.nodes)
    for (const std::string& name : values_read(node))
      if (own.count(name) == 0) f(name);
  for (const ValueInfo& output : graph.outputs)
    if (own.count(output.name) == 0) f(output.name);
}

template <typename F>
void for_each_subgraph(const Node& node, F&& f) {
  for (const auto& [name, attribute] : node.attributes)
    if (const auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute); graph && *graph) f(**graph);
}

// Calls f with every name of a value or node in the graph and its subgraphs, except initializers and value
// infos.
template <typename F>
void for_each_name(const Graph& graph, F&& f) {
  for (const ValueInfo& input : graph.inputs) f(input.name);
  for (const ValueInfo& output : graph.outputs) f(output.name);
  for (const Node& node : graph.nodes) {
    f(node.name);
    for (const std::string& name : node.inputs) f(name);
    for (const std::string& name : node.outputs) f(name);
    for_each_subgraph(node, [&](const Graph& inner) {
      for_each_name(inner, f);
      for (const auto& [name, value] : inner.initializers) f(name);
    });
  }
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : "; ") + part;
  return out;
}

// Names defined in a graph and in the graphs around it.
struct Scope {
  const Scope* outer = nullptr;
  std::unordered_map<std::string_view, size_t>
      makers;  // value → node, or kNoNode for inputs and initializers

  static constexpr size_t kNoNode = static_cast<size_t>(-1);
  bool defines(std::string_view name) const {
    return makers.count(name) > 0 || (outer != nullptr && outer->defines(name));
  }
};

// The nodes of a cycle among the nodes that a sort could not place. Each is followed by a node that waits for
// it.
std::string describe_cycle(const std::vector<Node>& nodes, const std::vector<std::vector<size_t>>& needs,
                           const std::vector<bool>& placed) {
  size_t at = 0;
  while (placed[at]) ++at;
  std::vector<size_t> path;
  std::vector<bool> seen(nodes.size(), false);
  while (!seen[at]) {
    seen[at] = true;
    path.push_back(at);
    // A node that was not placed waits for at least one other that was not.
    for (const size_t need : needs[at])
      if (!placed[need]) {
        at = need;
        break;
      }
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), at));
  std::reverse(path.begin(), path.end());  // in the direction of the data
  constexpr size_t kShown = 12;
  std::string text;
  for (size_t i = 0; i < path.size() && i < kShown; ++i) text += nodes[path[i]].label() + " -> ";
  if (path.size() > kShown) text += concat("... ", path.size() - kShown, " more ... -> ");
  return text + nodes[path.front()].label();
}

void collect_makers(const Graph& graph, Scope& scope) {
  std::vector<std::string> doubled;
  const auto add = [&](const std::string& name, size_t maker) {
    const auto [found, fresh] = scope.makers.emplace(name, maker);
    if (fresh) return;
    const auto describe = [&](size_t node) {
      if (node != Scope::kNoNode) return graph.nodes[node].label();
      return std::string(graph.is_initializer(name) ? "an initializer" : "a graph input");
    };
    doubled.push_back(concat("value \"", name, "\" is produced by ", describe(found->second),
                             " and again by ", describe(maker)));
  };
  for (const ValueInfo& input : graph.inputs) add(input.name, Scope::kNoNode);
  for (const auto& [name, value] : graph.initializers) add(name, Scope::kNoNode);
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    for (const std::string& output : graph.nodes[i].outputs)
      if (!output.empty()) add(output, i);
  if (doubled.empty()) return;
  std::sort(doubled.begin(), doubled.end());
  fail(ErrorCode::kInvalidGraph, "every value must be produced exactly once, but ", joined(doubled));
}

void sort_scope(Graph& graph, const Scope* outer) {
  Scope scope;
  scope.outer = outer;
  collect_makers(graph, scope);

  const size_t count = graph.nodes.size();
  std::vector<std::string> missing;
  std::vector<std::vector<size_t>> needs(count), feeds(count);
  for (size_t i = 0; i < count; ++i) {
    const Node& node = graph.nodes[i];
    for (const std::string& name : node.inputs)
      if (!name.empty() && !scope.defines(name))
        missing.push_back(concat("\"", name, "\", read by ", node.label()));
    for (const std::string& name : values_read(node)) {
      const auto maker = scope.makers.find(name);
      if (maker != scope.makers.end() && maker->second != Scope::kNoNode) needs[i].push_back(maker->second);
    }
    std::sort(needs[i].begin(), needs[i].end());
    needs[i].erase(std::unique(needs[i].begin(), needs[i].end()), needs[i].end());
    for (const size_t need : needs[i]) feeds[need].push_back(i);
  }
  for (const ValueInfo& output : graph.outputs)
    if (!scope.defines(output.name)) missing.push_back(concat("\"", output.name, "\", a graph output"));
  require(missing.empty(), ErrorCode::kInvalidGraph,
          "these values are neither inputs, nor initializers, nor produced by a node: ", joined(missing));

  // Of the nodes that could come next, take the first of the original order: a sorted graph does not change.
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  std::vector<size_t> waits(count), order;
  std::vector<bool> placed(count, false);
  for (size_t i = 0; i < count; ++i)
    if ((waits[i] = needs[i].size()) == 0) ready.push(i);
  while (!ready.empty()) {
    const size_t i = ready.top();
    ready.pop();
    placed[i] = true;
    order.push_back(i);
    for (const size_t fed : feeds[i])
      if (--waits[fed] == 0) ready.push(fed);
  }
  if (order.size() < count)
    fail(ErrorCode::kInvalidGraph, "the nodes form a cycle: ", describe_cycle(graph.nodes, needs, placed));

  for (const Node& node : graph.nodes)
    for_each_subgraph(node, [&](Graph& inner) {
      try {
        sort_scope(inner, &scope);
      } catch (const Error& error) {
        fail(error.code(), "in a subgraph of ", node.label(), ": ", error.message());
      }
    });
  if (std::is_sorted(order.begin(), order.end())) return;
  std::vector<Node> sorted;
  sorted.reserve(count);
  for (const size_t i : order) sorted.push_back(std::move(graph.nodes[i]));
  graph.nodes = std::move(sorted);
}

}  // namespace

int64_t Node::int_or(std::string_view attribute, int64_t otherwise) const {
  const auto* value = find_attribute<int64_t>(*this, attribute);
  return value ? *value : otherwise;
}

float Node::float_or(std::string_view attribute, float otherwise) const {
  const auto* value = find_attribute<float>(*this, attribute);
  return value ? *value : otherwise;
}

std::string Node::string_or(std::string_view attribute, std::string_view otherwise) const {
  const auto* value = find_attribute<std::string>(*this, attribute);
  return value ? *value : std::string(otherwise);
}

std::vector<int64_t> Node::ints_or(std::string_view attribute, std::vector<int64_t> otherwise) const {
  const auto* value = find_attribute<std::vector<int64_t>>(*this, attribute);
  return value ? *value : std::move(otherwise);
}

std::string Node::label() const {
  if (!name.empty()) return concat("node \"", name, "\" (", qualified_type(), ")");
  for (const std::string& output : outputs)
    if (!output.empty()) return concat("node producing \"", output, "\" (", qualified_type(), ")");
  return concat("unnamed node (", qualified_type(), ")");
}

void Graph::add_initializer(const std::string& name, Tensor value) {
  require(initializers.emplace(name, std::move(value)).second, ErrorCode::kInvalidGraph,
          "cannot add the initializer \"", name, "\": the graph already has one with that name");
  initializer_order.push_back(name);
}

void Graph::remove_initializer(const std::string& name) {
  if (initializers.erase(name) > 0)
    initializer_order.erase(std::find(initializer_order.begin(), initializer_order.end(), name));
}

bool Graph::is_input(const std::string& name) const {
  return std::any_of(inputs.begin(), inputs.end(), [&](const ValueInfo& v) { return v.name == name; });
}

bool Graph::is_output(const std::string& name) const {
  return std::any_of(outputs.begin(), outputs.end(), [&](const ValueInfo& v) { return v.name == name; });
}

std::optional<ValueInfo> Graph::info(const std::string& name) const {
  for (const ValueInfo& input : inputs)
    if (input.name == name) return input;
  if (const auto found = initializers.find(name); found != initializers.end()) {
    ValueInfo stated{name, found->second.dtype(), std::vector<Dim>{}, false};
    for (const int64_t dim : found->second.shape()) stated.dims->push_back(Dim{dim, ""});
    return stated;
  }
  for (const ValueInfo& output : outputs)
    if (output.name == name) return output;
  if (const auto found = value_info.find(name); found != value_info.end()) return found->second;
  return std::nullopt;
}

std::string Graph::unique_name(const std::string& base) const {
  // One walk finds whether `base` is taken and with which numbers: testing each number would be slow in
  // graphs where thousands of names have the same base.
  bool taken = initializers.count(base) > 0 || value_info.count(base) > 0;
  std::unordered_set<std::string> numbered;
  for_each_name(*this, [&](const std::string& name) {
    if (name.size() < base.size() || name.compare(0, base.size(), base) != 0) return;
    if (name.size() == base.size())
      taken = true;
    else if (name[base.size()] == '_')
      numbered.insert(name);
  });
  if (!taken && !base.empty()) return base;
  for (size_t i = 1;; ++i) {
    std::string candidate = base + "_" + std::to_string(i);
    if (numbered.count(candidate) == 0 && initializers.count(candidate) == 0 &&
        value_info.count(candidate) == 0)
      return candidate;
  }
}

void Graph::sort() { sort_scope(*this, nullptr); }

void Graph::remove_unused_nodes() {
  std::unordered_set<std::string> needed;
  for (const ValueInfo& output : outputs) needed.insert(output.name);
  std::vector<bool> keep(nodes.size(), false);
  for (size_t i = nodes.size(); i-- > 0;) {
    const Node& node = nodes[i];
    keep[i] = std::any_of(node.outputs.begin(), node.outputs.end(),
                          [&](const std::string& name) { return needed.count(name) > 0; });
    if (keep[i])
      for (std::string& name : values_read(node)) needed.insert(std::move(name));
  }
  size_t i = 0;
  std::erase_if(nodes, [&](const Node&) { return !keep[i++]; });
}

void Graph::remove_unused_initializers() {
  const auto uses = count_uses(*this);
  std::erase_if(initializer_order, [&](const std::string& name) { return !uses.count(name); });
  std::erase_if(initializers, [&](const auto& entry) { return !uses.count(entry.first); });
}

namespace {

using Renamed = std::unordered_map<std::string, std::string>;

template <typename F>
void for_each_definition(const Graph& graph, F&& f) {
  for (const ValueInfo& input : graph.inputs) f(input.name);
  for (const std::string& name : graph.initializer_order) f(name);
  for (const Node& node : graph.nodes)
    for (const std::string& name : node.outputs)
      if (!name.empty()) f(name);
}

// Renames values that the graph defines if the name is already in `defined`. `taken` has all names of the
// model, `renamed` the new names in the graphs around this one.
void rename_definitions(Graph& graph, Renamed renamed, std::unordered_set<std::string>& defined,
                        std::unordered_set<std::string>& taken) {
  for_each_definition(graph, [&](const std::string& name) {
    if (defined.insert(name).second) return;
    std::string fresh;
    for (int k = 1; !taken.insert(fresh = concat(name, "_", k)).second;) ++k;
    defined.insert(fresh);
    renamed[name] = fresh;
  });
  const auto rename = [&](std::string& name) {
    if (const auto found = renamed.find(name); found != renamed.end()) name = found->second;
  };
  for (std::vector<ValueInfo>* infos : {&graph.inputs, &graph.outputs})
    for (ValueInfo& info : *infos) rename(info.name);
  for (std::string& name : graph.initializer_order) rename(name);
  std::unordered_map<std::string, Tensor> initializers;
  for (auto& [name, value] : graph.initializers) {
    const auto found = renamed.find(name);
    initializers.emplace(found == renamed.end() ? name : found->second, std::move(value));
  }
  graph.initializers = std::move(initializers);
  std::unordered_map<std::string, ValueInfo> infos;
  for (auto& [name, info] : graph.value_info) {
    rename(info.name);
    std::string key = info.name;
    infos.emplace(std::move(key), std::move(info));
  }
  graph.value_info = std::move(infos);
  for (Node& node : graph.nodes) {
    for (std::string& name : node.inputs) rename(name);
    for (std::string& name : node.outputs) rename(name);
    for (auto& [name, attribute] : node.attributes)
      if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner) {
        *inner = std::make_shared<Graph>(**inner);
        rename_definitions(**inner, renamed, defined, taken);
      }
  }
}

}  // namespace

void Graph::make_inner_names_unique() {
  std::unordered_set<std::string> defined, taken;
  for_each_definition(*this, [&](const std::string& name) { defined.insert(name); });
  for_each_name(*this, [&](const std::string& name) { taken.insert(name); });
  taken.insert(initializer_order.begin(), initializer_order.end());
  for (Node& node : nodes)
    for (auto& [name, attribute] : node.attributes)
      if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner) {
        *inner = std::make_shared<Graph>(**inner);
        rename_definitions(**inner, {}, defined, taken);
      }
}

std::vector<std::string> values_read(const Node& node) {
  std::vector<std::string> names;
  for (const std::string& name : node.inputs)
    if (!name.empty()) names.push_back(name);
  for_each_subgraph(node, [&](const Graph& graph) {
    for_each_outer_read(graph, [&](const std::string& name) { names.push_back(name); });
  });
  return names;
}

std::unordered_map<std::string, int> count_uses(const Graph& graph) {
  std::unordered_map<std::string, int> uses;
  for (const Node& node : graph.nodes)
    for (const std::string& name : values_read(node)) ++uses[name];
  for (const ValueInfo& output : graph.outputs) ++uses[output.name];
  return uses;
}

int64_t Model::opset(std::string_view name) const {
  const auto found = opsets.find(name == "ai.onnx" ? std::string() : std::string(name));
  return found == opsets.end() ? 0 : found->second;
}

}  // namespace ortrain
