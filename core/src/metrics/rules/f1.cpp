#include <limits>
#include <numeric>

#include "metrics/rules/class_counts.h"

namespace ortrain {
namespace {

enum Average { kMacro, kMicro, kBinary };

class F1Counts : public ClassCounts {
 public:
  explicit F1Counts(const MetricOptions& options)
      : ClassCounts(options), average_(static_cast<Average>(options.find("average")->second)) {}

  Tensor result() override { return Tensor::scalar(value()); }

 private:
  double value() const {
    // 2 TP + FP + FN is how often a class was predicted, and how often it was expected.
    const auto both = [this](size_t c) { return predicted_[c] + expected_[c]; };
    double sum = 0, occurring = 0, right = 0, all = 0;
    for (size_t c = 0; c < right_.size(); ++c) {
      if (both(c) == 0) continue;
      sum += 2 * right_[c] / both(c);
      occurring += 1;
      right += right_[c];
      all += both(c);
    }
    if (all == 0) return std::numeric_limits<double>::quiet_NaN();
    if (average_ == kMicro) return 2 * right / all;
    if (average_ == kBinary) return both(1) > 0 ? 2 * right_[1] / both(1) : 0;
    return sum / occurring;
  }

  Average average_;
};

ORTRAIN_METRIC(
    F1, {.name = "f1",
         .formula = "2 TP / (2 TP + FP + FN)",
         .source = "scikit-learn, f1_score",
         .options = {{.name = "average",
                      .value = kMacro,
                      .meaning = "the mean over the classes that occur, one value over all items, or the "
                                 "value of class 1",
                      .choices = {"macro", "micro", "binary"}},
                     ignore_index_option()},
         .make = make_metric<F1Counts>});

}  // namespace
}  // namespace ortrain
