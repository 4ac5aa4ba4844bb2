#include "infer/value_types.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <new>
#include <vector>

#include "op/dynamic.h"
#include "op/implementation.h"
#include "runtime/elements_to_visit.h"
#include "runtime/stop.h"

namespace ortrain {
namespace {

std::vector<Dim> dims_of(const Shape& shape) {
  std::vector<Dim> dims;
  for (const int64_t size : shape) dims.push_back(Dim{size, ""});
  return dims;
}

// The constant of a Constant node; undefined if it is of a kind that is not a tensor.
Tensor value_of_constant_node(const Node& node) {
  for (const auto& [name, attribute] : node.attributes) {
    if (const auto* tensor = std::get_if<Tensor>(&attribute)) return *tensor;
    if (const auto* integer = std::get_if<int64_t>(&attribute)) return Tensor::scalar(*integer);
    if (const auto* number = std::get_if<float>(&attribute)) return Tensor::scalar(*number);
    if (const auto* integers = std::get_if<std::vector<int64_t>>(&attribute)) return Tensor::of(*integers);
    if (const auto* numbers = std::get_if<std::vector<float>>(&attribute)) return Tensor::of(*numbers);
  }
  return Tensor();
}

// Whether this is a type of tensors, or unknown. Rules read types from attributes, which may have any number.
bool is_type(DType dtype) { return dtype == DType::kUndefined || bits_of(dtype) > 0; }

// Thrown if a rule requests something about an input that is not known.
struct Unknown : Error {
  using Error::Error;
};

}  // namespace

// The node and inputs that a shape rule sees in one of the two runs. Throws if an input is not known.
class NumberedShapes : public ShapeContext {
 public:
  NumberedShapes(const ValueTypes& types, const Node& node, int run)
      : ShapeContext(node, types.model_.opset(node.domain)),
        types_(types),
        run_(run),
        shapes_(node.inputs.size()),
        types_out(node.outputs.size()),
        shapes_out(node.outputs.size()),
        values_out(node.outputs.size()) {
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (node.has_input(i)) shapes_[i] = types.shape(node.inputs[i], run);
  }

  DType dtype(size_t i) const override {
    expect(has_input(i), "input ", i, " is missing");
    const DType dtype = types_.info(node().inputs[i]).dtype;
    if (dtype == DType::kUndefined) unknown("type", i);
    return dtype;
  }
  const Shape& shape(size_t i) const override {
    expect(has_input(i), "input ", i, " is missing");
    if (!shapes_[i]) unknown("shape", i);
    return *shapes_[i];
  }
  const Tensor* constant(size_t i) const override {
    return has_input(i) ? types_.run_value(node().inputs[i], run_) : nullptr;
  }
  // Gradients of pooling: their stated shapes are added once the graph is complete.
  std::vector<int64_t> stated_shape(size_t) const override {
    asked_for_statement = true;
    return {};
  }
  void output(size_t o, DType dtype, Shape shape) override {
    if (o >= shapes_out.size()) return;
    element_count(shape);  // rejects impossible shapes
    types_out[o] = dtype;
    shapes_out[o] = std::move(shape);
  }
  void value(size_t o, Tensor value) override {
    output(o, value.dtype(), value.shape());
    if (o < values_out.size()) values_out[o] = std::move(value);
  }

 private:
  [[noreturn]] void unknown(const char* what, size_t i) const {
    throw Unknown(ErrorCode::kFail, concat(node().label(), ": the ", what, " of input ", i, " is not known"));
  }

  const ValueTypes& types_;
  const int run_;
  std::vector<std::optional<Shape>> shapes_;

 public:
  mutable bool asked_for_statement = false;
  std::vector<DType> types_out;
  std::vector<std::optional<Shape>> shapes_out;
  std::vector<Tensor> values_out;
};

// Runs the kernel of a node on the values of one of the two runs. Throws if that is not possible.
class NumberedRun : public KernelContext {
 public:
  NumberedRun(const ValueTypes& types, const NumberedShapes& shapes, int run)
      : KernelContext(shapes.node(), shapes.opset()), shapes_(shapes), results(shapes.output_count()) {
    for (const std::string& value : node().inputs) {
      const Tensor* known = value.empty() ? nullptr : types.run_value(value, run);
      inputs_.push_back(known ? *known : Tensor());
    }
  }

