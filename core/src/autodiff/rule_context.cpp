#include "autodiff/rule_context.h"

#include "op/left_out.h"
#include "op/operator.h"

namespace ortrain {

const Node& RuleContext::node() const { return builder_.graph_.nodes[index_]; }

int64_t RuleContext::opset(std::string_view domain) const { return builder_.model_.opset(domain); }

Name RuleContext::dy(size_t o) const {
  return keep(node().has_output(o) ? builder_.gradient_of(node().outputs[o]) : std::string());
}

bool RuleContext::needs(size_t i) const {
  return node().has_input(i) && builder_.active_.count(node().inputs[i]) > 0;
}

void RuleContext::set(size_t i, const std::string& gradient) {
  if (!needs(i)) return;
  if (gradient.empty()) reject("its gradient rule returned an empty gradient for input ", i);
  if (!set_.insert(i).second) reject("its gradient rule returned two gradients for input ", i);
  builder_.contributions_[x(i)].push_back(gradient);
}

std::vector<std::string> RuleContext::add_node(Node added, size_t output_count) {
  GradientBuilder& b = builder_;
  const bool is_shape =
      added.op_type == "Shape" && added.domain.empty() && added.attributes.empty() && output_count == 1;
  if (is_shape)
    if (const auto it = b.shapes_.find(added.inputs.at(0)); it != b.shapes_.end()) return {it->second};
  const Operator* op = find_operator(added.domain, added.op_type);
  if (!op) {
    b.problem(index_ + 1, concat(b.describe(node()), ": its gradient needs the operator ",
                                 added.qualified_type(), ", which is not supported yet", left_out_hint()));
  }
  const std::string& base = node().name.empty() ? node().outputs.at(0) : node().name;
  added.name = b.unique(concat(base, "_Grad/", added.op_type, "_", emitted_++));
  for (size_t o = 0; o < output_count; ++o) {
    added.outputs.push_back(b.unique(concat(added.name, "_output_", o)));
    b.emitted_.insert(added.outputs.back());
  }
  if (is_shape) b.shapes_[added.inputs[0]] = added.outputs[0];
  b.types_.infer(added);
  std::vector<std::string> outputs = added.outputs;
  b.backward_.push_back(std::move(added));
  return outputs;
}

Name RuleContext::want_y(size_t o) {
  Node& node = builder_.graph_.nodes[index_];
  if (!node.has_output(o)) {
    if (node.outputs.size() <= o) node.outputs.resize(o + 1);
    node.outputs[o] =
        builder_.unique(concat(node.outputs.at(0).empty() ? node.name : node.outputs[0], "_saved_", o));
    builder_.types_.infer(node);
  }
  return y(o);
}

void RuleContext::retype_node(std::string_view op_type, std::string_view domain) {
  Node& node = builder_.graph_.nodes[index_];
  node.op_type = op_type;
  node.domain = domain;
}

std::string RuleContext::add_constant(const Tensor& value) {
  GradientBuilder& b = builder_;
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
  if (builder_.active_.count(value)) return nullptr;  // trainable, or computed from something trainable
  return builder_.types_.known(value);
}

}  // namespace ortrain
