// The parts of NodeWriter that all rules share: nodes whose form differs by opset.
#include "op/node_writer.h"

#include "op/opset.h"

namespace ortrain {

Name::Name(const char (&)[1]) {
  static const std::string omitted;
  text_ = &omitted;
}

std::vector<std::string> Inputs::texts() const {
  std::vector<std::string> all(texts_.begin(), texts_.end());
  all.insert(all.end(), names_.begin(), names_.end());
  return all;
}

void NewAttribute::add_to(Attributes& attributes) const {
  const auto made = [](auto value) -> Attribute {
    using Value = decltype(value);
    if constexpr (std::is_same_v<Value, const char*>)
      return std::string(value);
    else if constexpr (std::is_same_v<Value, const List<int64_t>*>)
      return std::vector<int64_t>(value->begin(), value->end());
    else if constexpr (std::is_pointer_v<Value>)
      return *value;
    else
      return value;
  };
  attributes.emplace(name_, std::visit(made, value_));
}

Attributes NewAttributes::made() const {
  Attributes attributes;
  if (all_) attributes = *all_;
  for (const NewAttribute& attribute : list_) attribute.add_to(attributes);
  return attributes;
}

Name NodeWriter::x(size_t i) const { return keep(node().inputs.at(i)); }
Name NodeWriter::y(size_t o) const { return keep(node().outputs.at(o)); }

Name NodeWriter::keep(std::string name) const { return kept_.emplace_back(std::move(name)); }

std::vector<Name> NodeWriter::emit(std::string_view op_type, Inputs inputs, size_t output_count,
                                   NewAttributes attributes, std::string_view domain) {
  std::vector<Name> outputs;
  for (std::string& output :
       add_node(Node{std::string(domain), std::string(op_type), "", inputs.texts(), {}, attributes.made()},
                output_count))
    outputs.push_back(keep(std::move(output)));
  return outputs;
}

Name NodeWriter::operator()(std::string_view op_type, Inputs inputs, NewAttributes attributes,
                            std::string_view domain) {
  return emit(op_type, inputs, 1, attributes, domain)[0];
}

Name NodeWriter::int64s(List<int64_t> values) {
  return constant(Tensor::of(std::vector<int64_t>(values.begin(), values.end())));
}

std::optional<int64_t> NodeWriter::rank(const std::string& value) const {
  const auto d = dims(value);
  if (!d) return std::nullopt;
  return static_cast<int64_t>(d->size());
}

Name NodeWriter::scalar_like(const std::string& like, double value) {
  const DType type = dtype(like);
  if (type == DType::kUndefined) {
    reject("the element type of value \"", like,
           "\" is not known, but the computation needs it; run ONNX shape inference on the model first");
  }
  return constant(Tensor::scalar(type, value));
}

Name NodeWriter::reduce_sum(const std::string& value, List<int64_t> axes, bool keepdims) {
  const int64_t keep = keepdims ? 1 : 0;
  if (opset() < since::kAxesAsInput)
    return (*this)("ReduceSum", {value}, {{"axes", axes}, {"keepdims", keep}});
  return (*this)("ReduceSum", {value, int64s(axes)}, {{"keepdims", keep}});
}

Name NodeWriter::unsqueeze(const std::string& value, List<int64_t> axes) {
  if (opset() < since::kAxesAsInput) return (*this)("Unsqueeze", {value}, {{"axes", axes}});
  return (*this)("Unsqueeze", {value, int64s(axes)});
}

Name NodeWriter::squeeze(const std::string& value, List<int64_t> axes) {
  if (opset() < since::kAxesAsInput) return (*this)("Squeeze", {value}, {{"axes", axes}});
  return (*this)("Squeeze", {value, int64s(axes)});
}

void NodeWriter::reject_with(const char* kinds, ...) const {
  va_list parts;
  va_start(parts, kinds);
  const std::string why = concat_list(kinds, parts);
  va_end(parts);
  fail(ErrorCode::kNotImplemented, node().label(), ": ", why);
}

}  // namespace ortrain
