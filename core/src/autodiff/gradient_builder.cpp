// Reverse-mode differentiation of a graph: walk the nodes between the trainable parameters and the loss
// backwards, let each operator's rule turn the gradients of its outputs into gradients of its inputs, add up
// what reaches a value from several readers.
#include "autodiff/gradient_builder.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/gradient_nodes.h"
#include "infer/value_types.h"
#include "op/expansion.h"
#include "op/gradient_context.h"
#include "op/operator.h"
#include "op/subgraph_context.h"
#include "ops/common/sequence.h"
#include "passes/pass.h"

namespace ortrain {
namespace {

constexpr const char* kLazyReset = "lazy_reset_grad";

std::string to_string(const std::vector<Dim>& dims) {
  std::string text;
  for (const Dim& dim : dims) {
    const bool named = !dim.symbol.empty() && !dim.symbol.starts_with("?");
    text += concat(text.empty() ? "" : ", ", dim.known() ? std::to_string(dim.value)
                                             : named     ? dim.symbol
                                                         : "?");
  }
  return "[" + text + "]";
}

std::string join(const std::vector<std::string>& names, size_t most = 8) {
  std::string text;
  for (size_t n = 0; n < names.size() && n < most; ++n) text += concat(n ? ", " : "", "\"", names[n], "\"");
  if (names.size() > most) text += concat(" and ", names.size() - most, " more");
  return text;
}

// Renames what a node reads and makes, and what its subgraphs read.
void rename_values(Node& node, const std::unordered_map<std::string, std::string>& names) {
  const auto rename = [&](std::string& value) {
    if (const auto it = names.find(value); it != names.end()) value = it->second;
  };
  std::for_each(node.inputs.begin(), node.inputs.end(), rename);
  std::for_each(node.outputs.begin(), node.outputs.end(), rename);
  for (auto& [name, attribute] : node.attributes) {
    auto* graph = std::get_if<std::shared_ptr<Graph>>(&attribute);
    if (!graph || !*graph) continue;
    const std::vector<std::string> read = values_read(**graph);
    if (std::none_of(read.begin(), read.end(), [&](const std::string& v) { return names.count(v) > 0; }))
      continue;
    *graph = std::make_shared<Graph>(**graph);
    for (Node& inner : (*graph)->nodes) rename_values(inner, names);
    for (ValueInfo& output : (*graph)->outputs) rename(output.name);
  }
}

class Builder;

// What one rule sees and does; forwards to the builder.
class RuleContext : public GradientContext, public SubgraphContext {
 public:
  RuleContext(Builder& builder, size_t node_index) : builder_(builder), index_(node_index) {}

  const Node& node() const override;
  int64_t opset(const std::string& domain) const override;
  std::string dy(size_t o) const override;
  bool needs(size_t i) const override;
  void set(size_t i, const std::string& gradient) override;
  std::vector<std::string> emit(const std::string& op_type, const std::vector<std::string>& inputs,
                                size_t output_count, const Attributes& attributes,
                                const std::string& domain) override;
  std::string want_y(size_t o) override;
  void retype_node(const std::string& op_type, const std::string& domain) override;
  SubgraphContext& subgraphs() override { return *this; }

  std::vector<std::string> captured() const override;
  void set_captured(const std::string& value, const std::string& gradient) override;
  ValueInfo info(const std::string& value) const override;
  std::vector<ValueInfo> output_types(const std::string& attribute,
                                      const std::vector<ValueInfo>& inputs) const override;
  SubgraphGradient differentiate(const std::string& attribute, const std::vector<ValueInfo>& inputs,
                                 const std::vector<std::string>& wanted,
                                 const std::vector<std::pair<size_t, std::string>>& seeds) override;
  std::string empty_sequence(DType dtype) override;
  std::string unique(const std::string& base) override;
  void change(Node node) override;
  std::string constant(const Tensor& value) override;
  DType dtype(const std::string& value) const override;
  std::optional<std::vector<Dim>> dims(const std::string& value) const override;
  const Tensor* constant_value(const std::string& value) const override;

 private:
  const Graph& subgraph(const std::string& attribute) const;

