#include <cmath>

#include "metrics/classes.h"
#include "metrics/rules/sums.h"
#include "runtime/error.h"

namespace ortrain {
namespace {

class MaeCounts : public MeanCounts {
 public:
  explicit MaeCounts(const MetricOptions&) {}

  void update(const MetricBatch& batch) override {
    const Tensor& prediction = *batch.prediction;
    require(prediction.size() == batch.target.size(), ErrorCode::kInvalidArgument, "metric ", batch.metric,
            ": expected as many targets as predictions, found ", to_string(batch.target.shape()), " for ",
            to_string(prediction.shape()));
    double sum = 0;
    with_numbers(prediction, [&](const auto* x) {
      with_numbers(batch.target, [&](const auto* t) {
        for (int64_t i = 0; i < prediction.size(); ++i)
          sum += std::abs(static_cast<double>(x[i]) - static_cast<double>(t[i]));
      });
    });
    add(sum, static_cast<double>(prediction.size()));
  }
};

ORTRAIN_METRIC(Mae, {.name = "mae",
                     .formula = "mean of |prediction - target|",
                     .source = "scikit-learn, mean_absolute_error",
                     .make = make_metric<MaeCounts>});

}  // namespace
}  // namespace ortrain
