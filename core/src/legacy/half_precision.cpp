// Two rewrites of a forward model for computing in 16 bits. The first one has nodes compute in float16 and
// adds conversions where types differ. The second one moves the conversions of a model past nodes that can
// compute in 16 bits, so that more nodes compute in 16 bits. One rule decides for both which nodes can.
#include "legacy/half_precision.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "infer/value_types.h"
#include "op/operator.h"

namespace ortrain {
namespace {

bool has_subgraph(const Node& node) {
  return std::any_of(node.attributes.begin(), node.attributes.end(), [](const auto& attribute) {
    return std::holds_alternative<std::shared_ptr<Graph>>(attribute.second);
  });
}

// Whether a node can read and produce 16-bit floats instead of float32.
bool computes_in_half(const Node& node, bool beyond_moving) {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (!op || has_subgraph(node) || op->traits.takes_sequences || op->traits.quantized) return false;
  if (op->traits.updates != 0 || op->traits.train) return false;  // statistics are kept in float32
  return op->traits.narrow_types == NarrowTypes::kPassthrough || (beyond_moving && op->traits.takes_bf16);
}

Node cast(const Graph& graph, const std::string& from, const std::string& to, DType dtype) {
  Node node;
  node.op_type = "Cast";
  node.name = graph.unique_name(to + "/Cast");
  node.inputs = {from};
  node.outputs = {to};
  node.attributes["to"] = static_cast<int64_t>(dtype);
  return node;
}

// The nodes from the last weights to the loss, with the node of the loss: no weight is read by them or by a
// node between them and the loss.
std::unordered_set<size_t> loss_part(const Graph& graph, const std::set<std::string>& weights,
                                     const std::string& loss) {
  std::unordered_map<std::string, size_t> producer;
  for (size_t i = 0; i < graph.nodes.size(); ++i)
    for (const std::string& output : graph.nodes[i].outputs) producer[output] = i;
  std::unordered_set<size_t> part;
  std::vector<std::string> open = {loss};
  while (!open.empty()) {
    const auto at = producer.find(open.back());
    open.pop_back();
    if (at == producer.end() || part.count(at->second)) continue;
    const std::vector<std::string> read = values_read(graph.nodes[at->second]);
    if (std::any_of(read.begin(), read.end(), [&](const std::string& v) { return weights.count(v) > 0; }))
      continue;
    part.insert(at->second);
    open.insert(open.end(), read.begin(), read.end());
  }
  return part;
}

void state_type(Graph& graph, const std::string& value, DType dtype) {
  if (const auto at = graph.value_info.find(value); at != graph.value_info.end()) at->second.dtype = dtype;
  for (ValueInfo& info : graph.outputs)
    if (info.name == value) info.dtype = dtype;
}

}  // namespace

std::map<std::string, std::string> use_half_precision(Model& model, const std::set<std::string>& weights,
                                                      const std::string& loss) {
  Graph& graph = model.graph;
  const ValueTypes types(model);
  const std::unordered_set<size_t> full = loss_part(graph, weights, loss);
  std::map<std::string, std::string> halves;
  std::unordered_set<std::string> is_half, half_names;            // values that were float32, and conversions
  std::unordered_map<std::string, std::string> half_of, full_of;  // conversions by their values
  std::unordered_set<std::string> captured;                       // read by subgraphs, which stay unchanged
  for (const Node& node : graph.nodes)
    if (has_subgraph(node))
      for (const std::string& value : values_read(node)) captured.insert(value);
  const auto is_float = [&](const std::string& value) {
    return !value.empty() && types.info(value).is_tensor() && types.info(value).dtype == DType::kFloat;
  };
  // Finds the nodes that compute in 16 bits, and the values that the other nodes read. A weight that nodes of
  // both kinds read is converted, so that both contribute to its gradient.
  std::vector<bool> in_half;
  std::unordered_set<std::string> read_in_full;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const auto is_captured = [&](const std::string& value) { return captured.count(value) > 0; };
    in_half.push_back(!full.count(i) && computes_in_half(node, true) &&
                      std::any_of(node.inputs.begin(), node.inputs.end(), is_float) &&
                      std::none_of(node.outputs.begin(), node.outputs.end(), is_captured));
    if (!in_half.back())
      for (const std::string& value : values_read(node)) read_in_full.insert(value);
  }
  std::vector<Node> nodes;
  const auto as_half = [&](const std::string& value) {
    if (is_half.count(value)) return value;
    std::string& name = half_of[value];
    if (!name.empty()) return name;
    name = graph.unique_name(value + "_fp16");
    half_names.insert(name);
    if (weights.count(value) && !read_in_full.count(value))
      halves[value] = name;
    else
      nodes.push_back(cast(graph, value, name, DType::kFloat16));
    return name;
  };
  const auto as_full = [&](const std::string& value) {
    if (!is_half.count(value)) return value;
    std::string& name = full_of[value];
    if (name.empty()) {
      name = graph.unique_name(value + "_fp32");
      nodes.push_back(cast(graph, value, name, DType::kFloat));
    }
    return name;
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node node = graph.nodes[i];
    const bool half = in_half[i];
    for (std::string& input : node.inputs)
      if (is_float(input)) input = half ? as_half(input) : as_full(input);
    if (half) {
      std::vector<DType> given;
      for (const std::string& input : node.inputs)
        given.push_back(is_half.count(input) || half_names.count(input) ? DType::kFloat16
                        : input.empty()                                 ? DType::kUndefined
                                                                        : types.info(input).dtype);
      const Operator& op = *find_operator(node.domain, node.op_type);
      const ElementTypes element_types(node, model.opset(node.domain), given);
      for (size_t o = 0; o < node.outputs.size(); ++o)
        if (is_float(node.outputs[o]) && element_type(op, element_types, o) == DType::kFloat16) {
          is_half.insert(node.outputs[o]);
          state_type(graph, node.outputs[o], DType::kFloat16);
        }
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
  for (const auto& [weight, half] : halves) {
    const auto at = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                 [&, &name = weight](const ValueInfo& v) { return v.name == name; });
    at->name = half;
    at->dtype = DType::kFloat16;
  }
  return halves;
}

namespace {

// The conversions of a graph from 16 bits to float32.
class Widenings {
 public:
  explicit Widenings(const Model& model) : graph_(model.graph), types_(model) {
    for (const Node& node : graph_.nodes)
      for (const std::string& output : node.outputs) producer_[output] = &node;
  }