  Builder& builder_;
  size_t index_;
  int emitted_ = 0;
  std::set<size_t> set_;
};

class Builder {
 public:
  // Differentiates the model in place. With `accumulate` every gradient goes through an InPlaceAccumulatorV2
  // into its buffer.
  Builder(Model& model, const GradientRequest& request, bool accumulate)
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
  Builder(Builder& outer, Graph& subgraph, const std::vector<ValueInfo>& inputs,
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
  // The same for a subgraph: from the gradients of some of its values.
  void run(const std::vector<std::pair<std::string, std::string>>& seeds);

  // What was found to be wrong before.
  void add_problems(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) problem(kModelWide + 1, text);
  }

  // Every reason why the graph that run() left is not to be used, in the order of the graph; behind them
  // nodes, those that rules added among them, whose inputs do not fit.
  std::vector<std::string> problems() const;
  // The trainable values that no gradient reaches.
  const std::vector<std::string>& unreached() const { return unreached_; }
  // The gradient of a trainable value; empty where there is none.
  std::string gradient_of(const std::string& value) const;
  // What is known of a value.
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
  void use_training_batch_normalization();
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
  // What a value that gets a gradient is called in messages.
  std::string described(const std::string& value) const {
    return concat(inputs_.count(value) > 0 ? "input" : "parameter", " \"", value, "\"");
  }
  // Whether the graph has a value of that name.
  bool has_value(const std::string& value) const {
    return graph_.is_initializer(value) || graph_.is_input(value) || is_made(value);
  }
  bool is_made(const std::string& value) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) {
      return std::find(node.outputs.begin(), node.outputs.end(), value) != node.outputs.end();
    });
  }
  // The number of the node that makes a value, 0 where none does.
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
  std::unordered_set<std::string> trainable_;  // what gets a gradient, inputs_ too
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
  std::vector<Node> first_;  // nodes that rules want before all others
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

// ---------------------------------------------------------------------------------------------------------------------
// What is known before the walk.

void Builder::collect_names(const Graph& graph) {
  for (const ValueInfo& v : graph.inputs) names_.insert(v.name);
  for (const ValueInfo& v : graph.outputs) names_.insert(v.name);
  for (const std::string& name : graph.initializer_order) names_.insert(name);
  for (const Node& node : graph.nodes) {
    names_.insert(node.name);
    names_.insert(node.outputs.begin(), node.outputs.end());
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
        collect_names(**inner);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// What cannot be trained.

void Builder::check_operators(const Graph& graph, size_t position) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const size_t at = &graph == &graph_ ? n + 1 : position;
    const Operator* op = find_operator(node.domain, node.op_type);
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
        check_operators(**inner, at);
    if (op && op->carries(model_.opset(node.domain))) continue;
    if (op)
      problem(at, concat(describe(node), ": this operator is known from opset ", op->since,
                         " on; convert the model with onnx.version_converter"));
    else
      problem(at,
              concat(describe(node),
                     ": this operator is not known; use supported operators instead, or compute this part ",
                     "outside the model"));
  }
}

void Builder::check_request() {
  if (trainable_.empty() && !accumulate_)
    problem(kModelWide, "no value is to be differentiated; name at least one");
  for (const std::string& name : std::set<std::string>(trainable_.begin(), trainable_.end())) {
    if (inputs_.count(name) > 0) {
      const std::vector<std::string>& parameters = request_.trainable;
      const bool is_parameter = std::find(parameters.begin(), parameters.end(), name) != parameters.end();
      if (is_parameter || !graph_.is_input(name)) {
        problem(kModelWide,
                concat("input \"", name, "\": ",
                       is_parameter ? "it is a parameter as well" : "the model has no input of that name"));
        continue;
      }
    }
    if (!accumulate_ && !has_value(name)) {
      problem(kModelWide, concat("value \"", name, "\": the model has no value of that name"));
      continue;
    }
    if (accumulate_ && !graph_.is_initializer(name) && !graph_.is_input(name)) {
      problem(
          kModelWide,
          concat("parameter \"", name, "\": the model has no initializer of that name; it has ",
                 graph_.initializer_order.empty() ? std::string("none") : join(graph_.initializer_order)));
      continue;
    }
    const DType dtype = info(name).dtype;
    if (!is_floating(dtype)) {
      problem(kModelWide, concat(described(name), ": has element type ", ortrain::to_string(dtype),
                                 ", and only float32, float64, float16 and bfloat16 can be trained; ",
                                 "leave it out of the trainable ones"));
    }
  }
}

