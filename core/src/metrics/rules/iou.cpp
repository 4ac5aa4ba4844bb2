#include <limits>

#include "metrics/rules/class_counts.h"

namespace ortrain {
namespace {

class IoUCounts : public ClassCounts {
 public:
  using ClassCounts::ClassCounts;

  Tensor result() override {
    double sum = 0, occurring = 0;
    for (size_t c = 0; c < right_.size(); ++c) {
      const double either = predicted_[c] + expected_[c] - right_[c];
      if (either == 0) continue;
      sum += right_[c] / either;
      occurring += 1;
    }
    return Tensor::scalar(occurring > 0 ? sum / occurring : std::numeric_limits<double>::quiet_NaN());
  }
};

ORTRAIN_METRIC(IoU, {.name = "iou",
                     .formula = "mean over the classes that occur of TP / (TP + FP + FN)",
                     .source = "scikit-learn, jaccard_score",
                     .options = {ignore_index_option()},
                     .make = make_metric<IoUCounts>});

}  // namespace
}  // namespace ortrain
