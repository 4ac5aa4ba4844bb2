#include "artifacts/gradient_nodes.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "artifacts/training_model.h"
#include "infer/value_types.h"
#include "runtime/error.h"

namespace ortrain {

namespace {

constexpr const char* kPreviewTraining = "ai.onnx.preview.training";

bool is_gradient(const Node& node) { return node.domain == kPreviewTraining && node.op_type == "Gradient"; }

std::vector<std::string> strings(const Node& node, const char* name) {
  const auto at = node.attributes.find(name);
  if (at == node.attributes.end()) return {};
  const auto* texts = std::get_if<std::vector<std::string>>(&at->second);
  require(texts != nullptr, ErrorCode::kInvalidGraph, node.label(), ": expected the attribute ", name,
          " to be a list of names");
  return *texts;
}

// The attributes of a Gradient node: the names of the values that it differentiates (y) and differentiates by
// (xs).
struct Asked {
  std::vector<std::string> xs, zs;
  std::string y;

  explicit Asked(const Node& node)
      : xs(strings(node, "xs")), zs(strings(node, "zs")), y(node.string_or("y", "")) {
    require(
        !y.empty() && !xs.empty(), ErrorCode::kInvalidGraph, node.label(),
        ": expected the attributes xs and y, the values to differentiate by and the value to differentiate");
    require(node.inputs.size() == xs.size() + zs.size(), ErrorCode::kInvalidGraph, node.label(),
            ": expected ", counted(xs.size() + zs.size(), "input"),
            ", one for each name in xs and zs, found ", node.inputs.size());
    require(node.outputs.size() <= xs.size(), ErrorCode::kInvalidGraph, node.label(), ": expected at most ",
            counted(xs.size(), "output"), ", one for each name in xs, found ", node.outputs.size());
  }

  bool is_independent(const std::string& value) const {
    return std::find(xs.begin(), xs.end(), value) != xs.end() ||
           std::find(zs.begin(), zs.end(), value) != zs.end();
  }
};

class GradientNode {
 public:
  GradientNode(Model& model, size_t index)
      : model_(model), graph_(model.graph), node_(model.graph.nodes[index]), asked_(node_) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (const std::string& output : graph_.nodes[n].outputs)
        if (!output.empty()) maker_[output] = n;
  }

  // Whether y depends on another Gradient node, which must be replaced first.
  bool waits() {
    find_part();
    return std::any_of(part_.begin(), part_.end(), [&](size_t n) { return is_gradient(graph_.nodes[n]); });
  }

  // Replaces the node.
  void run();

 private:
  void find_part();
  Model function() const;
  bool depends_on(const std::string& x) const;
  void remove_node();
  void put_in(Model derived, const std::vector<size_t>& independent);
  bool have_equal_shapes(const std::vector<std::string>& a, const std::vector<std::string>& b) const;
  void add_zeros(size_t i);