  // Whether all inputs are known, small, and of types that kernels take without a conversion.
  bool is_small() const {
    const auto small = [](DType dtype, const Shape& shape) {
      return elements_to_visit(shape) <= kMost && dtype != DType::kString && wide_of(dtype) == dtype;
    };
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (has_input(i) && !(inputs_[i].defined() && small(inputs_[i].dtype(), inputs_[i].shape())))
        return false;
    for (size_t o = 0; o < results.size(); ++o)
      if (has_output(o) && !(shapes_.shapes_out[o] && small(shapes_.types_out[o], *shapes_.shapes_out[o])))
        return false;
    return !inputs_.empty() && !results.empty();
  }

  void run(const Operator& op) {
    const Kernel kernel = make_kernel(op, *this);
    std::vector<std::byte*> addresses;
    for (Tensor& tensor : memory_) addresses.push_back(static_cast<std::byte*>(tensor.raw()));
    if (kernel) kernel(Frame(addresses.data(), 0));
    for (const auto& [o, i] : aliases_) results[o] = inputs_[i].reshaped(out_shape(o)).clone();
  }

  DType dtype(size_t i) const override { return shapes_.dtype(i); }
  const Shape& shape(size_t i) const override { return shapes_.shape(i); }
  const Tensor* constant(size_t i) const override { return shapes_.constant(i); }
  DType out_dtype(size_t o) const override { return shapes_.types_out.at(o); }
  const Shape& out_shape(size_t o) const override { return *shapes_.shapes_out.at(o); }
  Slot in(size_t i) override { return has_input(i) ? hold(inputs_[i]) : Slot{}; }
  LayoutPtr in_layout(size_t) const override { return nullptr; }
  Slot in(size_t i, const LayoutPtr& wanted) override { return expect_plain(wanted), in(i); }
  Slot out(size_t o, const LayoutPtr& layout) override {
    expect_plain(layout);
    if (!has_output(o)) return {};
    if (!results[o].defined()) results[o] = Tensor(out_dtype(o), out_shape(o));
    return hold(results[o]);
  }
  Slot out_inplace(size_t o, std::initializer_list<size_t>, const LayoutPtr& layout) override {
    return out(o, layout);
  }
  void alias(size_t o, size_t i) override { aliases_.emplace_back(o, i); }
  Slot scratch(size_t bytes) override { return hold(Tensor(DType::kUInt8, {static_cast<int64_t>(bytes)})); }
  Slot fixed(Tensor value) override { return hold(std::move(value)); }
  Slot state(size_t i) override { reject("input ", i, " is updated by the operator"); }
  bool same_storage(size_t, size_t) const override { return false; }
  Precision precision() const override { return Precision::kFloat; }
  bool wants_bf16(size_t) const override { return false; }
  bool used_only_by(size_t, std::string_view) const override { return false; }
  LayoutPtr layout_for_readers(size_t) const override { return nullptr; }
  uint64_t stream() const override { return 0; }

 private:
  static constexpr int64_t kMost = 64;  // elements

  void expect_plain(const LayoutPtr& layout) const {
    expect(!layout, "values computed in advance must be row-major");
  }
  Slot hold(Tensor tensor) {
    memory_.push_back(std::move(tensor));
    return {static_cast<int>(memory_.size()) - 1};
  }

  const NumberedShapes& shapes_;
  std::vector<Tensor> inputs_, memory_;
  std::vector<std::pair<size_t, size_t>> aliases_;

 public:
  std::vector<Tensor> results;
};

// A node as its type rule sees it.
class NodeView : public TypeContext {
 public:
  NodeView(const ValueTypes& types, const Node& node) : types_(types), node_(node) {}

