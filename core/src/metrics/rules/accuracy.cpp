#include "metrics/classes.h"
#include "metrics/rules/sums.h"

namespace ortrain {
namespace {

class AccuracyCounts : public MeanCounts {
 public:
  explicit AccuracyCounts(const MetricOptions& options)
      : ignored_(static_cast<int64_t>(options.find("ignore_index")->second)) {}

  void update(const MetricBatch& batch) override {
    const ClassPairs pairs = class_pairs(batch, ignored_);
    int64_t right = 0;
    for (size_t i = 0; i < pairs.expected.size(); ++i) right += pairs.predicted[i] == pairs.expected[i];
    add(static_cast<double>(right), static_cast<double>(pairs.expected.size()));
  }

 private:
  int64_t ignored_;
};

ORTRAIN_METRIC(
    Accuracy,
    {.name = "accuracy",
     .formula = "share of items whose class has the largest score; a single logit above 0 counts as class 1",
     .source = "scikit-learn, accuracy_score",
     .options = {ignore_index_option()},
     .make = make_metric<AccuracyCounts>});

}  // namespace
}  // namespace ortrain