void Builder::check_loss() {
  for (const std::string& name : request_.cotangents)
    if (!has_value(name))
      problem(kModelWide, concat("value \"", name, "\": the model has no value of that name"));
  if (request_.loss.empty() && !request_.cotangents.empty()) return;
  if (!has_value(request_.loss)) {
    problem(kModelWide, concat("loss \"", request_.loss, "\": the model has no value of that name"));
    return;
  }
  const ValueInfo& loss = info(request_.loss);
  if (loss.dtype != DType::kUndefined && !is_floating(loss.dtype)) {
    problem(kModelWide,
            concat("loss \"", request_.loss, "\": has element type ", ortrain::to_string(loss.dtype),
                   ", and a loss is float32, float64, float16 or bfloat16"));
  }
  if (!loss.dims || request_.any_loss_shape) return;
  if (!std::all_of(loss.dims->begin(), loss.dims->end(), [](const Dim& d) { return d.value == 1; })) {
    problem(kModelWide, concat("loss \"", request_.loss, "\": has shape ", to_string(*loss.dims),
                               ", and a loss is one number; reduce it with a mean or a sum"));
  }
}

std::vector<std::string> Builder::problems() const {
  std::vector<std::string> texts;
  std::set<std::string> seen;
  for (const auto& [position, text] : problems_)
    if (seen.insert(text).second) texts.push_back(text);
  for (const std::string& text : types_.problems())
    if (seen.insert(text).second) texts.push_back(text);
  return texts;
}

// ---------------------------------------------------------------------------------------------------------------------
// The walk.

void Builder::find_path() {
  const size_t count = graph_.nodes.size();
  std::vector<bool> depends(count, false);  // on a trainable parameter, in a way that has a derivative
  active_ = trainable_;
  // Integers have no derivative, but those that stand for real numbers carry the gradient to the operator
  // that made them.
  std::unordered_set<std::string> dequantized;
  for (const Node& node : graph_.nodes)
    if (const Operator* op = find_operator(node.domain, node.op_type);
        op && op->quantized && node.has_input(0))
      dequantized.insert(node.inputs[0]);
  for (size_t n = 0; n < count; ++n) {
    const Node& node = graph_.nodes[n];
    const Operator* op = find_operator(node.domain, node.op_type);
    if (op && op->differentiable() == Differentiable::kStop) continue;
    const std::vector<std::string> read = values_read(node);
    if (std::none_of(read.begin(), read.end(), [&](const std::string& v) { return active_.count(v) > 0; }))
      continue;
    for (const std::string& output : node.outputs) {
      const DType dtype = info(output).dtype;
      if (output.empty()) continue;
      if (dtype != DType::kUndefined && !is_floating(dtype) &&
          !(op && op->quantized && dequantized.count(output)))
        continue;
      active_.insert(output);
      depends[n] = true;
    }
  }
  on_path_.assign(count, false);
  for (size_t n = count; n-- > 0;) {
    if (!depends[n]) continue;
    const Node& node = graph_.nodes[n];
    if (std::none_of(node.outputs.begin(), node.outputs.end(), [&](const std::string& v) {
          return active_.count(v) > 0 && reaches_loss_.count(v) > 0;
        }))
      continue;
    on_path_[n] = true;
    for (const std::string& value : values_read(node)) {
      reaches_loss_.insert(value);
      if (trainable_.count(value)) first_reader_[value] = n;
    }
  }
  if (!outermost_) return;  // its rule knows what no gradient reaches
  for (const std::string& name : std::set<std::string>(trainable_.begin(), trainable_.end())) {
    if (first_reader_.count(name) || name == request_.loss) continue;
    if (!has_value(name)) continue;
    unreached_.push_back(name);
    problem(kModelWide,
            concat(described(name), ": the loss \"", request_.loss,
                   "\" does not depend on it, so it has no gradient; leave it out of the trainable ones"));
  }
}