  // The 16-bit value from which a value is converted; empty if it is not such a conversion.
  std::string source(const std::string& value) const {
    const auto at = producer_.find(value);
    if (at == producer_.end() || at->second->op_type != "Cast" || !is_float(value)) return "";
    const std::string& narrow = at->second->inputs[0];
    return is_half(types_.info(narrow).dtype) ? narrow : "";
  }

  // Makes a conversion back to the type of the source the source itself.
  bool cancel(Node& node) const {
    if (node.op_type != "Cast" || graph_.is_output(node.outputs[0])) return false;
    const std::string narrow = source(node.inputs[0]);
    if (narrow.empty() || types_.info(narrow).dtype != types_.info(node.outputs[0]).dtype) return false;
    node.op_type = "Identity";
    node.attributes.clear();
    node.inputs = {narrow};
    return true;
  }

  // The node in 16 bits, with conversions after it; none if an input in float32 is not such a conversion.
  std::vector<Node> moved_past(Node node, Graph& graph) const {
    DType dtype = DType::kUndefined;
    for (std::string& input : node.inputs) {
      if (input.empty() || !is_float(input)) continue;
      const std::string narrow = source(input);
      if (narrow.empty()) return {};
      const DType of = types_.info(narrow).dtype;
      if (dtype != DType::kUndefined && dtype != of) return {};
      dtype = of;
      input = narrow;
    }
    if (dtype == DType::kUndefined) return {};
    std::vector<Node> after;
    for (std::string& output : node.outputs) {
      if (output.empty() || !is_float(output)) continue;
      const std::string narrow = graph.unique_name(output + "_narrow");
      after.push_back(cast(graph, narrow, output, DType::kFloat));
      if (const auto at = graph.value_info.find(output); at != graph.value_info.end()) {
        ValueInfo info = at->second;
        info.name = narrow;
        info.dtype = dtype;
        graph.value_info[narrow] = info;
      }
      output = narrow;
    }
    after.insert(after.begin(), std::move(node));
    return after;
  }

 private:
  bool is_float(const std::string& value) const { return types_.info(value).dtype == DType::kFloat; }

  const Graph& graph_;
  ValueTypes types_;
  std::unordered_map<std::string, const Node*> producer_;
};

}  // namespace

void propagate_casts(Model& model, int64_t level, const std::vector<std::string>& allow) {
  Graph& graph = model.graph;
  const bool has_casts = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                     [](const Node& node) { return node.op_type == "Cast"; });
  if (level < 0 || !has_casts) return;
  const auto may_move = [&](const Node& node) {
    if (has_subgraph(node) || node.op_type == "Cast") return false;
    return std::find(allow.begin(), allow.end(), node.op_type) != allow.end() ||
           (level >= 1 && computes_in_half(node, level >= 2));
  };
  // Each round makes one change, because later changes depend on the types after it.
  for (bool changed = true; changed;) {
    changed = false;
    const Widenings widenings(model);
    for (size_t i = 0; i < graph.nodes.size() && !changed; ++i) {
      if (widenings.cancel(graph.nodes[i])) {
        changed = true;
        continue;
      }
      if (!may_move(graph.nodes[i])) continue;
      const std::vector<Node> moved = widenings.moved_past(graph.nodes[i], graph);
      if (moved.empty()) continue;
      const auto at = graph.nodes.begin() + static_cast<std::ptrdiff_t>(i);
      graph.nodes.insert(graph.nodes.erase(at), moved.begin(), moved.end());
      changed = true;
    }
    if (changed) graph.remove_unused_nodes();
  }
}

}  // namespace ortrain
