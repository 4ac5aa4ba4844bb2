// Reverse-mode differentiation of a graph: walk backwards over the nodes between the trainable parameters and
// the loss, let each operator's rule turn the gradients of its outputs into gradients of its inputs, and add
// up the contributions to values with several readers.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autodiff/gradient_request.h"
#include "graph/graph.h"
#include "infer/value_types.h"
#include "op/operator.h"

namespace ortrain {

class GradientBuilder {
 public:
  // Differentiates the model in place. With `accumulate`, every gradient is added to its buffer by an
  // InPlaceAccumulatorV2.
  GradientBuilder(Model& model, const GradientRequest& request, bool accumulate)
      : model_(importing_microsoft(model)),
        graph_(model.graph),
        request_(request),
        accumulate_(accumulate),
        outermost_(true),
        trainable_(request.trainable.begin(), request.trainable.end()),
        inputs_(request.inputs.begin(), request.inputs.end()),
        names_(own_names_),
        types_(model) {
    trainable_.insert(inputs_.begin(), inputs_.end());
    collect_names(graph_);
    if (!request.loss.empty()) reaches_loss_.insert(request.loss);
    reaches_loss_.insert(request.cotangents.begin(), request.cotangents.end());
  }
  // Differentiates a subgraph of a node in the graph of `outer`, in place, with respect to
  // `request.trainable`.
  GradientBuilder(GradientBuilder& outer, Graph& subgraph, const std::vector<ValueInfo>& inputs,
                  const GradientRequest& request)
      : model_(outer.model_),
        graph_(subgraph),
        request_(request),
        accumulate_(false),
        outermost_(false),
        trainable_(request.trainable.begin(), request.trainable.end()),
        names_(outer.names_),
        types_(subgraph, inputs, outer.types_) {}

  void run();
  // Differentiates a subgraph, starting from the gradients of some of its values.
  void run(const std::vector<std::pair<std::string, std::string>>& seeds);

  // The problems found so far.
  void add_problems(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) problem(kModelWide + 1, text);
  }

  // Every reason why the graph that run() produced must not be used, in the order of the nodes; then the
  // nodes whose inputs do not fit, including nodes that rules added.
  std::vector<std::string> problems() const;
  // The trainable values that no gradient reaches.
  const std::vector<std::string>& unreached() const { return unreached_; }
  // The gradient of a trainable value; empty where there is none.
  std::string gradient_of(const std::string& value) const;
  // The type and shape of a value, as far as they are known.
  const ValueInfo& info(const std::string& value) const { return types_.info(value); }

 private:
  friend class RuleContext;
  static constexpr size_t kModelWide = 0;  // problems that belong to no node come first

  static Model& importing_microsoft(Model& model) {
    model.opsets.emplace(kMicrosoft, 1);
    return model;
  }
  void collect_names(const Graph& graph);
  void walk();
  void check_operators(const Graph& graph, size_t position);
  void check_request();
  void check_loss();
  void find_path();
  void differentiate(size_t n);
  void finish_trainable(const std::string& name);
  std::string finalize(const std::string& value, bool own_name);
  std::string add_node(const std::string& name, const std::string& op_type,
                       const std::vector<std::string>& inputs, const std::string& output,
                       const std::string& domain = "");
  void use_training_forms();
  void problem(size_t position, const std::string& text) { problems_.emplace(position, text); }
  std::string describe(const Node& node) const {
    return concat(node.label(), ", domain ", node.domain.empty() ? "ai.onnx" : node.domain, ", opset ",
                  model_.opset(node.domain));
  }
  std::string unique(const std::string& base) {
    std::string name = base;
    for (int k = 1; !names_.insert(name).second; ++k) name = concat(base, "_", k);
    return name;
  }
  // How messages refer to a value that gets a gradient.
  std::string described(const std::string& value) const {
    return concat(inputs_.count(value) > 0 ? "input" : "parameter", " \"", value, "\"");
  }
  // Whether the graph has a value with that name.
  bool has_value(const std::string& value) const {
    return graph_.is_initializer(value) || graph_.is_input(value) || is_made(value);
  }
  bool is_made(const std::string& value) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      return std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end();
    });
  }
  // The number of the node that produces a value; 0 if none does.
  size_t producer_of(const std::string& value) const {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const std::vector<std::string>& made = graph_.nodes[n].outputs;
      if (std::find(made.begin(), made.end(), value) != made.end()) return n;
    }
    return 0;
  }
  void seed_loss();

  Model& model_;
  Graph& graph_;
  const GradientRequest& request_;
  const bool accumulate_;
  const bool outermost_;
  std::unordered_set<std::string> trainable_;  // everything that gets a gradient, including inputs_
  std::unordered_set<std::string> inputs_;     // user inputs, whose gradients are not accumulated
  std::unordered_set<std::string> own_names_;
  std::unordered_set<std::string>& names_;  // of the whole model
  ValueTypes types_;
  std::unordered_set<std::string> reaches_loss_;

  std::unordered_set<std::string>
      active_;                 // values that depend on a trainable parameter and can carry a gradient
  std::vector<bool> on_path_;  // nodes between a trainable parameter and the loss
  std::unordered_map<std::string, size_t>
      first_reader_;  // of trainable parameters, among the nodes on the path

  std::unordered_map<std::string, std::vector<std::string>>
      contributions_;                                       // value → gradients from its readers
  std::unordered_map<std::string, std::string> gradients_;  // value → its whole gradient
  std::vector<Node> backward_;
  std::vector<Node> first_;  // nodes that rules place before all others
  std::map<DType, std::string> empty_sequences_;
  std::unordered_set<std::string> emitted_;  // outputs of rules' nodes
  std::unordered_map<std::string, std::string>
      rename_;  // outputs of rules' nodes that got a value's gradient name
  std::unordered_map<std::string, std::string>
      shapes_;  // value → output of the Shape node that was emitted for it
  std::multimap<std::string, std::string> constant_names_;  // content → initializer
  std::multimap<size_t, std::string> problems_;
  std::vector<std::string> unreached_;
};

}  // namespace ortrain
