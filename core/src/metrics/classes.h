// Scores of classes, [batch, classes, ...] or [batch, ..., classes], and the target class of each item, as
// metrics take them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "metrics/rule.h"
#include "runtime/convert.h"

namespace ortrain {

// A score has the index (row · classes + class) · inner + column. A single score per item is a logit: above 0
// it means class 1.
struct ScoreLayout {
  int64_t rows, classes, inner;

  int64_t items() const { return rows * inner; }
};

// Scores with the class of each item. Targets that are probabilities of classes become the likeliest class.
struct ClassBatch {
  ScoreLayout layout;
  std::vector<int64_t> targets;  // one for each item
};

// Throws, naming the metric, if the shapes do not fit or there are no classes.
ClassBatch class_batch(const MetricBatch& batch);

// The class of the largest score of each item; of equal scores, the first class.
std::vector<int64_t> predicted_classes(const Tensor& scores, const ScoreLayout& layout);

// Classes that were predicted and expected, without the items whose target is `ignored`. No class is
// negative.
struct ClassPairs {
  int64_t classes;  // the number of scores of an item, 2 for a logit, and more if a target is larger
  std::vector<int64_t> predicted, expected;
};
// Throws, naming the metric, if there are more than `most` classes, or if a target is negative and not
// `ignored`.
ClassPairs class_pairs(const MetricBatch& batch, int64_t ignored,
                       int64_t most = std::numeric_limits<int64_t>::max());

// Whole numbers of any type.
std::vector<int64_t> whole_numbers(const Tensor& tensor);

// Calls f with a pointer to the numbers as float or double, whichever holds them.
template <typename F>
void with_numbers(const Tensor& tensor, F&& f) {
  if (tensor.dtype() == DType::kFloat) {
    f(static_cast<const float*>(tensor.data<float>()));
  } else if (tensor.dtype() == DType::kDouble) {
    f(static_cast<const double*>(tensor.data<double>()));
  } else {
    const std::vector<double> numbers = tensor.to_double();
    f(numbers.data());
  }
}

}  // namespace ortrain