  const Node& node() const override { return node_; }
  int64_t opset() const override { return types_.model_.opset(node_.domain); }
  const ValueInfo& input(size_t i) const override {
    return types_.info(node_.has_input(i) ? node_.inputs[i] : "");
  }
  const Tensor* constant(size_t i) const override {
    return node_.has_input(i) ? types_.constant(node_.inputs[i]) : nullptr;
  }
  std::vector<ValueInfo> body(const std::string& attribute, std::vector<ValueInfo> inputs) override {
    const auto found = node_.attributes.find(attribute);
    const auto* graph =
        found == node_.attributes.end() ? nullptr : std::get_if<std::shared_ptr<Graph>>(&found->second);
    require(graph && *graph, ErrorCode::kInvalidGraph, node_.label(), ": attribute '", attribute,
            "' is missing or not a graph");
    const ValueTypes inner(**graph, inputs, types_);
    for (const std::string& problem : inner.problems()) reject_inside(problem);
    std::vector<ValueInfo> outputs;
    for (const ValueInfo& output : (*graph)->outputs) outputs.push_back(inner.info(output.name));
    return outputs;
  }

 private:
  virtual void reject_inside(const std::string& problem) = 0;

  const ValueTypes& types_;
  const Node& node_;
};

// Notes the types that the rule states about the outputs.
class NodeTypes : public NodeView {
 public:
  NodeTypes(ValueTypes& types, const Node& node) : NodeView(types, node), types_(types) {}

  Dim unknown() override {
    Dim dim;
    types_.number(dim);
    return dim;
  }
  using TypeContext::output;
  void output(size_t o, ValueInfo info) override {
    if (!node().has_output(o)) return;
    ValueInfo& known = types_.info_[node().outputs[o]];
    if (info.dtype != DType::kUndefined) known.dtype = info.dtype;
    known.is_sequence = info.is_sequence;
    known.is_optional = info.is_optional;
    std::optional<std::vector<Dim>>& dims = info.dims;
    if (!dims) return;
    for (size_t d = 0; d < dims->size(); ++d) {
      Dim& dim = (*dims)[d];
      if (!dim.known() && dim.symbol.empty() && known.dims && known.dims->size() == dims->size())
        dim = (*known.dims)[d];
    }
    known.dims = std::move(dims);
  }
  void reject(const std::string& why) override { types_.problem(node().label() + ": " + why); }

 private:
  void reject_inside(const std::string& problem) override { types_.problem(problem); }

  ValueTypes& types_;
};

// Notes the inputs that the rule passes to a subgraph; if it does so several times, the last ones.
class SubgraphInputs : public NodeView {
 public:
  SubgraphInputs(const ValueTypes& types, const Node& node, const std::string& attribute)
      : NodeView(types, node), attribute_(attribute) {}

  std::vector<ValueInfo> passed;

  std::vector<ValueInfo> body(const std::string& attribute, std::vector<ValueInfo> inputs) override {
    if (attribute == attribute_) passed = inputs;
    return NodeView::body(attribute, std::move(inputs));
  }
  Dim unknown() override { return {}; }
  void output(size_t, ValueInfo) override {}
  void reject(const std::string&) override {}

 private:
  void reject_inside(const std::string&) override {}

