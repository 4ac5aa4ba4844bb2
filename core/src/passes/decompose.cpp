#include "passes/decompose.h"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "infer/value_types.h"
#include "op/decomposition.h"
#include "op/implementation.h"
#include "op/left_out.h"
#include "op/standard_form.h"

namespace ortrain {
namespace {

using Writer = void (*)(DecompositionContext&);

// The function that writes the nodes that replace `node`; null if the node is kept.
Writer writer_of(const Node& node, DecomposeFor purpose) {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (!op) return nullptr;
  if (purpose == DecomposeFor::kStandard) {
    const StandardForm* form = OperatorFacts<StandardForm>::find(node);
    if (form && (!form->replaces || form->replaces(node))) return form->write;
    return is_of_onnx(*op) ? nullptr : op->rules.decompose;
  }
  const bool for_gradient = purpose == DecomposeFor::kGradient;
  const bool decomposed = !has_kernel(*op) || for_gradient != op->traits.decomposed_to_run;
  return decomposed ? op->rules.decompose : nullptr;
}

bool is_decomposed(const Node& node, DecomposeFor purpose) { return writer_of(node, purpose) != nullptr; }

bool has_decomposed(const Graph& graph, DecomposeFor purpose) {
  for (const Node& node : graph.nodes) {
    if (is_decomposed(node, purpose)) return true;
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute);
          inner && *inner && has_decomposed(**inner, purpose))
        return true;
  }
  return false;
}

void collect_names(const Graph& graph, std::unordered_set<std::string>& names) {
  for (const ValueInfo& v : graph.inputs) names.insert(v.name);
  for (const ValueInfo& v : graph.outputs) names.insert(v.name);
  names.insert(graph.initializer_order.begin(), graph.initializer_order.end());
  for (const Node& node : graph.nodes) {
    names.insert(node.name);
    names.insert(node.outputs.begin(), node.outputs.end());
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
        collect_names(**inner, names);
  }
}

// State that all graphs of one model share while they are decomposed.
struct UsedNames {
  DecomposeFor purpose;
  std::unordered_set<std::string> taken;
  std::vector<std::string> problems;

  std::string unique(const std::string& base) {
    std::string name = base;
    for (int k = 1; !taken.insert(name).second; ++k) name = concat(base, "_", k);
    return name;
  }
};

// Decomposes the nodes of one graph in order, so that the types and shapes of a node's inputs are known when
// the node is decomposed.
class Decomposer {
 public:
  Decomposer(Model& model, UsedNames& names)
      : names_(names), model_(model), nodes_(std::move(model.graph.nodes)), types_(without_nodes(model)) {}

  void run() {
    for (Node& node : nodes_) {
      for (auto& [name, attribute] : node.attributes)
        if (auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
          *inner = decompose_subgraph(**inner);
      place(std::move(node));
    }
  }

 private:
  friend class Context;

  static Model& without_nodes(Model& model) {
    model.graph.nodes.clear();
    return model;
  }

  std::shared_ptr<Graph> decompose_subgraph(const Graph& graph) {
    if (!has_decomposed(graph, names_.purpose)) return std::make_shared<Graph>(graph);
    Model inner;
    inner.opsets = model_.opsets;
    inner.graph = graph;
    // The types of values of the enclosing graphs are added to the subgraph while it is decomposed.
    std::vector<std::string> outer;
    for (const Node& node : graph.nodes)
      for (const std::string& value : node.inputs)
        if (!inner.graph.info(value) && types_.info(value).dtype != DType::kUndefined) outer.push_back(value);
    for (const std::string& value : outer) inner.graph.value_info.emplace(value, types_.info(value));
    Decomposer(inner, names_).run();
    for (const std::string& value : outer) inner.graph.value_info.erase(value);
    for (const auto& [domain, version] : inner.opsets) model_.opsets.emplace(domain, version);
    return std::make_shared<Graph>(std::move(inner.graph));
  }

  // Appends the node, or its decomposition, to the graph.
  void place(Node node);

  UsedNames& names_;
  Model& model_;
  std::vector<Node> nodes_;
  ValueTypes types_;
  std::map<std::string, std::string> constants_;  // content → initializer
};

// The decomposition of one node.
class Context : public DecompositionContext {
 public:
  Context(Decomposer& decomposer, const Node& node)
      : decomposer_(decomposer), node_(node), values_(node.outputs.size()) {}

  const Node& node() const override { return node_; }
  int64_t opset(std::string_view domain) const override { return decomposer_.model_.opset(domain); }

  DType dtype(const std::string& value) const override { return decomposer_.types_.info(value).dtype; }
  std::optional<std::vector<Dim>> dims(const std::string& value) const override {
    return decomposer_.types_.info(value).dims;
  }
  const Tensor* constant_value(const std::string& value) const override {
    const Tensor* constant = decomposer_.types_.constant(value);
    return constant ? constant : decomposer_.types_.known(value);
  }

  bool is_sequence(const std::string& value) const override {
    return decomposer_.types_.info(value).is_sequence;
  }

  void set(size_t o, const std::string& value) override {
    if (has_y(o)) values_.at(o) = value;
  }

