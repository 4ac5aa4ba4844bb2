#include "ops/ml/ml.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "op/gradient_expression.h"
#include "runtime/text_tensor.h"

namespace ortrain {

std::vector<std::string> strings_of(const Node& node, const std::string& name) {
  const auto at = node.attributes.find(name);
  if (at == node.attributes.end()) return {};
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&at->second); ints && ints->empty()) return {};
  const auto* texts = std::get_if<std::vector<std::string>>(&at->second);
  require(texts != nullptr, ErrorCode::kInvalidGraph, node.label(), ": attribute ", name,
          " must hold strings");
  return *texts;
}

Labels::Labels(const NodeContext& c, const std::string& integers) : values(c.node().ints_or(integers, {})) {
  std::vector<std::string> strings = strings_of(c.node(), "classlabels_strings");
  if (strings.empty()) return;
  c.expect(values.empty(), "it has both ", integers, " and classlabels_strings, expected one of them");
  texts = std::make_shared<const std::vector<std::string>>(std::move(strings));
  for (const std::string& one : *texts) values.push_back(std::bit_cast<int64_t>(Text(&one)));
}

DType classifier_types(const ElementTypes& types, size_t o) {
  if (o > 0) return DType::kFloat;
  return strings_of(types.node(), "classlabels_strings").empty() ? DType::kInt64 : DType::kString;
}

std::vector<float> floats_of(const NodeContext& c, const std::string& name) {
  const auto at = c.node().attributes.find(name);
  if (at == c.node().attributes.end()) return {};
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&at->second); ints && ints->empty()) return {};
  const auto* values = std::get_if<std::vector<float>>(&at->second);
  c.expect(values != nullptr, "attribute ", name, " must hold floats");
  return *values;
}

std::vector<double> numbers_of(const NodeContext& c, const std::string& name) {
  const auto at = c.node().attributes.find(name + "_as_tensor");
  if (at == c.node().attributes.end()) {
    const std::vector<float> values = floats_of(c, name);
    return {values.begin(), values.end()};
  }
  const auto* tensor = std::get_if<Tensor>(&at->second);
  c.expect(tensor != nullptr, "attribute ", at->first, " must hold a tensor");
  return tensor->to_double();
}

Rows::Rows(const NodeContext& c) {
  const Shape& x = c.shape(0);
  c.expect(x.size() == 1 || x.size() == 2, "its input must have shape [N, F] or [F], found ", to_string(x));
  features = x.back();
  if (x.size() == 2) count = x[0];
}

PostTransform read_post_transform(const NodeContext& c) {
  const std::string name = c.node().string_or("post_transform", "NONE");
  if (name == "NONE") return PostTransform::kNone;
  if (name == "SOFTMAX") return PostTransform::kSoftmax;
  if (name == "LOGISTIC") return PostTransform::kLogistic;
  if (name == "SOFTMAX_ZERO") return PostTransform::kSoftmaxZero;
  if (name == "PROBIT") return PostTransform::kProbit;
  c.reject("attribute post_transform must be NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT, found '", name,
           "'");
}

namespace {

float logistic(float x) {
  const float y = 1 / (1 + std::exp(-std::abs(x)));
  return x < 0 ? 1 - y : y;
}

// √2 erf⁻¹(2x - 1) by S. Winitzki's approximation of the inverse, which onnxruntime also uses.
float probit(float x) {
  const float sign = 2 * x - 1 < 0 ? -1.0f : 1.0f;
  const float t = (1 - (2 * x - 1)) * (1 + (2 * x - 1));
  const float log = std::log(t);
  const float v = 2 / (3.14159f * 0.147f) + 0.5f * log, w = 1 / 0.147f * log;
  return 1.41421356f * sign * std::sqrt(-v + std::sqrt(v * v - w));
}

// e^(x - max) / Σ; with `keep_zeros`, a score of zero stays zero.
void softmax(float* x, int64_t n, bool keep_zeros) {
  const float largest = *std::max_element(x, x + n);
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (keep_zeros && std::abs(x[i]) <= 1e-7f)
      x[i] *= std::exp(-largest);
    else
      x[i] = std::exp(x[i] - largest);
    sum += x[i];
  }
  for (int64_t i = 0; i < n; ++i) x[i] = sum == 0 ? 0.5f : x[i] / sum;
}

}  // namespace

void transform_scores(PostTransform how, float* scores, int64_t n) {
  if (n == 0) return;
  switch (how) {
    case PostTransform::kNone:
      return;
    case PostTransform::kSoftmax:
      return softmax(scores, n, false);
    case PostTransform::kSoftmaxZero:
      return softmax(scores, n, true);
    case PostTransform::kLogistic:
      std::transform(scores, scores + n, scores, logistic);
      return;
    case PostTransform::kProbit:
      std::transform(scores, scores + n, scores, probit);
      return;
  }
}

Name scores_gradient(GradientContext& g, Name dy, Name scores) {
  const std::string how = g.node().string_or("post_transform", "NONE");
  const Expression d(g, dy), y(g, scores);
  if (how == "NONE") return dy;
  if (how == "LOGISTIC") return d * y * (1.0 - y);
  if (how == "SOFTMAX") return y * (d - Expression(g, g.reduce_sum(d * y, {-1}, true)));
  g.reject("post_transform " + how +
           " has no gradient; only those of NONE, LOGISTIC and SOFTMAX are supported");
}

}  // namespace ortrain
