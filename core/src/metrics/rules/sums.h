// The counts of metrics that are a function of a few sums.
#pragma once

#include <array>
#include <limits>

#include "metrics/rule.h"

namespace ortrain {

template <size_t kSums>
class SumCounts : public MetricCounts {
 public:
  void merge(const MetricCounts& other) override {
    for (size_t k = 0; k < kSums; ++k) sums_[k] += static_cast<const SumCounts&>(other).sums_[k];
  }
  MetricNumbers numbers() override { return {{sums_.begin(), sums_.end()}}; }
  bool load(const MetricNumbers& numbers) override {
    if (numbers.size() != 1 || numbers[0].size() != kSums) return false;
    std::copy(numbers[0].begin(), numbers[0].end(), sums_.begin());
    return true;
  }

 protected:
  std::array<double, kSums> sums_{};
};

// The mean of values; NaN if there are none.
class MeanCounts : public SumCounts<2> {
 public:
  Tensor result() override { return Tensor::scalar(mean()); }

 protected:
  void add(double sum, double count) {
    sums_[0] += sum;
    sums_[1] += count;
  }
  double mean() const {
    return sums_[1] > 0 ? sums_[0] / sums_[1] : std::numeric_limits<double>::quiet_NaN();
  }
};

}  // namespace ortrain
