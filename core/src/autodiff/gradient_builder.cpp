#include "autodiff/gradient_builder.h"

#include <set>
#include <stdexcept>

#include "autodiff/rule_context.h"
#include "op/implementation.h"
#include "op/left_out.h"
#include "ops/control/sequence.h"
#include "runtime/text.h"

namespace ortrain {
namespace {

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

// Renames the values that a node reads and produces, and the values that its subgraphs read.
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

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// The names that the model already uses before the walk.

void GradientBuilder::collect_names(const Graph& graph) {
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
// Checks that find the reasons why a model cannot be trained.

void GradientBuilder::check_operators(const Graph& graph, size_t position) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    const size_t at = &graph == &graph_ ? n + 1 : position;
    const Operator* op = find_operator(node.domain, node.op_type);
    for (const auto& [name, attribute] : node.attributes)
      if (const auto* inner = std::get_if<std::shared_ptr<Graph>>(&attribute); inner && *inner)
        check_operators(**inner, at);
    if (op && op->carries(model_.opset(node.domain))) continue;
    if (op)
      problem(at, concat(describe(node), ": this operator is supported from opset ", op->traits.since,
                         " on; convert the model with onnx.version_converter"));
    else
      problem(at,
              concat(describe(node),
                     ": this operator is not supported; use other operators instead, or compute this part ",
                     "outside the model", left_out_hint()));
  }
}

void GradientBuilder::check_request() {
  if (trainable_.empty() && !accumulate_)
    problem(kModelWide, "there is no value to differentiate by; name at least one");
  for (const std::string& name : std::set<std::string>(trainable_.begin(), trainable_.end())) {
    if (inputs_.count(name) > 0) {
      const std::vector<std::string>& parameters = request_.trainable;
      const bool is_parameter = std::find(parameters.begin(), parameters.end(), name) != parameters.end();
      if (is_parameter || !graph_.is_input(name)) {
        problem(kModelWide,
                concat("input \"", name, "\": ",
                       is_parameter ? "it is also a parameter" : "the model has no input with that name"));
        continue;
      }
    }
    if (!accumulate_ && !has_value(name)) {
      problem(kModelWide, concat("value \"", name, "\": the model has no value with that name"));
      continue;
    }
    if (accumulate_ && !graph_.is_initializer(name) && !graph_.is_input(name)) {
      problem(kModelWide,
              concat("parameter \"", name, "\": the model has no initializer with that name; it has ",
                     graph_.initializer_order.empty() ? std::string("none")
                                                      : quoted_list(graph_.initializer_order)));
      continue;
    }
    const DType dtype = info(name).dtype;
    if (!is_floating(dtype)) {
      problem(kModelWide, concat(described(name), ": has element type ", ortrain::to_string(dtype),
                                 ", but only float32, float64, float16 and bfloat16 can be trained; ",
                                 "remove it from the trainable parameters"));
    }
  }
}

void GradientBuilder::check_loss() {
  for (const std::string& name : request_.cotangents)
    if (!has_value(name))
      problem(kModelWide, concat("value \"", name, "\": the model has no value with that name"));
  if (request_.loss.empty() && !request_.cotangents.empty()) return;
  if (!has_value(request_.loss)) {
    problem(kModelWide, concat("loss \"", request_.loss, "\": the model has no value with that name"));
    return;
  }
  const ValueInfo& loss = info(request_.loss);
  if (loss.dtype != DType::kUndefined && !is_floating(loss.dtype)) {
    problem(kModelWide,
            concat("loss \"", request_.loss, "\": has element type ", ortrain::to_string(loss.dtype),
                   ", but a loss must be float32, float64, float16 or bfloat16"));
  }
  if (!loss.dims || request_.any_loss_shape) return;
  if (!std::all_of(loss.dims->begin(), loss.dims->end(), [](const Dim& d) { return d.value == 1; })) {
    problem(kModelWide, concat("loss \"", request_.loss, "\": has shape ", to_string(*loss.dims),
                               ", but a loss must be a scalar; reduce it with a mean or a sum"));
  }
}

std::vector<std::string> GradientBuilder::problems() const {
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

void GradientBuilder::find_path() {
  const size_t count = graph_.nodes.size();
  std::vector<bool> depends(count, false);  // depends on a trainable parameter, in a differentiable way
  active_ = trainable_;
  // Integers have no derivative, but quantized integers, which represent real numbers, carry the gradient to
  // the operator that produced them.
  std::unordered_set<std::string> dequantized;
  for (const Node& node : graph_.nodes)
    if (const Operator* op = find_operator(node.domain, node.op_type);
        op && op->traits.quantized && node.has_input(0))
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
          !(op && op->traits.quantized && dequantized.count(output)))
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
  if (!outermost_) return;  // the rule of the outer node handles values without a gradient
  for (const std::string& name : std::set<std::string>(trainable_.begin(), trainable_.end())) {
    if (first_reader_.count(name) || name == request_.loss) continue;
    if (!has_value(name)) continue;
    unreached_.push_back(name);
    problem(
        kModelWide,
        concat(described(name), ": the loss \"", request_.loss,
               "\" does not depend on it, so it has no gradient; remove it from the trainable parameters"));
  }
}

// The gradient of the loss is 1; the gradient of a value with a cotangent is an input of the model.
void GradientBuilder::seed_loss() {
  for (const std::string& value : request_.cotangents) {
    if (value == request_.loss) continue;
    ValueInfo stated = info(value);
    stated.name = value + "_grad";
    if (!names_.insert(stated.name).second)
      problem(kModelWide, concat("value \"", value, "\": the model has a value named \"", stated.name,
                                 "\" already, so the incoming gradient cannot have that name"));
    forget_made_up_names(stated);
    graph_.inputs.push_back(stated);
    types_.set_like(stated.name, value);
    contributions_[value].push_back(stated.name);
  }
  if (request_.loss.empty() && !request_.cotangents.empty()) return;
  const ValueInfo& loss = info(request_.loss);
  const std::string name = unique(request_.loss + "_grad");
  contributions_[request_.loss].push_back(name);
  if (problems_.count(kModelWide) > 0) return;  // continue, to find the other problems too
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

void GradientBuilder::run() {
  check_request();
  check_loss();
  check_operators(graph_, 0);
  find_path();

  seed_loss();
  if (trainable_.count(request_.loss) && !first_reader_.count(request_.loss)) finish_trainable(request_.loss);
  walk();
  use_training_forms();
}

void GradientBuilder::run(const std::vector<std::pair<std::string, std::string>>& seeds) {
  for (const auto& [value, gradient] : seeds) {
    reaches_loss_.insert(value);
    contributions_[value].push_back(gradient);
    types_.set_like(gradient, value);
  }
  find_path();
  walk();
}

// Differentiates the nodes from the last to the first, and appends the new nodes after the forward nodes.
void GradientBuilder::walk() {
  for (size_t n = graph_.nodes.size(); n-- > 0;) {
    if (!on_path_[n]) continue;
    const std::vector<std::string> read = values_read(graph_.nodes[n]);
    differentiate(n);
    // The gradient of a parameter is complete once its first reader is done. Accumulating it immediately
    // keeps it short-lived.
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
  // Gradients of pooling read their output shape from the model's value_info. So the model states that a
  // gradient, and every part of a gradient, has the shape of its value.
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

void GradientBuilder::differentiate(size_t n) {
  std::vector<std::string> gradients;
  bool reached = false;
  for (const std::string& output : graph_.nodes[n].outputs)
    if (!output.empty() && active_.count(output)) reached |= !finalize(output, false).empty();
  if (!reached) return;

  const Operator* op = find_operator(graph_.nodes[n].domain, graph_.nodes[n].op_type);
  bool done = false;
  if (op && op->rules.gradient) {
    try {
      RuleContext context(*this, n);
      op->rules.gradient(context);
      done = true;
    } catch (const Error& error) {
      problem(n + 1, concat(describe(graph_.nodes[n]), ": its gradient cannot be built: ", error.message()));
    } catch (const std::out_of_range&) {  // the rule asked for an input or output that the node does not have
      const Node& node = graph_.nodes[n];
      problem(n + 1, concat(describe(node), ": its gradient cannot be built: it has ",
                            counted(node.inputs.size(), "input"), " and ",
                            counted(node.outputs.size(), "output"), ", which are fewer than it needs"));
    }
  } else if (op &&
             (has_kernel(*op) ||
              !op->rules.decompose)) {  // the problem of a node that can only be decomposed is already listed
    std::vector<std::string> behind;
    for (const std::string& value : graph_.nodes[n].inputs)
      if (trainable_.count(value)) behind.push_back(value);
    problem(n + 1,
            concat(describe(graph_.nodes[n]), ": this operator can be run but has no gradient yet; ",
                   behind.empty() ? "freeze the parameters before it" : "freeze " + quoted_list(behind),
                   ", or write this part with other operators"));
  }
  if (done) return;
  // Missing gradients do not stop the walk, so that every problem is reported at once.
  for (const std::string& value : values_read(graph_.nodes[n])) {
    if (!active_.count(value)) continue;
    const std::string stand_in = unique(value + "_grad_stand_in");
    types_.set_like(stand_in, value);
    contributions_[value].push_back(stand_in);
  }
}

// Combines the contributions of the readers of `value` into one gradient. With `own_name` the gradient gets a
// separate name even if it is also the gradient of another value.
std::string GradientBuilder::finalize(const std::string& value, bool own_name) {
  if (const auto it = gradients_.find(value); it != gradients_.end()) return it->second;
  const std::vector<std::string> parts = contributions_[value];
  std::string& gradient = gradients_[value];
  if (parts.empty()) return gradient;
  // The gradient that a subgraph computes is only one part of the outer gradient.
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

void GradientBuilder::finish_trainable(const std::string& name) {
  const std::string gradient = finalize(name, true);
  if (gradient.empty()) {
    unreached_.push_back(name);
    if (problems_.empty())
      problem(kModelWide, concat(described(name), ": the operators between it and the loss \"", request_.loss,
                                 "\" pass it no gradient; remove it from the trainable parameters"));
    return;
  }
  if (!accumulate_ || inputs_.count(name) > 0) return;
  add_node(gradient + ".accumulation", "InPlaceAccumulatorV2",
           {name + "_grad.accumulation.buffer", gradient, kLazyReset}, name + "_grad.accumulation.out",
           kMicrosoft);
}

std::string GradientBuilder::add_node(const std::string& name, const std::string& op_type,
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

std::string GradientBuilder::gradient_of(const std::string& value) const {
  const auto it = gradients_.find(value);
  return it == gradients_.end() ? "" : it->second;
}

// Some operators have a different form in training models.
void GradientBuilder::use_training_forms() {
  for (Node& node : graph_.nodes)
    if (const Operator* op = find_operator(node.domain, node.op_type); op && op->traits.train)
      op->traits.train(node, [this](const std::string& base) { return unique(base); });
}

}  // namespace ortrain
