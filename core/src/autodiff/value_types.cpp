#include "autodiff/value_types.h"

#include <vector>

#include "ops/operator.h"

namespace ortrain {
namespace {

std::vector<Dim> dims_of(const Shape& shape) {
  std::vector<Dim> dims;
  for (const int64_t extent : shape) dims.push_back(Dim{extent, ""});
  return dims;
}

// The constant that a Constant node holds, undefined where it is of a kind that has no tensor.
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

// The element type of output o where no shape rule could tell: that of the first input, with few exceptions.
DType guess_type(const ValueTypes& types, const Node& node, size_t o) {
  static const std::map<std::string_view, DType> fixed = {
      {"NonZero", DType::kInt64}, {"ArgMax", DType::kInt64},     {"ArgMin", DType::kInt64},
      {"Shape", DType::kInt64},   {"Size", DType::kInt64},       {"Equal", DType::kBool},
      {"Less", DType::kBool},     {"LessOrEqual", DType::kBool}, {"Greater", DType::kBool},
      {"And", DType::kBool},      {"Or", DType::kBool},          {"GreaterOrEqual", DType::kBool},
      {"Xor", DType::kBool},      {"Not", DType::kBool},         {"IsNaN", DType::kBool},
      {"IsInf", DType::kBool}};
  static const std::map<std::string_view, DType> others = {{"MaxPool", DType::kInt64},
                                                           {"TopK", DType::kInt64},
                                                           {"Unique", DType::kInt64},
                                                           {"Dropout", DType::kBool}};
  static const std::map<std::string_view, size_t> like_input = {
      {"Where", 1}, {"OneHot", 2}, {"CastLike", 1}, {"GatherGrad", 2}, {"GatherNDGrad", 2}};
  if (const auto it = fixed.find(node.op_type); it != fixed.end()) return it->second;
  if (const auto it = others.find(node.op_type); o > 0 && it != others.end()) return it->second;
  if (node.op_type == "Cast") return static_cast<DType>(node.int_or("to", 0));
  if (node.op_type == "ConstantOfShape") {
    const auto it = node.attributes.find("value");
    const Tensor* value = it == node.attributes.end() ? nullptr : std::get_if<Tensor>(&it->second);
    return value ? value->dtype() : DType::kFloat;
  }
  const auto it = like_input.find(node.op_type);
  const size_t i = it == like_input.end() ? 0 : it->second;
  return node.has_input(i) ? types.info(node.inputs[i]).dtype : DType::kUndefined;
}

}  // namespace

// What a shape rule sees in one of the two runs. Throws where an input is not known.
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
    const DType dtype = has_input(i) ? types_.info(node().inputs[i]).dtype : DType::kUndefined;
    expect(dtype != DType::kUndefined, "the type of input ", i, " is not known");
    return dtype;
  }
  const Shape& shape(size_t i) const override {
    expect(has_input(i) && shapes_[i], "the shape of input ", i, " is not known");
    return *shapes_[i];
  }
  const Tensor* constant(size_t i) const override {
    if (!has_input(i)) return nullptr;
    const std::string& value = node().inputs[i];
    if (const auto it = types_.run_values_.find(value); it != types_.run_values_.end())
      return run_ == 0 ? &it->second.first : &it->second.second;
    return types_.constant(value);
  }
  void output(size_t o, DType dtype, Shape shape) override {
    if (o >= shapes_out.size()) return;
    element_count(shape);  // refuses what cannot be
    types_out[o] = dtype;
    shapes_out[o] = std::move(shape);
  }
  void value(size_t o, Tensor value) override {
    output(o, value.dtype(), value.shape());
    if (o < values_out.size()) values_out[o] = std::move(value);
  }

 private:
  const ValueTypes& types_;
  const int run_;
  std::vector<std::optional<Shape>> shapes_;

 public:
  std::vector<DType> types_out;
  std::vector<std::optional<Shape>> shapes_out;
  std::vector<Tensor> values_out;
};

