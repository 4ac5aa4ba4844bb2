// Helpers of the operators of ai.onnx.ml: their domain, inputs of any numeric type, and the transformation of
// scores.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "op/operator.h"

namespace ortrain {

inline constexpr const char* kMl = "ai.onnx.ml";

// Calls f(T{}) with the element type of input i: float, double, int32 or int64.
template <typename F>
void visit_ml(const NodeContext& c, size_t i, F&& f) {
  if (!visit_types<float, double, int32_t, int64_t>(c.dtype(i), f)) c.reject_dtype(i);
}

// A list of floats; empty if the node does not have the attribute.
std::vector<float> floats_of(const NodeContext& c, const std::string& name);
// A list of floats, or a tensor of float or double in the attribute with `_as_tensor` appended to its name.
std::vector<double> numbers_of(const NodeContext& c, const std::string& name);
// A list of strings; empty if the node does not have the attribute.
std::vector<std::string> strings_of(const Node& node, const std::string& name);

// The labels of a classifier's classes: integers or, in the same memory, strings (Text).
struct Labels {
  std::vector<int64_t> values;
  std::shared_ptr<const std::vector<std::string>> texts;  // `values` point to these; null: integers
  Labels(const NodeContext& c, const std::string& integers);
  DType type() const { return texts ? DType::kString : DType::kInt64; }
  size_t size() const { return values.size(); }
  bool empty() const { return values.empty(); }
  int64_t operator[](size_t i) const { return values[i]; }
};

// The types of a classifier's outputs: labels are int64 or strings, scores float.
DType classifier_types(const ElementTypes& types, size_t o);

// Input 0, [N, F] or [F], as rows of features.
struct Rows {
  int64_t count = 1, features = 1;
  explicit Rows(const NodeContext& c);
};

// The final transformation of the scores of a row.
enum class PostTransform { kNone, kSoftmax, kLogistic, kSoftmaxZero, kProbit };
PostTransform read_post_transform(const NodeContext& c);
void transform_scores(PostTransform how, float* scores, int64_t n);

// The gradient of scores before the transformation, from dY and the scores after it; rejects transformations
// without a gradient.
Name scores_gradient(GradientContext& g, Name dy, Name scores);

}  // namespace ortrain
