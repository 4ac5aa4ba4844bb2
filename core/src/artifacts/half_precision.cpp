#include "artifacts/half_precision.h"

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

// Whether a node takes and gives 16-bit floats wherever it takes and gives float32.
bool computes_in_half(const Node& node, bool beyond_moving) {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (!op || has_subgraph(node) || op->traits.takes_sequences || op->traits.quantized) return false;
  if (op->traits.updates != 0 || op->traits.train) return false;  // statistics are kept in float32
  return op->traits.narrow_types == NarrowTypes::kMoved || (beyond_moving && op->traits.takes_bf16);
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

// The nodes between the last weights and the loss, itself included: neither they nor any node between them
// and the loss reads a weight.
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
  std::unordered_set<std::string> captured;                       // read by subgraphs, which stay as they are
  for (const Node& node : graph.nodes)
    if (has_subgraph(node))
      for (const std::string& value : values_read(node)) captured.insert(value);
  std::vector<Node> nodes;
  const auto as_half = [&](const std::string& value) {
    if (is_half.count(value)) return value;
    std::string& name = half_of[value];
    if (!name.empty()) return name;
    name = graph.unique_name(value + "_fp16");
    half_names.insert(name);
    if (weights.count(value))
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
  const auto is_float = [&](const std::string& value) {
    return !value.empty() && types.info(value).is_tensor() && types.info(value).dtype == DType::kFloat;
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node node = graph.nodes[i];
    const bool half = !full.count(i) && computes_in_half(node, true) &&
                      std::any_of(node.inputs.begin(), node.inputs.end(), is_float) &&
                      std::none_of(node.outputs.begin(), node.outputs.end(),
                                   [&](const std::string& v) { return captured.count(v) > 0; });
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
  const auto uses = count_uses(graph);
  for (const auto& [weight, half] : halves) {
    ValueInfo info = *graph.info(weight);
    info.name = half;
    info.dtype = DType::kFloat16;
    const auto at = std::find_if(graph.inputs.begin(), graph.inputs.end(),
                                 [&](const ValueInfo& v) { return v.name == weight; });
    if (uses.count(weight))
      graph.inputs.insert(at + 1, info);
    else
      *at = info;
  }
  return halves;
}

void propagate_casts(Model& model, int64_t level, const std::vector<std::string>& allow) {
  if (level < 0) return;
  Graph& graph = model.graph;
  const auto may_move = [&](const Node& node) {
    if (has_subgraph(node) || node.op_type == "Cast") return false;
    return std::find(allow.begin(), allow.end(), node.op_type) != allow.end() ||
           (level >= 1 && computes_in_half(node, level >= 2));
  };
  for (bool changed = true; changed;) {
    changed = false;
    const ValueTypes types(model);
    std::unordered_map<std::string, const Node*> producer;
    for (const Node& node : graph.nodes)
      for (const std::string& output : node.outputs) producer[output] = &node;
    // The value of 16 bits that a Cast to float32 is made of; empty if it is something else.
    const auto narrow_source = [&](const std::string& value) -> std::string {
      const auto at = producer.find(value);
      if (at == producer.end() || at->second->op_type != "Cast" || types.info(value).dtype != DType::kFloat)
        return "";
      const std::string& source = at->second->inputs[0];
      return is_half(types.info(source).dtype) ? source : "";
    };
    std::vector<Node> nodes;
    for (const Node& given : graph.nodes) {
      Node node = given;
      // A conversion back to where the value came from is that value.
      if (node.op_type == "Cast" && !graph.is_output(node.outputs[0])) {
        const std::string source = narrow_source(node.inputs[0]);
        if (!source.empty() && types.info(source).dtype == types.info(node.outputs[0]).dtype &&
            node.inputs[0] != source) {
          node.op_type = "Identity";
          node.attributes.clear();
          node.inputs = {source};
          changed = true;
        }
      }
      if (!changed && may_move(node)) {
        std::vector<std::string> narrow;
        DType dtype = DType::kUndefined;
        bool all = true, any = false;
        for (const std::string& input : node.inputs) {
          narrow.push_back(input);
          if (input.empty() || types.info(input).dtype != DType::kFloat) continue;
          const std::string source = narrow_source(input);
          const DType of = source.empty() ? DType::kUndefined : types.info(source).dtype;
          all &= !source.empty() && (!any || of == dtype);
          dtype = of;
          any = true;
          narrow.back() = source;
        }
        if (all && any) {
          node.inputs = narrow;
          std::vector<Node> after;
          for (std::string& output : node.outputs) {
            if (output.empty() || types.info(output).dtype != DType::kFloat) continue;
            const std::string inner = graph.unique_name(output + "_narrow");
            after.push_back(cast(graph, inner, output, DType::kFloat));
            if (const auto at = graph.value_info.find(output); at != graph.value_info.end()) {
              ValueInfo info = at->second;
              info.name = inner;
              info.dtype = dtype;
              graph.value_info[inner] = info;
            }
            output = inner;
          }
          nodes.push_back(std::move(node));
          nodes.insert(nodes.end(), after.begin(), after.end());
          changed = true;
          // The rest as it is; the next round sees the new types.
          const auto rest = static_cast<size_t>(&given - graph.nodes.data()) + 1;
          nodes.insert(nodes.end(), graph.nodes.begin() + static_cast<std::ptrdiff_t>(rest),
                       graph.nodes.end());
          break;
        }
      }
      nodes.push_back(std::move(node));
    }
    graph.nodes = std::move(nodes);
    if (changed) graph.remove_unused_nodes();
  }
}

}  // namespace ortrain