  Model& model_;
  Graph& graph_;
  const Node node_;
  const Asked asked_;
  std::unordered_map<std::string, size_t> maker_;
  std::set<size_t> part_;        // nodes between the independent values and y
  std::set<std::string> outer_;  // other values that the part reads
};

// Walks from y back to the independent values.
void GradientNode::find_part() {
  part_.clear();
  outer_.clear();
  std::vector<std::string> open = {asked_.y};
  std::unordered_set<std::string> seen;
  while (!open.empty()) {
    const std::string value = open.back();
    open.pop_back();
    if (!seen.insert(value).second || asked_.is_independent(value)) continue;
    if (const auto at = maker_.find(value); at != maker_.end()) {
      part_.insert(at->second);
      for (const std::string& read : values_read(graph_.nodes[at->second])) open.push_back(read);
      continue;
    }
    require(graph_.is_initializer(value) || graph_.is_input(value), ErrorCode::kInvalidGraph, node_.label(),
            ": the model has no value named '", value, "'");
    outer_.insert(value);
  }
  for (const std::vector<std::string>& names : {asked_.xs, asked_.zs})
    for (const std::string& name : names)
      require(maker_.count(name) || graph_.is_initializer(name) || graph_.is_input(name),
              ErrorCode::kInvalidGraph, node_.label(), ": the model has no value named '", name, "'");
}

// y as a function of the independent values, as a separate model.
Model GradientNode::function() const {
  Model model;
  model.ir_version = model_.ir_version;
  model.opsets = model_.opsets;
  const ValueTypes types(model_);
  Graph& graph = model.graph;
  std::set<std::string> inputs(asked_.xs.begin(), asked_.xs.end());
  inputs.insert(asked_.zs.begin(), asked_.zs.end());
  for (const std::string& value : outer_) {
    if (graph_.is_initializer(value))
      graph.add_initializer(value, graph_.initializers.at(value));
    else
      inputs.insert(value);
  }
  for (const std::string& name : inputs) {
    ValueInfo info = types.info(name);
    info.name = name;
    graph.inputs.push_back(info);
  }
  for (const size_t n : part_) graph.nodes.push_back(graph_.nodes[n]);
  ValueInfo y = types.info(asked_.y);
  y.name = asked_.y;
  graph.outputs = {y};
  graph.sort();
  return model;
}

bool GradientNode::depends_on(const std::string& x) const {
  if (x == asked_.y) return true;
  for (const size_t n : part_) {
    const std::vector<std::string> read = values_read(graph_.nodes[n]);
    if (std::find(read.begin(), read.end(), x) != read.end()) return true;
  }
  return false;
}

// Removes the Gradient node from the graph.
void GradientNode::remove_node() {
  std::erase_if(graph_.nodes, [&](const Node& node) {
    return is_gradient(node) && node.outputs == node_.outputs && node.inputs == node_.inputs;
  });
}

// Inserts the nodes of the derived model into the whole model, in place of the Gradient node.
void GradientNode::put_in(Model derived, const std::vector<size_t>& independent) {
  std::vector<std::string> names = asked_.xs;
  names.insert(names.end(), asked_.zs.begin(), asked_.zs.end());
  // Maps names in the derived model to names in the whole model.
  std::unordered_map<std::string, std::string> place;
  for (size_t i = 0; i < names.size(); ++i) place[names[i]] = node_.inputs[i];
  for (const std::string& value : outer_) place[value] = value;
  if (names == node_.inputs)  // the node differentiates at the values that the graph computes
    for (const size_t n : part_)
      for (const std::string& output : graph_.nodes[n].outputs) place[output] = output;
  remove_node();  // only now: part_ has node numbers from before the removal
  std::unordered_set<std::string> taken;
  for (const Node& node : graph_.nodes) taken.insert(node.outputs.begin(), node.outputs.end());
  const auto in_whole = [&](std::string& value) {
    if (value.empty()) return;
    const auto [at, fresh] = place.try_emplace(value);
    for (int k = 0; fresh; ++k) {
      const std::string name = concat(value, k ? concat("_", k) : "");
      const bool is_free = taken.insert(name).second && !graph_.info(name) && !graph_.value_info.count(name);
      if (!is_free) continue;
      at->second = name;
      break;
    }
    value = at->second;
  };
  for (const std::string& name : derived.graph.initializer_order) {
    std::string value = name;
    in_whole(value);
    if (!graph_.is_initializer(value)) graph_.add_initializer(value, derived.graph.initializers.at(name));
  }
  // The outputs of the node are the gradients; if two outputs are the same gradient, the second output is a
  // copy.
  std::unordered_map<std::string, std::string> first_of;
  for (size_t i = 0; i < node_.outputs.size(); ++i) {
    if (node_.outputs[i].empty() || std::count(independent.begin(), independent.end(), i)) continue;
    const std::string gradient = asked_.xs[i] + "_grad";
    if (place.try_emplace(gradient, node_.outputs[i]).second) continue;
    Node copy;
    copy.op_type = "Identity";
    copy.inputs = {place.at(gradient)};
    copy.outputs = {node_.outputs[i]};
    graph_.nodes.push_back(std::move(copy));
  }
  for (Node& node : derived.graph.nodes) {
    for (std::string& input : node.inputs) in_whole(input);
    for (std::string& output : node.outputs) in_whole(output);
    const auto forward = std::find_if(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& other) {
      return std::any_of(other.outputs.begin(), other.outputs.end(), [&](const std::string& output) {
        return !output.empty() &&
               std::find(node.outputs.begin(), node.outputs.end(), output) != node.outputs.end();
      });
    });
    if (forward != graph_.nodes.end())
      *forward = std::move(node);  // the derived node may have more outputs, which the gradient reads
    else
      graph_.nodes.push_back(std::move(node));
  }
  for (const auto& [domain, version] : derived.opsets) model_.opsets.emplace(domain, version);
  // Gradients of pooling need the stated shapes. At another point, values may have other shapes.
  if (!have_equal_shapes(names, node_.inputs)) return;
  for (const auto& [name, stated] : derived.graph.value_info) {
    const auto at = place.find(name);
    if (at == place.end() || graph_.is_input(at->second) || graph_.is_initializer(at->second)) continue;
    graph_.value_info.try_emplace(at->second, stated).first->second.name = at->second;
  }
}

