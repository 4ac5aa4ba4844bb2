#include <limits>

#include "metrics/classes.h"
#include "runtime/error.h"

namespace ortrain {
namespace {

// The rows that were seen, and for each column the mean of the targets, the sum of their squared differences
// from the mean, and the sum of the squared errors.
struct Columns {
  double rows = 0;
  std::vector<double> mean, spread, error;

  explicit Columns(size_t columns = 0) : mean(columns), spread(columns), error(columns) {}

  // Combines the means and spreads of two parts without a difference of large sums (Chan, Golub and LeVeque,
  // 1979).
  void add(const Columns& more) {
    if (more.rows == 0) return;
    if (rows == 0) {
      *this = more;
      return;
    }
    const double total = rows + more.rows;
    for (size_t c = 0; c < mean.size(); ++c) {
      const double apart = more.mean[c] - mean[c];
      spread[c] += more.spread[c] + apart * apart * (rows * more.rows / total);
      mean[c] += apart * (more.rows / total);
      error[c] += more.error[c];
    }
    rows = total;
  }
};

class R2Counts : public MetricCounts {
 public:
  explicit R2Counts(const MetricOptions&) {}

  void update(const MetricBatch& batch) override {
    const Tensor& prediction = *batch.prediction;
    const Shape& shape = prediction.shape();
    require(!shape.empty() && prediction.size() == batch.target.size(), ErrorCode::kInvalidArgument,
            "metric ", batch.metric, ": expected predictions [batch, ...] and as many targets, found ",
            to_string(batch.target.shape()), " for ", to_string(shape));
    if (prediction.size() == 0) return;
    const auto columns = static_cast<size_t>(prediction.size() / shape[0]);
    require(counted_.rows == 0 || counted_.mean.size() == columns, ErrorCode::kInvalidArgument, "metric ",
            batch.metric, ": expected ", counted(counted_.mean.size(), "number"),
            " in each row as in earlier batches, found ", columns);
    Columns of_batch(columns);
    of_batch.rows = static_cast<double>(shape[0]);
    with_numbers(prediction, [&](const auto* x) {
      with_numbers(batch.target, [&](const auto* t) { sum(of_batch, x, t, prediction.size()); });
    });
    counted_.add(of_batch);
  }
  void merge(const MetricCounts& other) override {
    const Columns& more = static_cast<const R2Counts&>(other).counted_;
    require(counted_.rows == 0 || more.rows == 0 || counted_.mean.size() == more.mean.size(),
            ErrorCode::kInvalidArgument, "metric r2: expected ", counted(counted_.mean.size(), "number"),
            " in each row in both parts, found ", more.mean.size());
    counted_.add(more);
  }
  Tensor result() override {
    if (counted_.rows < 2) return Tensor::scalar(std::numeric_limits<double>::quiet_NaN());
    double sum = 0;
    for (size_t c = 0; c < counted_.mean.size(); ++c)
      sum += counted_.spread[c] > 0 ? 1 - counted_.error[c] / counted_.spread[c]
                                    : double(counted_.error[c] == 0);
    return Tensor::scalar(sum / static_cast<double>(counted_.mean.size()));
  }
  MetricNumbers numbers() override {
    return {{counted_.rows}, counted_.mean, counted_.spread, counted_.error};
  }
  bool load(const MetricNumbers& numbers) override {
    if (numbers.size() != 4 || numbers[0].size() != 1) return false;
    if (numbers[1].size() != numbers[2].size() || numbers[1].size() != numbers[3].size()) return false;
    counted_.rows = numbers[0][0];
    counted_.mean = numbers[1];
    counted_.spread = numbers[2];
    counted_.error = numbers[3];
    return true;
  }

 private:
  template <typename X, typename T>
  static void sum(Columns& out, const X* x, const T* t, int64_t n) {
    const size_t columns = out.mean.size();
    const auto each = [&](auto&& f) {
      for (int64_t i = 0; i < n; i += static_cast<int64_t>(columns))
        for (size_t c = 0; c < columns; ++c)
          f(c, static_cast<double>(x[i + static_cast<int64_t>(c)]),
            static_cast<double>(t[i + static_cast<int64_t>(c)]));
    };
    each([&](size_t c, double, double target) { out.mean[c] += target; });
    for (double& mean : out.mean) mean /= out.rows;
    each([&](size_t c, double found, double target) {
      out.spread[c] += (target - out.mean[c]) * (target - out.mean[c]);
      out.error[c] += (found - target) * (found - target);
    });
  }

  Columns counted_;
};

ORTRAIN_METRIC(
    R2, {.name = "r2",
         .formula =
             "1 - Σ (prediction - target)² / Σ (target - mean(target))²; for several numbers in a "
             "row, the mean of their values. NaN with fewer than two rows; if all targets are equal, 1 for "
             "exact predictions, else 0",
         .source = "scikit-learn, r2_score",
         .make = make_metric<R2Counts>});

}  // namespace
}  // namespace ortrain
