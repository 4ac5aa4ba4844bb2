#include "ops/common/decomposed.h"

#include "op/opset.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace ortrain {

Name as_scalar(NodeWriter& e, Name value) {
  const auto dims = e.dims(value);
  if (dims && dims->empty()) return value;
  return e("Reshape", {value, e.int64s({})});
}

Name cast_like(NodeWriter& e, Name value, Name like) {
  const DType wanted = e.dtype(like);
  if (wanted == DType::kUndefined)
    e.reject("the element type of \"", like, "\" is not known; run ONNX shape inference on the model first");
  if (e.dtype(value) == wanted) return value;
  return e("Cast", {value}, {{"to", static_cast<int64_t>(wanted)}});
}

Name apply_activation(NodeWriter& e, Name value) {
  // The attributes of each activation, and their names in the fused node.
  static const std::map<std::string, std::vector<std::string>> known = {{"Elu", {"alpha"}},
                                                                        {"HardSigmoid", {"alpha", "beta"}},
                                                                        {"LeakyRelu", {"alpha"}},
                                                                        {"Relu", {}},
                                                                        {"Selu", {"alpha", "gamma"}},
                                                                        {"Sigmoid", {}},
                                                                        {"Softmax", {"axis"}},
                                                                        {"Softplus", {}},
                                                                        {"Softsign", {}},
                                                                        {"Tanh", {}},
                                                                        {"ThresholdedRelu", {"alpha"}}};
  const std::string name = e.node().string_or("activation", "");
  if (name.empty()) return value;
  const auto it = known.find(name);
  if (it == known.end()) e.reject("its activation '", name, "' is not supported");
  Attributes attributes;
  for (const std::string& attribute : it->second)
    if (const auto given = e.node().attributes.find("activation_" + attribute);
        given != e.node().attributes.end())
      attributes[attribute] = given->second;
  return e(name, {value}, attributes);
}

int64_t need_rank(const NodeWriter& e, const std::string& value) {
  const auto rank = e.rank(value);
  if (!rank)
    e.reject("the rank of \"", value, "\" is not known; run ONNX shape inference on the model first");
  return *rank;
}

Name softmax(NodeWriter& e, Name value, int64_t axis, bool flat) {
  const auto rank = e.rank(value);
  const bool last = axis == -1 || (rank && axis == *rank - 1);
  if (last || (flat && e.opset() < since::kOneSoftmaxAxis) || (!flat && e.opset() >= since::kOneSoftmaxAxis))
    return e("Softmax", {value}, {{"axis", axis}});
  if (!flat) {  // before version 13 Softmax covers all axes from `axis` on, so `axis` is moved to the end
    const int64_t count = need_rank(e, value);
    std::vector<int64_t> order(static_cast<size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::swap(order[static_cast<size_t>(axis < 0 ? axis + count : axis)], order.back());
    const Name transposed = e("Transpose", {value}, {{"perm", order}});
    return e("Transpose", {e("Softmax", {transposed}, {{"axis", int64_t{-1}}})}, {{"perm", order}});
  }
  const Name rows = e("Flatten", {value}, {{"axis", axis}});
  return reshape_to(e, e("Softmax", {rows}, {{"axis", int64_t{-1}}}), e("Shape", {value}));
}

Name reduce(NodeWriter& e, std::string_view type, Name value, List<int64_t> axes, bool keepdims) {
  const int64_t keep = keepdims ? 1 : 0;
  if (axes.empty()) return e(type, {value}, {{"keepdims", keep}});
  if (e.opset() < since::kReductionAxesAsInput) return e(type, {value}, {{"axes", axes}, {"keepdims", keep}});
  return e(type, {value, e.int64s(axes)}, {{"keepdims", keep}});
}

Name channels_first(NodeWriter& e, Name value) {
  const int64_t rank = need_rank(e, value);
  if (rank < 3) e.reject("\"", value, "\" should have shape [N, ..., C], found rank ", rank);
  std::vector<int64_t> order = {0, rank - 1};
  for (int64_t i = 1; i < rank - 1; ++i) order.push_back(i);
  return e("Transpose", {value}, {{"perm", order}});
}

Name channels_last(NodeWriter& e, Name value, int64_t rank) {
  std::vector<int64_t> order = {0};
  for (int64_t i = 2; i < rank; ++i) order.push_back(i);
  order.push_back(1);
  return e("Transpose", {value}, {{"perm", order}});
}

Names split_last_axis(NodeWriter& e, Name value, const std::vector<int64_t>& sizes) {
  Attributes last = {{"axis", int64_t{-1}}};
  Names whole = {value};
  if (e.opset() < since::kAxesAsInput)
    last["split"] = sizes;
  else
    whole.push_back(e.int64s(sizes));
  return e.emit("Split", whole, sizes.size(), last);
}

Name dims_of(NodeWriter& e, Name value, int64_t begin, int64_t end) {
  if (e.opset() >= since::kShapeRange) {
    Attributes part = {{"start", begin}};
    if (end != kToTheLast) part["end"] = end;
    return e("Shape", {value}, part);
  }
  return e("Slice", {e("Shape", {value}), e.int64s({begin}), e.int64s({end}), e.int64s({0})});
}

Name with_dims_after(NodeWriter& e, List<int64_t> front, Name value, int64_t begin) {
  if (const auto dims = e.dims(value)) {
    std::vector<int64_t> all(front.begin(), front.end());
    for (size_t i = static_cast<size_t>(begin); i < dims->size(); ++i) all.push_back((*dims)[i].value);
    if (std::count(all.begin(), all.end(), -1) == std::count(front.begin(), front.end(), -1))
      return e.int64s(all);
  }
  return e("Concat", {e.int64s(front), dims_of(e, value, begin, kToTheLast)}, {{"axis", int64_t{0}}});
}

Name reshape_to(NodeWriter& e, Name value, Name shape) {
  Attributes literal;
  if (e.opset() >= since::kAllowZero) literal["allowzero"] = int64_t{1};
  return e("Reshape", {value, shape}, literal);
}

}  // namespace ortrain