  const std::string& attribute_;
};

std::vector<ValueInfo> ValueTypes::subgraph_inputs(const Node& node, const std::string& attribute) const {
  const Operator* op = find_operator(node.domain, node.op_type);
  if (op == nullptr || op->rules.types == nullptr) return {};
  SubgraphInputs inputs(*this, node, attribute);
  try {
    op->rules.types(inputs);
  } catch (const Error&) {
    // The rule needs facts that are not known; the inputs that it passed before are kept.
  }
  return std::move(inputs.passed);
}

ValueTypes::ValueTypes(const Model& model) : model_(model) {
  for (const ValueInfo& stated : model.graph.inputs) state(stated);
  take_up(model.graph);
}

ValueTypes::ValueTypes(const Graph& subgraph, const std::vector<ValueInfo>& inputs, const ValueTypes& outer)
    : model_(outer.model_), outer_(&outer), dims_(outer.dims_) {
  for (size_t i = 0; i < subgraph.inputs.size(); ++i) {
    ValueInfo known = subgraph.inputs[i];
    own_.insert(known.name);
    if (i < inputs.size() && inputs[i].dtype != DType::kUndefined) known.dtype = inputs[i].dtype;
    if (i < inputs.size()) {
      known.is_sequence |= inputs[i].is_sequence;
      known.is_optional |= inputs[i].is_optional;
    }
    // Dimension names in a subgraph are local to it.
    if (known.dims)
      for (Dim& dim : *known.dims) dim.symbol.clear();
    if (i < inputs.size() && inputs[i].dims) {
      if (known.dims && known.dims->size() == inputs[i].dims->size()) {
        for (size_t d = 0; d < known.dims->size(); ++d)
          if (!(*known.dims)[d].known()) (*known.dims)[d] = (*inputs[i].dims)[d];
      } else {
        known.dims = inputs[i].dims;
      }
    }
    state(known);
  }
  take_up(subgraph);
}

void ValueTypes::take_up(const Graph& graph) {
  for (const std::string& name : graph.initializer_order) set_constant(name, graph.initializers.at(name));
  const auto expect = [&](ValueInfo stated) {
    if (outer_ && stated.dims)
      for (Dim& dim : *stated.dims) dim.symbol.clear();
    info_.emplace(stated.name, std::move(stated));
  };
  for (const auto& [name, stated] : graph.value_info) expect(stated);
  for (const ValueInfo& stated : graph.outputs)
    if (!outer_ || info(stated.name).dtype == DType::kUndefined) expect(stated);
  for (const Node& node : graph.nodes) infer(node);
}

const ValueInfo& ValueTypes::info(const std::string& value) const {
  static const ValueInfo nothing;
  const auto it = info_.find(value);
  return it != info_.end() ? it->second : outer_ ? outer_->info(value) : nothing;
}

const Tensor* ValueTypes::constant(const std::string& value) const {
  const auto it = constants_.find(value);
  if (it != constants_.end()) return &it->second;
  const ValueTypes* outer = outside(value);
  return outer ? outer->constant(value) : nullptr;
}

const std::pair<Tensor, Tensor>* ValueTypes::run_values(const std::string& value) const {
  const auto it = run_values_.find(value);
  if (it != run_values_.end()) return &it->second;
  const ValueTypes* outer = outside(value);
  return outer ? outer->run_values(value) : nullptr;
}

const Tensor* ValueTypes::run_value(const std::string& value, int run) const {
  const auto* values = run_values(value);
  return !values ? constant(value) : run == 0 ? &values->first : &values->second;
}

const Tensor* ValueTypes::known(const std::string& value) const {
  const Tensor *first = run_value(value, 0), *second = run_value(value, 1);
  const bool equal = first && second && first->dtype() == second->dtype() &&
                     first->shape() == second->shape() && first->dtype() != DType::kString &&
                     (first->bytes() == 0 || std::memcmp(first->raw(), second->raw(), first->bytes()) == 0);
  return equal ? first : nullptr;
}

void ValueTypes::set_like(const std::string& value, const std::string& other) {
  const ValueInfo like = info(other);
  ValueInfo& known = info_[value];
  known.name = value;
  if (known.dtype == DType::kUndefined) known.dtype = like.dtype;
  if (!known.dims) known.dims = like.dims;
  known.is_sequence = like.is_sequence;
  known.is_optional = like.is_optional;
  if (is_claim(other)) claims_.insert(value);
}

void ValueTypes::set_constant(const std::string& value, const Tensor& tensor) {
  constants_[value] = tensor;
  info_[value] = ValueInfo{value, tensor.dtype(), dims_of(tensor.shape())};
}

void ValueTypes::state(const ValueInfo& stated) { number_dims(info_[stated.name] = stated); }

void ValueTypes::number_dims(ValueInfo& info) {
  if (!info.dims) return;
  for (Dim& dim : *info.dims)
    if (info.is_sequence)
      dim.symbol.clear();
    else
      number(dim);
}

// Gives a size that is not a number its two numbers, and a name if it has none. They are odd in one run, even
// in the other, and large, so that rounding does not make different sizes equal.
void ValueTypes::number(Dim& dim) {
  if (dim.known() || dims_->numbers.count(dim.symbol)) return;
  const int64_t k = static_cast<int64_t>(dims_->numbers.size());
  // Not linear in k, so that two sums of different dimensions are not equal.
  const int64_t bend = 2 * (31 * k * k % 1021);
  dim.symbol = name_of({1009 + 6 * k + bend, 2038 + 10 * k}, &dim);
}

std::string ValueTypes::name_of(const Numbers& numbers, const Dim* stated) {
  NumberedDims& all = *dims_;
  if (const auto it = all.names.find(numbers); it != all.names.end()) return it->second;
  const bool usable = stated && !stated->symbol.empty() && !all.numbers.count(stated->symbol);
  const std::string name = usable ? stated->symbol : concat("?", all.numbers.size());
  all.numbers[name] = numbers;
  all.names[numbers] = name;
  return name;
}

std::optional<Shape> ValueTypes::shape(const std::string& value, int run) const {
  const auto& dims = info(value).dims;
  if (!dims) return std::nullopt;
  Shape shape;
  for (const Dim& dim : *dims) {
    const auto it = dims_->numbers.find(dim.symbol);
    if (!dim.known() && it == dims_->numbers.end()) return std::nullopt;
    shape.push_back(dim.known() ? dim.value : run == 0 ? it->second.first : it->second.second);
  }
  try {
    element_count(shape);
  } catch (const Error&) {
    return std::nullopt;  // no value can have the shape that the model states
  }
  return shape;
}

bool ValueTypes::is_claim(const std::string& value) const {
  return claims_.count(value) > 0 || (!info_.count(value) && outer_ && outer_->is_claim(value));
}

bool ValueTypes::is_exact(const Node& node) const {
  return !outer_ && std::all_of(node.inputs.begin(), node.inputs.end(), [&](const std::string& input) {
    if (input.empty()) return true;
    const std::optional<std::vector<Dim>>& dims = info(input).dims;
    return dims && !is_claim(input) && (!run_values(input) || known(input)) &&
           std::all_of(dims->begin(), dims->end(), [](const Dim& d) { return d.known(); });
  });
}

void ValueTypes::problem(const std::string& text) {
  if (std::find(problems_.begin(), problems_.end(), text) == problems_.end()) problems_.push_back(text);
}

void ValueTypes::apply_type_rule(const Operator& op, const Node& node, bool tensors) {
  try {
    NodeTypes context(*this, node);
    op.rules.types(context);
  } catch (const Error& error) {
    // What a model states about the elements of a sequence is never checked against its actual elements.
    const bool checked = tensors && std::none_of(node.inputs.begin(), node.inputs.end(),
                                                 [&](const std::string& input) { return is_claim(input); });
    if (checked) problem(error.message());
  }
}

void ValueTypes::apply_shape_rule(const Operator& op, const Node& node, NumberedShapes& first,
                                  NumberedShapes& second) {
  try {
    op.rules.shape(first);
    op.rules.shape(second);
  } catch (const Unknown&) {
    // The rule needs facts that are known only later. Types and shapes that it stated before are kept, and so
    // are those that the model states.
  } catch (const DataDependent&) {
    // As above: the shape depends on the elements of an input.
  } catch (const Error& error) {
    if (is_exact(node) && !first.asked_for_statement) problem(error.message());
  }
}

// Runs an operator on small known values.
void ValueTypes::run_on_known(const Operator& op, NumberedShapes& first, NumberedShapes& second) {
  try {
    NumberedRun a(*this, first, 0), b(*this, second, 1);
    if (a.is_small() && b.is_small()) {
      a.run(op), b.run(op);
      first.values_out = std::move(a.results), second.values_out = std::move(b.results);
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    // The values are then unknown.
  }
}

// Records the results of the two runs for output o.
void ValueTypes::record(const std::string& name, size_t o, const NumberedShapes& first,
                        const NumberedShapes& second) {
  ValueInfo& known = info_[name];
  const std::optional<Shape>&a = first.shapes_out[o], &b = second.shapes_out[o];
  if (a && b && a->size() == b->size()) {
    const std::vector<Dim> stated = known.dims.value_or(std::vector<Dim>());
    std::vector<Dim> dims;
    for (size_t d = 0; d < a->size(); ++d) {
      if ((*a)[d] == (*b)[d]) {
        dims.push_back(Dim{(*a)[d], ""});
      } else {
        dims.push_back(
            Dim{-1, name_of({(*a)[d], (*b)[d]}, stated.size() == a->size() ? &stated[d] : nullptr)});
      }
    }
    known.dims = dims;
    claims_.erase(name);
  } else {
    if (known.dims) number_dims(known);
    claims_.insert(name);
  }
  if (first.values_out[o].defined() && second.values_out[o].defined())
    run_values_[name] = {first.values_out[o], second.values_out[o]};
}

void ValueTypes::infer(const Node& node) {
  check_stop();
  if (node.domain.empty() && node.op_type == "Constant") {
    const Tensor tensor = value_of_constant_node(node);
    if (tensor.defined() && node.has_output(0)) return set_constant(node.outputs[0], tensor);
  }
  const Operator* op = find_operator(node.domain, node.op_type);
  const bool tensors = std::all_of(node.inputs.begin(), node.inputs.end(),
                                   [&](const std::string& input) { return info(input).is_tensor(); });
  if (op && op->rules.types) apply_type_rule(*op, node, tensors);
  NumberedShapes first(*this, node, 0), second(*this, node, 1);
  if (op && !op->traits.takes_sequences && !tensors)
    problem(node.label() + ": one of its inputs is a sequence or an optional value, expected tensors");
  if (op && op->rules.shape && tensors) apply_shape_rule(*op, node, first, second);
  const bool stated = std::all_of(first.values_out.begin(), first.values_out.end(),
                                  [](const Tensor& value) { return value.defined(); });
  if (op && has_kernel(*op) && !op->traits.impure && op->traits.updates == 0 && !stated)
    run_on_known(*op, first, second);
  // Operators with a type rule have already stated everything.
  std::optional<ElementTypes> ruled;
  if (op && (op->rules.element_type || !op->rules.types)) {
    std::vector<DType> inputs;
    for (const std::string& input : node.inputs) inputs.push_back(info(input).dtype);
    ruled.emplace(node, model_.opset(node.domain), std::move(inputs));
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (!node.has_output(o)) continue;
    ValueInfo& known = info_[node.outputs[o]];
    known.name = node.outputs[o];
    if (first.types_out[o] != DType::kUndefined) known.dtype = first.types_out[o];
    if (known.dtype == DType::kUndefined && ruled) {
      try {
        known.dtype = element_type(*op, *ruled, o);
      } catch (const Error& error) {  // an attribute of the wrong kind
        problem(error.message());
      }
    }
    if (!is_type(known.dtype)) {
      problem(concat(node.label(), ": output ", o, " is declared with the type ", to_string(known.dtype),
                     ", which no tensor has"));
      known.dtype = DType::kUndefined;
    }
    record(node.outputs[o], o, first, second);
    if (outer_) own_.insert(node.outputs[o]);
  }
}

void forget_made_up_names(ValueInfo& info) {
  if (!info.dims) return;
  for (Dim& dim : *info.dims)
    if (dim.symbol.starts_with("?")) dim.symbol.clear();
}

std::vector<ValueInfo> inferred_outputs(const Model& model, bool name_all) {
  const ValueTypes types(model);
  std::unordered_map<std::string, std::string> names;  // for the names that ValueTypes invented
  std::vector<ValueInfo> outputs;
  for (const ValueInfo& stated : model.graph.outputs) {
    ValueInfo& output = outputs.emplace_back(types.info(stated.name));
    output.name = stated.name;
    if (!output.dims) output.dims = stated.dims;
    const bool same_rank = output.dims && stated.dims && output.dims->size() == stated.dims->size();
    for (size_t k = 0; output.dims && k < output.dims->size(); ++k) {
      Dim& dim = (*output.dims)[k];
      if (dim.known() || !(dim.symbol.empty() || dim.symbol.starts_with("?"))) continue;
      if (same_rank && ((*stated.dims)[k].known() || !(*stated.dims)[k].symbol.empty())) {
        dim = (*stated.dims)[k];
      } else if (name_all) {
        const std::string name = concat(output.name, "_dim_", k);
        dim.symbol = dim.symbol.empty() ? name : names.emplace(dim.symbol, name).first->second;
      }
    }
    forget_made_up_names(output);
  }
  return outputs;
}

}  // namespace ortrain
