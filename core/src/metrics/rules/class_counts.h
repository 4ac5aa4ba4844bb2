// How often each class was predicted, expected, and both.
#pragma once

#include "metrics/classes.h"

namespace ortrain {

class ClassCounts : public MetricCounts {
 public:
  explicit ClassCounts(const MetricOptions& options)
      : ignored_(static_cast<int64_t>(options.find("ignore_index")->second)) {}

  void update(const MetricBatch& batch) override {
    const ClassPairs pairs = class_pairs(batch, ignored_, kMostClasses);
    grow(static_cast<size_t>(pairs.classes));
    for (size_t i = 0; i < pairs.expected.size(); ++i) {
      const auto expected = static_cast<size_t>(pairs.expected[i]);
      const auto predicted = static_cast<size_t>(pairs.predicted[i]);
      ++expected_[expected];
      ++predicted_[predicted];
      if (expected == predicted) ++right_[expected];
    }
  }
  void merge(const MetricCounts& other) override {
    const auto& more = static_cast<const ClassCounts&>(other);
    grow(more.right_.size());
    for (size_t c = 0; c < more.right_.size(); ++c) {
      right_[c] += more.right_[c];
      predicted_[c] += more.predicted_[c];
      expected_[c] += more.expected_[c];
    }
  }
  MetricNumbers numbers() override { return {right_, predicted_, expected_}; }
  bool load(const MetricNumbers& numbers) override {
    if (numbers.size() != 3 || numbers[0].size() != numbers[1].size() ||
        numbers[0].size() != numbers[2].size())
      return false;
    right_ = numbers[0];
    predicted_ = numbers[1];
    expected_ = numbers[2];
    return true;
  }

 protected:
  static constexpr int64_t kMostClasses = int64_t{1} << 24;

  // Exact up to 2^53.
  std::vector<double> right_, predicted_, expected_;

 private:
  void grow(size_t classes) {
    if (classes <= right_.size()) return;
    for (std::vector<double>* each : {&right_, &predicted_, &expected_}) each->resize(classes);
  }

  int64_t ignored_;
};

}  // namespace ortrain
