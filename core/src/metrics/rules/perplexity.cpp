#include <algorithm>
#include <cmath>

#include "metrics/classes.h"
#include "metrics/rules/sums.h"
#include "runtime/error.h"

namespace ortrain {
namespace {

class PerplexityCounts : public MeanCounts {
 public:
  explicit PerplexityCounts(const MetricOptions& options)
      : ignored_(static_cast<int64_t>(options.find("ignore_index")->second)) {}

  void update(const MetricBatch& batch) override {
    require(batch.loss != nullptr, ErrorCode::kInvalidArgument, "metric ", batch.metric,
            ": expected the loss of the batch, found none");
    const std::vector<int64_t> targets = whole_numbers(batch.target);
    const auto count = static_cast<double>(
        targets.size() - static_cast<size_t>(std::count(targets.begin(), targets.end(), ignored_)));
    if (count > 0) add(batch.loss->to_double().front() * count, count);
  }
  Tensor result() override { return Tensor::scalar(std::exp(mean())); }

 private:
  int64_t ignored_;
};

ORTRAIN_METRIC(Perplexity,
               {.name = "perplexity",
                .formula = "exponential of the mean cross entropy per target, from losses that are the mean "
                           "cross entropy of a batch",
                .source = "Jelinek et al., Perplexity: a measure of the difficulty of speech recognition "
                          "tasks, 1977",
                .reads_prediction = false,
                .options = {ignore_index_option()},
                .make = make_metric<PerplexityCounts>});

}  // namespace
}  // namespace ortrain
