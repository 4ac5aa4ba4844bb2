#include <algorithm>
#include <cmath>

#include "metrics/classes.h"

namespace ortrain {
namespace {

constexpr int64_t kMostClasses = 4096;  // 128 MB

class Matrix : public MetricCounts {
 public:
  explicit Matrix(const MetricOptions& options)
      : ignored_(static_cast<int64_t>(options.find("ignore_index")->second)) {}

  void update(const MetricBatch& batch) override {
    const ClassPairs pairs = class_pairs(batch, ignored_, kMostClasses);
    grow(pairs.classes);
    for (size_t i = 0; i < pairs.expected.size(); ++i) at(pairs.expected[i], pairs.predicted[i]) += 1;
  }
  void merge(const MetricCounts& other) override {
    const auto& more = static_cast<const Matrix&>(other);
    grow(more.classes_);
    for (int64_t r = 0; r < more.classes_; ++r)
      for (int64_t c = 0; c < more.classes_; ++c)
        at(r, c) += more.counts_[static_cast<size_t>(r * more.classes_ + c)];
  }
  Tensor result() override { return Tensor::of(counts_, Shape{classes_, classes_}); }
  MetricNumbers numbers() override { return {counts_}; }
  bool load(const MetricNumbers& numbers) override {
    if (numbers.size() != 1) return false;
    const auto classes =
        static_cast<int64_t>(std::llround(std::sqrt(static_cast<double>(numbers[0].size()))));
    if (classes > kMostClasses || static_cast<size_t>(classes * classes) != numbers[0].size()) return false;
    classes_ = classes;
    counts_ = numbers[0];
    return true;
  }

 private:
  double& at(int64_t expected, int64_t predicted) {
    return counts_[static_cast<size_t>(expected * classes_ + predicted)];
  }
  void grow(int64_t classes) {
    if (classes <= classes_) return;
    std::vector<double> grown(static_cast<size_t>(classes * classes));
    for (int64_t r = 0; r < classes_; ++r)
      std::copy_n(counts_.begin() + r * classes_, classes_, grown.begin() + r * classes);
    counts_ = std::move(grown);
    classes_ = classes;
  }

  int64_t ignored_, classes_ = 0;
  std::vector<double> counts_;  // a row for each true class, exact up to 2^53
};

ORTRAIN_METRIC(
    ConfusionMatrix,
    {.name = "confusion_matrix",
     .formula =
         "how often each class was predicted: a row for each true class, a column for each predicted one",
     .source = "scikit-learn, confusion_matrix",
     .options = {ignore_index_option()},
     .make = make_metric<Matrix>});

}  // namespace
}  // namespace ortrain