// The gradient of the loss is one, that of a cotangent's value comes in.
void Builder::seed_loss() {
  for (const std::string& value : request_.cotangents) {
    if (value == request_.loss) continue;
    ValueInfo stated = info(value);
    stated.name = value + "_grad";
    if (!names_.insert(stated.name).second)
      problem(kModelWide, concat("value \"", value, "\": the model has a value named \"", stated.name,
                                 "\" already, so the gradient that comes in cannot have that name"));
    forget_made_up_names(stated);
    graph_.inputs.push_back(stated);
    types_.set_like(stated.name, value);
    contributions_[value].push_back(stated.name);
  }
  if (request_.loss.empty() && !request_.cotangents.empty()) return;
  const ValueInfo& loss = info(request_.loss);
  const std::string name = unique(request_.loss + "_grad");
  contributions_[request_.loss].push_back(name);
  if (problems_.count(kModelWide) > 0) return;  // the walk goes on to find the other problems too
  const DType dtype = loss.dtype == DType::kUndefined ? DType::kFloat : loss.dtype;
  const bool is_number = loss.dims && std::all_of(loss.dims->begin(), loss.dims->end(),
                                                  [](const Dim& d) { return d.value == 1; });
  if (is_number || !request_.any_loss_shape) {
    Shape ones(loss.dims ? loss.dims->size() : 0, 1);
    Tensor one(dtype, ones);
    one.copy_from(Tensor::scalar(one.dtype(), 1.0).reshaped(ones));
    graph_.add_initializer(name, one);
    types_.set_constant(name, one);
    return;
  }
  const std::string shape = add_node(name + "/Shape", "Shape", {request_.loss}, unique(name + "_shape"));
  add_node(name + "/ConstantOfShape", "ConstantOfShape", {shape}, name);
  backward_.back().attributes["value"] = Tensor::scalar(dtype, 1.0).reshaped({1});
  types_.set_like(name, request_.loss);
}

void Builder::run() {
  check_request();
  check_loss();
  check_operators(graph_, 0);
  find_path();

  seed_loss();
  if (trainable_.count(request_.loss) && !first_reader_.count(request_.loss)) finish_trainable(request_.loss);
  walk();
  use_training_batch_normalization();
}

void Builder::run(const std::vector<std::pair<std::string, std::string>>& seeds) {
  for (const auto& [value, gradient] : seeds) {
    reaches_loss_.insert(value);
    contributions_[value].push_back(gradient);
    types_.set_like(gradient, value);
  }
  find_path();
  walk();
}

// From the last node to the first; what comes of it is behind them afterwards.
void Builder::walk() {
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    if (!on_path_[n]) continue;
    const std::vector<std::string> read = values_read(graph_.nodes[n]);
    differentiate(n);
    // The gradient of a parameter is whole once its first reader is done. Taking it up at once keeps it
    // short-lived.
    for (const std::string& value : std::set<std::string>(read.begin(), read.end())) {
      const auto it = first_reader_.find(value);
      if (it != first_reader_.end() && it->second == n && outermost_) finish_trainable(value);
    }
  }
  if (!outermost_)
    for (const std::string& value : request_.trainable) finalize(value, false);

  for (Node& node : backward_) {
    rename_values(node, rename_);
    graph_.nodes.push_back(std::move(node));
  }
  graph_.nodes.insert(graph_.nodes.begin(), first_.begin(), first_.end());
  // Pooling gradients take their output's shape from what the model states of it. It is that of the value,
  // for its gradient as for every part of it.
  const auto state = [this](const std::string& gradient, const std::string& value) {
    if (gradient.empty() || graph_.info(gradient) || graph_.value_info.count(gradient)) return;
    ValueInfo stated = info(value);
    if (!stated.dims || stated.dtype == DType::kUndefined) return;
    stated.name = gradient;
    forget_made_up_names(stated);
    graph_.value_info[gradient] = stated;
  };
  for (const auto& [value, gradient] : gradients_) state(gradient, value);
  for (const auto& [value, parts] : contributions_)
    for (const std::string& part : parts)
      if (emitted_.count(part) && !rename_.count(part)) state(part, value);
}

