// The parts of NodeWriter that all rules share: nodes whose form differs by opset.
#include "op/node_writer.h"

#include "op/opset.h"

namespace ortrain {

std::string NodeWriter::operator()(const std::string& op_type, const std::vector<std::string>& inputs,
                                   const Attributes& attributes, const std::string& domain) {
  return emit(op_type, inputs, 1, attributes, domain)[0];
}

std::string NodeWriter::int64s(const std::vector<int64_t>& values) { return constant(Tensor::of(values)); }

std::optional<int64_t> NodeWriter::rank(const std::string& value) const {
  const auto d = dims(value);
  if (!d) return std::nullopt;
  return static_cast<int64_t>(d->size());
}

std::string NodeWriter::scalar_like(const std::string& like, double value) {
  const DType type = dtype(like);
  if (type == DType::kUndefined) {
    reject(concat("the element type of value \"", like,
                  "\" is not known, but the computation needs it; run ONNX shape inference on "
                  "the model first"));
  }
  return constant(Tensor::scalar(type, value));
}

std::string NodeWriter::reduce_sum(const std::string& value, const std::vector<int64_t>& axes,
                                   bool keepdims) {
  const int64_t keep = keepdims ? 1 : 0;
  if (opset() < since::kAxesAsInput)
    return (*this)("ReduceSum", {value}, {{"axes", axes}, {"keepdims", keep}});
  return (*this)("ReduceSum", {value, int64s(axes)}, {{"keepdims", keep}});
}

std::string NodeWriter::unsqueeze(const std::string& value, const std::vector<int64_t>& axes) {
  if (opset() < since::kAxesAsInput) return (*this)("Unsqueeze", {value}, {{"axes", axes}});
  return (*this)("Unsqueeze", {value, int64s(axes)});
}

std::string NodeWriter::squeeze(const std::string& value, const std::vector<int64_t>& axes) {
  if (opset() < since::kAxesAsInput) return (*this)("Squeeze", {value}, {{"axes", axes}});
  return (*this)("Squeeze", {value, int64s(axes)});
}

void NodeWriter::reject(const std::string& why) const {
  fail(ErrorCode::kNotImplemented, node().label(), ": ", why);
}

}  // namespace ortrain
