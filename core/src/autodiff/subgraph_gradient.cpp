// Services for the gradient rules of operators with subgraphs (If, Loop, Scan).
#include <algorithm>
#include <unordered_set>

#include "autodiff/rule_context.h"
#include "op/operator.h"

namespace ortrain {

const Graph& RuleContext::subgraph(const std::string& attribute) const {
  const auto found = node().attributes.find(attribute);
  const auto* graph =
      found == node().attributes.end() ? nullptr : std::get_if<std::shared_ptr<Graph>>(&found->second);
  if (!graph || !*graph) reject(concat("attribute '", attribute, "' is missing or not a graph"));
  return **graph;
}

std::vector<std::string> RuleContext::captured() const {
  Node reader = node();
  reader.inputs.clear();
  std::vector<std::string> names;
  for (const std::string& name : values_read(reader))
    if (builder_.active_.count(name) && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  return names;
}

void RuleContext::set_captured(const std::string& value, const std::string& gradient) {
  builder_.contributions_[value].push_back(gradient);
}

ValueInfo RuleContext::info(const std::string& value) const { return builder_.types_.info(value); }

std::vector<ValueInfo> RuleContext::output_types(const std::string& attribute,
                                                 const std::vector<ValueInfo>& inputs) const {
  const Graph& graph = subgraph(attribute);
  const ValueTypes types(graph, inputs, builder_.types_);
  std::vector<ValueInfo> outputs;
  for (const ValueInfo& output : graph.outputs) outputs.push_back(types.info(output.name));
  return outputs;
}

SubgraphGradient RuleContext::differentiate(const std::string& attribute,
                                            const std::vector<ValueInfo>& inputs,
                                            const std::vector<std::string>& wanted,
                                            const std::vector<std::pair<size_t, std::string>>& seeds) {
  Graph whole = subgraph(attribute);
  size_t forward_nodes = whole.nodes.size();
  GradientRequest request;
  request.trainable = wanted;
  std::vector<std::pair<std::string, std::string>> named;
  for (const auto& [output, gradient] : seeds) named.emplace_back(whole.outputs.at(output).name, gradient);
  GradientBuilder inner(builder_, whole, inputs, request);
  inner.run(named);
  forward_nodes += inner.first_.size();
  for (const std::string& text : inner.problems()) builder_.problem(index_ + 1, text);

  SubgraphGradient result;
  for (const std::string& value : wanted) result.gradients.push_back(inner.gradient_of(value));
  result.forward = std::make_shared<Graph>(whole);
  result.forward->nodes.resize(forward_nodes);
  result.forward->remove_unused_initializers();

  Graph& backward = *(result.backward = std::make_shared<Graph>(std::move(whole)));
  backward.name = unique(backward.name.empty() ? attribute + "_grad" : backward.name + "_grad");
  std::unordered_set<std::string> once;
  std::vector<Node> nodes;
  for (size_t n = 0; n < backward.nodes.size(); ++n) {
    Node& node = backward.nodes[n];
    if (n < forward_nodes && runs_once(node))
      once.insert(node.outputs.begin(), node.outputs.end());
    else
      nodes.push_back(std::move(node));
  }
  backward.nodes = std::move(nodes);
  backward.inputs.clear();
  backward.outputs.clear();
  for (const std::string& gradient : result.gradients)
    if (!gradient.empty()) backward.outputs.push_back({gradient, DType::kUndefined, std::nullopt});
  backward.remove_unused_nodes();
  backward.remove_unused_initializers();
  std::set<std::string> read;
  for (std::string& name : values_read(backward)) read.insert(std::move(name));
  for (const std::string& name : read)
    if (once.count(name)) {
      ValueInfo saved = inner.types_.info(name);
      saved.name = name;
      if (saved.dtype == DType::kUndefined)
        reject(concat("the element type of value \"", name, "\" in its subgraph is not known"));
      result.saved.push_back(std::move(saved));
    }
  backward.outputs.clear();
  return result;
}

std::string RuleContext::empty_sequence(DType dtype) {
  std::string& name = builder_.empty_sequences_[dtype];
  if (!name.empty()) return name;
  name = builder_.unique("empty_sequence");
  Node node{"", "SequenceEmpty", builder_.unique("empty_sequence/SequenceEmpty"), {}, {name}, {}};
  node.attributes["dtype"] = static_cast<int64_t>(dtype);
  builder_.types_.infer(node);
  builder_.first_.push_back(std::move(node));
  return name;
}

std::string RuleContext::unique(const std::string& base) { return builder_.unique(base); }

void RuleContext::change(Node node) {
  Node& changed = builder_.graph_.nodes[index_];
  changed = std::move(node);
  builder_.types_.infer(changed);
}

}  // namespace ortrain