void Builder::differentiate(size_t n) {
  std::vector<std::string> gradients;
  bool reached = false;
  for (const std::string& output : graph_.nodes[n].outputs)
    if (!output.empty() && active_.count(output)) reached |= !finalize(output, false).empty();
  if (!reached) return;

  const Operator* op = find_operator(graph_.nodes[n].domain, graph_.nodes[n].op_type);
  bool done = false;
  if (op && op->gradient) {
    try {
      RuleContext context(*this, n);
      op->gradient(context);
      done = true;
    } catch (const Error& error) {
      problem(n + 1, concat(describe(graph_.nodes[n]), ": its gradient cannot be built: ", error.message()));
    } catch (const std::out_of_range&) {  // the rule asked for an input or output that the node does not have
      const Node& node = graph_.nodes[n];
      problem(n + 1, concat(describe(node), ": its gradient cannot be built: it has ", node.inputs.size(),
                            " inputs and ", node.outputs.size(), " outputs, which are fewer than it needs"));
    }
  } else if (op && (op->kernel || !op->expand)) {  // what only can be expanded has its problem listed
    std::vector<std::string> behind;
    for (const std::string& value : graph_.nodes[n].inputs)
      if (trainable_.count(value)) behind.push_back(value);
    problem(n + 1, concat(describe(graph_.nodes[n]), ": this operator can be run but has no gradient yet; ",
                          behind.empty() ? "freeze the parameters before it" : "freeze " + join(behind),
                          ", or write this part with other operators"));
  }
  if (done) return;
  // Gradients that are not there let the walk go on, so that every problem is found at once.
  for (const std::string& value : values_read(graph_.nodes[n])) {
    if (!active_.count(value)) continue;
    const std::string stand_in = unique(value + "_grad_stand_in");
    types_.set_like(stand_in, value);
    contributions_[value].push_back(stand_in);
  }
}

// Makes one gradient of what the readers of `value` contributed. With `own_name` it gets a name of its own
// even where it is also the gradient of another value.
std::string Builder::finalize(const std::string& value, bool own_name) {
  if (const auto it = gradients_.find(value); it != gradients_.end()) return it->second;
  const std::vector<std::string> parts = contributions_[value];
  std::string& gradient = gradients_[value];
  if (parts.empty()) return gradient;
  // What a subgraph gives is a part of the gradient outside.
  const std::string base = value + (!outermost_ && trainable_.count(value) ? "_grad_part" : "_grad");
  if (parts.size() == 1) {
    const std::string& part = parts[0];
    if (emitted_.count(part) && !rename_.count(part)) {
      gradient = unique(base);
      rename_[part] = gradient;
    } else if (own_name) {
      gradient = add_node(base + "/Identity", "Identity", {part}, unique(base));
    } else {
      gradient = part;
    }
  } else if (info(value).is_sequence) {
    RuleContext writer(*this, producer_of(value));
    std::string sum = parts[0];
    for (size_t k = 1; k < parts.size(); ++k)
      sum = add_sequences(writer_of(static_cast<GradientContext&>(writer)), sum, parts[k], info(value).dtype);
    gradient = unique(base);
    rename_[sum] = gradient;
  } else {
    gradient = add_node(base + "/Sum", "Sum", parts, unique(base));
  }
  types_.set_like(gradient, value);
  return gradient;
}

void Builder::finish_trainable(const std::string& name) {
  const std::string gradient = finalize(name, true);
  if (gradient.empty()) {
    unreached_.push_back(name);
    if (problems_.empty())
      problem(kModelWide, concat(described(name), ": the operators between it and the loss \"", request_.loss,
                                 "\" give it no gradient; leave it out of the trainable ones"));
    return;
  }
  if (!accumulate_ || inputs_.count(name) > 0) return;
  add_node(gradient + ".accumulation", "InPlaceAccumulatorV2",
           {name + "_grad.accumulation.buffer", gradient, kLazyReset}, name + "_grad.accumulation.out",
           kMicrosoft);
}

std::string Builder::add_node(const std::string& name, const std::string& op_type,
                              const std::vector<std::string>& inputs, const std::string& output,
                              const std::string& domain) {
  Node node;
  node.domain = domain;
  node.op_type = op_type;
  node.name = unique(name);
  node.inputs = inputs;
  node.outputs = {output};
  backward_.push_back(std::move(node));
  return output;
}

std::string Builder::gradient_of(const std::string& value) const {
  const auto it = gradients_.find(value);
  return it == gradients_.end() ? "" : it->second;
}

