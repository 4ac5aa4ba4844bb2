#include "metrics/classes.h"
#include "metrics/rules/sums.h"
#include "runtime/error.h"

namespace ortrain {
namespace {

class TopKCounts : public MeanCounts {
 public:
  explicit TopKCounts(const MetricOptions& options)
      : k_(static_cast<int64_t>(options.find("k")->second)),
        ignored_(static_cast<int64_t>(options.find("ignore_index")->second)) {}

  void update(const MetricBatch& batch) override {
    const ClassBatch given = class_batch(batch);
    const ScoreLayout& layout = given.layout;
    int64_t right = 0, count = 0;
    with_numbers(*batch.prediction, [&](const auto* scores) {
      for (int64_t item = 0; item < layout.items(); ++item) {
        const int64_t target = given.targets[static_cast<size_t>(item)];
        if (target == ignored_) continue;
        require(target >= 0 && target < layout.classes, ErrorCode::kInvalidArgument, "metric ", batch.metric,
                ": expected targets below the number of classes, ", layout.classes, ", found ", target);
        const auto* x = scores + item / layout.inner * layout.classes * layout.inner + item % layout.inner;
        const auto own = x[target * layout.inner];
        // Of equal scores, the score with the lower index comes first.
        int64_t better = 0;
        for (int64_t c = 0; c < target; ++c) better += x[c * layout.inner] >= own;
        for (int64_t c = target; c < layout.classes; ++c) better += x[c * layout.inner] > own;
        right += better < k_;
        ++count;
      }
    });
    add(static_cast<double>(right), static_cast<double>(count));
  }

 private:
  int64_t k_, ignored_;
};

ORTRAIN_METRIC(TopK, {.name = "top_k",
                      .formula = "share of items whose class is among the k with the largest scores",
                      .source = "scikit-learn, top_k_accuracy_score",
                      .options = {{"k", 5, "how many classes count", 1, 1e15}, ignore_index_option()},
                      .make = make_metric<TopKCounts>});

}  // namespace
}  // namespace ortrain