ValueTypes::ValueTypes(const Model& model) : model_(model) {
  for (const ValueInfo& stated : model.graph.inputs) state(stated);
  for (const std::string& name : model.graph.initializer_order)
    set_constant(name, model.graph.initializers.at(name));
  for (const auto& [name, stated] : model.graph.value_info) info_.emplace(name, stated);
  for (const ValueInfo& stated : model.graph.outputs) info_.emplace(stated.name, stated);
  for (const Node& node : model.graph.nodes) infer(node);
}

const ValueInfo& ValueTypes::info(const std::string& value) const {
  static const ValueInfo nothing;
  const auto it = info_.find(value);
  return it == info_.end() ? nothing : it->second;
}

const Tensor* ValueTypes::constant(const std::string& value) const {
  const auto it = constants_.find(value);
  return it == constants_.end() ? nullptr : &it->second;
}

void ValueTypes::set_like(const std::string& value, const std::string& other) {
  const ValueInfo like = info(other);
  ValueInfo& known = info_[value];
  known.name = value;
  if (known.dtype == DType::kUndefined) known.dtype = like.dtype;
  if (!known.dims) known.dims = like.dims;
}

void ValueTypes::set_constant(const std::string& value, const Tensor& tensor) {
  constants_[value] = tensor;
  info_[value] = ValueInfo{value, tensor.dtype(), dims_of(tensor.shape())};
}

void ValueTypes::state(const ValueInfo& stated) {
  ValueInfo& known = info_[stated.name] = stated;
  if (!known.dims) return;
  for (Dim& dim : *known.dims) number(dim);
}

// Gives an extent that is not a number its two numbers, and a name where it has none. Odd in one run and even
// in the other, and large, so that rounding does not make equal what is not.
void ValueTypes::number(Dim& dim) {
  if (dim.known() || numbers_.count(dim.symbol)) return;
  const int64_t k = static_cast<int64_t>(numbers_.size());
  dim.symbol = name_of({1009 + 6 * k, 2038 + 10 * k}, &dim);
}

std::string ValueTypes::name_of(const Numbers& numbers, const Dim* stated) {
  if (const auto it = names_.find(numbers); it != names_.end()) return it->second;
  const bool usable = stated && !stated->symbol.empty() && !numbers_.count(stated->symbol);
  const std::string name = usable ? stated->symbol : concat("?", numbers_.size());
  numbers_[name] = numbers;
  names_[numbers] = name;
  return name;
}

std::optional<Shape> ValueTypes::shape(const std::string& value, int run) const {
  const auto& dims = info(value).dims;
  if (!dims) return std::nullopt;
  Shape shape;
  for (const Dim& dim : *dims) {
    const auto it = numbers_.find(dim.symbol);
    if (!dim.known() && it == numbers_.end()) return std::nullopt;
    shape.push_back(dim.known() ? dim.value : run == 0 ? it->second.first : it->second.second);
  }
  return shape;
}

void ValueTypes::infer(const Node& node) {
  if (node.domain.empty() && node.op_type == "Constant") {
    const Tensor tensor = value_of_constant_node(node);
    if (tensor.defined() && node.has_output(0)) return set_constant(node.outputs[0], tensor);
  }
  NumberedShapes first(*this, node, 0), second(*this, node, 1);
  if (const Operator* op = find_operator(node.domain, node.op_type); op && op->shape) {
    try {
      op->shape(first);
      op->shape(second);
    } catch (const Error&) {
      // The rule needs what is known later only; what it said before stays, and so does what the model
      // states.
    }
  }
  for (size_t o = 0; o < node.outputs.size(); ++o) {
    if (!node.has_output(o)) continue;
    ValueInfo& known = info_[node.outputs[o]];
    known.name = node.outputs[o];
    if (first.types_out[o] != DType::kUndefined) known.dtype = first.types_out[o];
    if (known.dtype == DType::kUndefined) known.dtype = guess_type(*this, node, o);
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
    } else if (known.dims) {
      for (Dim& dim : *known.dims) number(dim);
    }
    if (first.values_out[o].defined() && second.values_out[o].defined())
      run_values_[node.outputs[o]] = {first.values_out[o], second.values_out[o]};
  }
}

}  // namespace ortrain