// onnxruntime trains with its own batch normalization only: ONNX's in training mode has no kernel there. The
// two differ in the outputs that they leave for the backward pass.
void Builder::use_training_batch_normalization() {
  for (Node& node : graph_.nodes) {
    if (!node.domain.empty() || node.op_type != "BatchNormalization" || node.int_or("training_mode", 0) != 1)
      continue;
    node.op_type = "BatchNormInternal";
    node.domain = kMicrosoft;
    static constexpr const char* kOutputs[] = {"Y", "running_mean", "running_var", "saved_mean",
                                               "saved_inv_std"};
    for (size_t o = node.outputs.size(); o < std::size(kOutputs); ++o)
      node.outputs.push_back(unique(concat(node.outputs[0], "_", kOutputs[o])));
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// What rules ask for.

const Node& RuleContext::node() const { return builder_.graph_.nodes[index_]; }

int64_t RuleContext::opset(const std::string& domain) const { return builder_.model_.opset(domain); }

std::string RuleContext::dy(size_t o) const {
  return node().has_output(o) ? builder_.gradient_of(node().outputs[o]) : std::string();
}

bool RuleContext::needs(size_t i) const {
  return node().has_input(i) && builder_.active_.count(node().inputs[i]) > 0;
}

void RuleContext::set(size_t i, const std::string& gradient) {
  if (!needs(i)) return;
  if (gradient.empty()) reject(concat("its rule gave an empty gradient for input ", i));
  if (!set_.insert(i).second) reject(concat("its rule gave two gradients for input ", i));
  builder_.contributions_[x(i)].push_back(gradient);
}

std::vector<std::string> RuleContext::emit(const std::string& op_type, const std::vector<std::string>& inputs,
                                           size_t output_count, const Attributes& attributes,
                                           const std::string& domain) {
  Builder& b = builder_;
  const bool is_shape = op_type == "Shape" && domain.empty() && attributes.empty() && output_count == 1;
  if (is_shape)
    if (const auto it = b.shapes_.find(inputs.at(0)); it != b.shapes_.end()) return {it->second};
  const Operator* op = find_operator(domain, op_type);
  if (!op) {
    b.problem(index_ + 1, concat(b.describe(node()), ": its gradient needs the operator ",
                                 domain.empty() ? "" : domain + ".", op_type, ", which cannot be run yet"));
  }
  Node added;
  added.domain = domain;
  added.op_type = op_type;
  const std::string& base = node().name.empty() ? node().outputs.at(0) : node().name;
  added.name = b.unique(concat(base, "_Grad/", op_type, "_", emitted_++));
  added.inputs = inputs;
  added.attributes = attributes;
  for (size_t o = 0; o < output_count; ++o) {
    added.outputs.push_back(b.unique(concat(added.name, "_output_", o)));
    b.emitted_.insert(added.outputs.back());
  }
  if (is_shape) b.shapes_[inputs[0]] = added.outputs[0];
  b.types_.infer(added);
  std::vector<std::string> outputs = added.outputs;
  b.backward_.push_back(std::move(added));
  return outputs;
}

std::string RuleContext::want_y(size_t o) {
  Node& node = builder_.graph_.nodes[index_];
  if (!node.has_output(o)) {
    if (node.outputs.size() <= o) node.outputs.resize(o + 1);
    node.outputs[o] =
        builder_.unique(concat(node.outputs.at(0).empty() ? node.name : node.outputs[0], "_saved_", o));
    builder_.types_.infer(node);
  }
  return node.outputs[o];
}

void RuleContext::retype_node(const std::string& op_type, const std::string& domain) {
  Node& node = builder_.graph_.nodes[index_];
  node.op_type = op_type;
  node.domain = domain;
}

std::string RuleContext::constant(const Tensor& value) {
  Builder& b = builder_;
  std::string content = concat(static_cast<int>(value.dtype()), ortrain::to_string(value.shape()));
  content.append(reinterpret_cast<const char*>(value.raw()), value.bytes());
  if (const auto it = b.constant_names_.find(content); it != b.constant_names_.end()) return it->second;
  const std::string name = b.unique(
      concat("gradient_constant_", b.constant_names_.size(), "_", ortrain::to_string(value.dtype())));
  b.graph_.add_initializer(name, value);
  b.types_.set_constant(name, value);
  b.constant_names_.emplace(content, name);
  return name;
}

DType RuleContext::dtype(const std::string& value) const { return builder_.info(value).dtype; }

std::optional<std::vector<Dim>> RuleContext::dims(const std::string& value) const {
  return builder_.info(value).dims;
}

const Tensor* RuleContext::constant_value(const std::string& value) const {
  if (builder_.active_.count(value)) return nullptr;  // trainable, or computed from what is
  return builder_.types_.known(value);
}

// ---------------------------------------------------------------------------------------------------------------------
// The models.

// The outputs of the training model, in order, with what is known of them.
std::vector<ValueInfo> chosen_outputs(const Graph& graph, const GradientRequest& request) {
  std::vector<std::string> names = {request.loss};
  for (const std::string& name : request.other_outputs)
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  std::unordered_set<std::string> made;
  for (const Node& node : graph.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  std::vector<ValueInfo> outputs;
  for (const std::string& name : names) {
    if (!made.count(name) && !graph.is_initializer(name) && !graph.is_input(name)) {
      std::vector<std::string> known;
      for (const ValueInfo& output : graph.outputs) known.push_back(output.name);
      fail(ErrorCode::kInvalidArgument, "the training model should have the output \"", name,
           "\", but the model has no value of that name; its outputs are ", join(known));
    }
    outputs.push_back(graph.info(name).value_or(ValueInfo{name, DType::kUndefined, std::nullopt}));
  }
  return outputs;
}

// The forward model as the builder wants it: parameters are inputs behind the others, in the order of the
// model; parts that neither loss nor other outputs need are gone; fused. What is variable has to be so before
// fusions look for constants.
Model prepared(const Model& forward, const GradientRequest& request, const std::set<std::string>& parameters,
               std::vector<std::string>& problems) {
  Model model = forward;
  expand_gradient_nodes(model);
  Graph& graph = model.graph;
  graph.outputs = chosen_outputs(graph, request);
  const auto is_users = [&](const ValueInfo& v) { return parameters.count(v.name) == 0; };
  std::stable_partition(graph.inputs.begin(), graph.inputs.end(), is_users);
  for (const std::string& name : forward.graph.initializer_order) {
    if (!parameters.count(name)) continue;
    graph.inputs.push_back(*forward.graph.info(name));
    graph.remove_initializer(name);
  }
  graph.remove_unused_nodes();
  problems = expand_operators(model, ExpandFor::kGradient);
  run_passes(model, PassMoment::kArtifact, request.config);
  return model;
}

[[noreturn]] void refuse(const std::vector<std::string>& problems) {
  std::string text;
  for (const std::string& problem : problems) text += "\n" + problem;
  fail(ErrorCode::kNotImplemented, "the model cannot be trained:", text);
}

// Adds the output `<value>_grad`. `stated`: what is known of the value, and so of its gradient.
void give_gradient(Graph& graph, const std::string& value, const std::string& gradient, ValueInfo stated) {
  require(gradient == value + "_grad", ErrorCode::kInvalidArgument, "the model has a value named \"", value,
          "_grad\" already, so the gradient of \"", value, "\" cannot have that name");
  stated.name = gradient;
  forget_made_up_names(stated);
  graph.outputs.push_back(std::move(stated));
}

// Leaves the name out of outputs that nothing reads and that the operator need not make, so that it does not.
void drop_unused_outputs(Graph& graph) {
  static const std::set<std::string_view> all_optional = {
      "BroadcastGradientArgs", "ConvGrad", "ConvTransposeGrad", "DivGrad", "GRUGrad", "LSTMGrad"};
  const auto uses = count_uses(graph);
  for (Node& node : graph.nodes) {
    if (node.domain != kMicrosoft || !all_optional.count(node.op_type)) continue;
    for (std::string& output : node.outputs)
      if (!uses.count(output)) output.clear();
    while (!node.outputs.empty() && node.outputs.back().empty()) node.outputs.pop_back();
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Subgraphs.

const Graph& RuleContext::subgraph(const std::string& attribute) const {
  const auto found = node().attributes.find(attribute);
  const auto* graph =
      found == node().attributes.end() ? nullptr : std::get_if<std::shared_ptr<Graph>>(&found->second);
  if (!graph || !*graph) reject(concat("attribute '", attribute, "' is missing or no graph"));
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
  Builder inner(builder_, whole, inputs, request);
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

}  // namespace

std::string add_node(SubgraphContext& s, Graph& graph, const std::string& op_type,
                     const std::vector<std::string>& inputs, const Attributes& attributes) {
  Node node;
  node.op_type = op_type;
  node.name = s.unique(concat(graph.name, "/", op_type));
  node.inputs = inputs;
  node.outputs = {s.unique(node.name + "_output")};
  node.attributes = attributes;
  graph.nodes.push_back(std::move(node));
  return graph.nodes.back().outputs[0];
}

std::string add_zeros_like(SubgraphContext& s, Graph& graph, const std::string& like, DType dtype) {
  const std::string shape = add_node(s, graph, "Shape", {like});
  return add_node(s, graph, "ConstantOfShape", {shape}, {{"value", Tensor::scalar(dtype, 0).reshaped({1})}});
}

std::vector<std::string> values_read(const Graph& graph) {
  Node reader;
  reader.attributes["graph"] = std::make_shared<Graph>(graph);
  std::vector<std::string> read = values_read(reader);
  std::sort(read.begin(), read.end());
  read.erase(std::unique(read.begin(), read.end()), read.end());
  return read;
}

std::string find_untrainable(const Model& forward, const GradientRequest& request) {
  std::vector<std::string> problems;
  Model model = prepared(forward, request, {request.trainable.begin(), request.trainable.end()}, problems);
  Builder builder(model, request, true);
  builder.add_problems(problems);
  builder.run();
  std::string text;
  for (const std::string& problem : builder.problems()) text += (text.empty() ? "" : "\n") + problem;
  return text;
}

std::vector<std::string> find_unreached(const Model& forward, const GradientRequest& request) {
  std::vector<std::string> problems;
  Model model = prepared(forward, request, {request.trainable.begin(), request.trainable.end()}, problems);
  Builder builder(model, request, true);
  builder.run();
  return builder.unreached();
}

Model build_training_model(const Model& forward, const GradientRequest& request,
                           const std::vector<std::string>& parameters) {
  const std::set<std::string> listed(parameters.begin(), parameters.end());
  const std::set<std::string> trainable(request.trainable.begin(), request.trainable.end());
  for (const std::string& name : listed)
    require(forward.graph.is_initializer(name) || forward.graph.is_input(name), ErrorCode::kInvalidArgument,
            "parameter \"", name,
            "\" is neither an initializer nor an input of the model; its initializers are ",
            join(forward.graph.initializer_order));
  for (const std::string& name : trainable)
    require(listed.count(name) > 0, ErrorCode::kInvalidArgument, "the trainable value \"", name,
            "\" is not among the parameters");

  std::vector<std::string> problems;
  Model model = prepared(forward, request, listed, problems);
  Builder builder(model, request, true);
  builder.add_problems(problems);
  builder.run();
  if (problems = builder.problems(); !problems.empty()) refuse(problems);

  Graph& graph = model.graph;
  const std::set<std::string> wanted_inputs(request.inputs.begin(), request.inputs.end());
  for (const ValueInfo& stated : forward.graph.inputs)
    if (wanted_inputs.count(stated.name))
      give_gradient(graph, stated.name, builder.gradient_of(stated.name), stated);
  std::vector<ValueInfo> buffers;
  for (ValueInfo stated : graph.inputs) {
    if (!trainable.count(stated.name)) continue;
    const std::string gradient = stated.name + "_grad";
    stated.name = gradient + ".accumulation.buffer";
    buffers.push_back(stated);
    graph.outputs.push_back(
        ValueInfo{gradient + ".accumulation.out", DType::kBool, std::vector<Dim>{Dim{1, ""}}});
  }
  graph.inputs.insert(graph.inputs.end(), buffers.begin(), buffers.end());
  graph.inputs.push_back(ValueInfo{kLazyReset, DType::kBool, std::vector<Dim>{Dim{1, ""}}});
  graph.remove_unused_nodes();
  drop_unused_outputs(graph);
  graph.remove_unused_initializers();
  graph.sort();
  return model;
}

Model build_gradient_model(const Model& forward, const GradientRequest& request) {
  Model model = forward;
  expand_gradient_nodes(model);
  const std::vector<std::string> unexpanded = expand_operators(model, ExpandFor::kGradient);
  const size_t own_inputs = model.graph.inputs.size();
  Builder builder(model, request, false);
  builder.add_problems(unexpanded);
  builder.run();
  if (const std::vector<std::string> problems = builder.problems(); !problems.empty()) refuse(problems);
  for (const std::string& name : request.trainable) {
    const std::string gradient = builder.gradient_of(name);
    const bool comes_in =
        std::any_of(model.graph.inputs.begin() + static_cast<std::ptrdiff_t>(own_inputs),
                    model.graph.inputs.end(), [&](const ValueInfo& v) { return v.name == gradient; });
    give_gradient(model.graph, name, comes_in ? "" : gradient,
                  forward.graph.info(name).value_or(builder.info(name)));
  }
  drop_unused_outputs(model.graph);
  model.graph.sort();
  return model;
}

}  // namespace ortrain