// Whether two lists of values are known to have the same shapes.
bool GradientNode::have_equal_shapes(const std::vector<std::string>& a,
                                     const std::vector<std::string>& b) const {
  if (a == b) return true;
  const ValueTypes types(model_);
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const std::string& x, const std::string& y) {
    const std::optional<std::vector<Dim>> dims = types.info(x).dims, others = types.info(y).dims;
    return dims && others &&
           std::equal(dims->begin(), dims->end(), others->begin(), others->end(),
                      [](const Dim& one, const Dim& other) { return one.same(other); });
  });
}

// Output i is zero, because y does not depend on the i-th x.
void GradientNode::add_zeros(size_t i) {
  Node shape, zeros;
  shape.op_type = "Shape";
  shape.inputs = {node_.inputs[i]};
  shape.outputs = {graph_.unique_name(node_.outputs[i] + "_shape")};
  zeros.op_type = "ConstantOfShape";
  zeros.inputs = shape.outputs;
  zeros.outputs = {node_.outputs[i]};
  const DType dtype = ValueTypes(model_).info(node_.inputs[i]).dtype;
  zeros.attributes["value"] =
      Tensor::scalar(dtype == DType::kUndefined ? DType::kFloat : dtype, 0.0).reshaped({1});
  graph_.nodes.push_back(std::move(shape));
  graph_.nodes.push_back(std::move(zeros));
}

void GradientNode::run() {
  find_part();
  GradientRequest request;
  request.loss = asked_.y;
  request.any_loss_shape = true;
  std::vector<size_t> independent;  // outputs that are zero
  for (size_t i = 0; i < node_.outputs.size(); ++i) {
    if (node_.outputs[i].empty()) continue;
    const std::string& x = asked_.xs[i];
    if (!depends_on(x))
      independent.push_back(i);
    else if (std::find(request.trainable.begin(), request.trainable.end(), x) == request.trainable.end())
      request.trainable.push_back(x);
  }
  if (request.trainable.empty()) {
    remove_node();
  } else {
    Model derived;
    try {
      derived = build_gradient_model(function(), request);
    } catch (const Error& error) {
      fail(error.code(), node_.label(), ": '", asked_.y, "' cannot be differentiated: ", error.message());
    }
    put_in(std::move(derived), independent);
  }
  for (const size_t i : independent) add_zeros(i);
  graph_.sort();
}

}  // namespace

void expand_gradient_nodes(Model& model) {
  Graph& graph = model.graph;
  while (std::any_of(graph.nodes.begin(), graph.nodes.end(), is_gradient)) {
    bool expanded = false;
    for (size_t n = 0; n < graph.nodes.size() && !expanded; ++n) {
      if (!is_gradient(graph.nodes[n])) continue;
      GradientNode gradient(model, n);
      if (gradient.waits()) continue;
      gradient.run();
      expanded = true;
    }
    if (expanded) continue;
    const auto first = std::find_if(graph.nodes.begin(), graph.nodes.end(), is_gradient);
    fail(ErrorCode::kInvalidGraph, first->label(),
         ": the value that it differentiates depends on its own result");
  }
}

}  // namespace ortrain