  // The model states it too, for those who infer the types of the result.
  void state_like(const std::string& value, const std::string& like) override {
    decomposer_.types_.set_like(value, like);
    ValueInfo stated = decomposer_.types_.info(value);
    stated.name = value;
    forget_made_up_names(stated);
    decomposer_.model_.graph.value_info.insert_or_assign(value, std::move(stated));
  }

  // The nodes, with the output names of the node that they replace.
  std::vector<Node> finished() {
    std::unordered_set<std::string> own;
    for (const Node& added : nodes_) own.insert(added.outputs.begin(), added.outputs.end());
    std::unordered_map<std::string, std::string> renamed;
    for (size_t o = 0; o < values_.size(); ++o) {
      if (!has_y(o)) continue;
      if (values_[o].empty()) reject("output ", o, " ('", y(o), "') is not supported");
      decomposer_.types_.set_like(y(o), values_[o]);
      if (own.count(values_[o]) && renamed.emplace(values_[o], y(o)).second) continue;
      nodes_.push_back(
          Node{"", "Identity", decomposer_.names_.unique(base() + "/Identity"), {values_[o]}, {y(o)}, {}});
    }
    const auto rename = [&](std::string& value) {
      if (const auto it = renamed.find(value); it != renamed.end()) value = it->second;
    };
    for (const auto& [before, after] : renamed)
      if (auto stated = decomposer_.model_.graph.value_info.extract(before)) {
        stated.key() = stated.mapped().name = after;
        decomposer_.model_.graph.value_info.insert(std::move(stated));
      }
    for (Node& added : nodes_) {
      std::for_each(added.inputs.begin(), added.inputs.end(), rename);
      std::for_each(added.outputs.begin(), added.outputs.end(), rename);
      if (std::any_of(added.outputs.begin(), added.outputs.end(),
                      [&](const std::string& v) { return own.count(v) == 0; }))
        decomposer_.types_.infer(added);
    }
    return std::move(nodes_);
  }

 private:
  std::vector<std::string> add_node(Node added, size_t output_count) override {
    added.name = decomposer_.names_.unique(concat(base(), "/", added.op_type));
    while (!added.inputs.empty() && added.inputs.back().empty()) added.inputs.pop_back();
    for (size_t o = 0; o < output_count; ++o)
      added.outputs.push_back(decomposer_.names_.unique(concat(added.name, "_output_", o)));
    const std::vector<std::string> outputs = added.outputs;
    if (const Writer write = writer_of(added, decomposer_.names_.purpose)) {
      Context inner(decomposer_, added);
      write(inner);
      for (Node& node : inner.finished()) nodes_.push_back(std::move(node));
    } else {
      if (!find_operator(added.domain, added.op_type))
        reject(concat("it is decomposed into nodes of the operator ", added.qualified_type(),
                      ", which is not supported yet", left_out_hint()));
      if (!added.domain.empty()) decomposer_.model_.opsets.emplace(added.domain, 1);
      decomposer_.types_.infer(added);
      nodes_.push_back(std::move(added));
    }
    return outputs;
  }

  std::string add_constant(const Tensor& value) override {
    std::string content = concat(static_cast<int>(value.dtype()), ortrain::to_string(value.shape()));
    content.append(reinterpret_cast<const char*>(value.raw()), value.bytes());
    if (const auto it = decomposer_.constants_.find(content); it != decomposer_.constants_.end())
      return it->second;
    const std::string name = decomposer_.names_.unique(
        concat("constant_", decomposer_.constants_.size(), "_", ortrain::to_string(value.dtype())));
    decomposer_.model_.graph.add_initializer(name, value);
    decomposer_.types_.set_constant(name, value);
    decomposer_.constants_.emplace(std::move(content), name);
    return name;
  }

  const std::string& base() const { return node_.name.empty() ? node_.outputs.at(0) : node_.name; }

  Decomposer& decomposer_;
  const Node& node_;
  std::vector<Node> nodes_;
  std::vector<std::string> values_;  // of the outputs
};

void Decomposer::place(Node node) {
  std::vector<Node>& placed = model_.graph.nodes;
  if (const Writer write = writer_of(node, names_.purpose)) {
    const auto problem = [&](std::string text) {
      if (names_.purpose == DecomposeFor::kStandard || !has_kernel(*find_operator(node.domain, node.op_type)))
        names_.problems.push_back(std::move(text));
    };
    try {
      Context context(*this, node);
      write(context);
      for (Node& made : context.finished()) placed.push_back(std::move(made));
      return;
    } catch (const Error& error) {
      problem(error.message());
    } catch (const std::out_of_range&) {
      problem(concat(node.label(), ": it has ", counted(node.inputs.size(), "input"), " and ",
                     counted(node.outputs.size(), "output"), ", which are fewer than it needs"));
    }
  }
  types_.infer(node);
  placed.push_back(std::move(node));
}

}  // namespace

std::vector<std::string> decompose_operators(Model& model, DecomposeFor purpose) {
  if (!has_decomposed(model.graph, purpose)) return {};
  UsedNames names{purpose, {}, {}};
  collect_names(model.graph, names.taken);
  Decomposer(model, names).run();
  return names.problems;
}

}  // namespace ortrain
