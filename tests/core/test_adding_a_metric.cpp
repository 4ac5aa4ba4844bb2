// A metric is added in one place: this file declares one, and metrics and the list of the library have it.
#include "catch.h"
#include "metrics/metric.h"
#include "metrics/rule.h"
#include "metrics/rules/sums.h"

namespace ortrain {
namespace {

// The share of predictions that are at most `limit` away from their targets.
class CloseCounts : public MeanCounts {
 public:
  explicit CloseCounts(const MetricOptions& options) : limit_(options.find("limit")->second) {}

  void update(const MetricBatch& batch) override {
    const auto found = batch.prediction->elements<float>(), wanted = batch.target.elements<float>();
    double close = 0;
    for (size_t i = 0; i < found.size(); ++i) close += std::abs(found[i] - wanted[i]) <= limit_ ? 1 : 0;
    add(close, static_cast<double>(found.size()));
  }

 private:
  double limit_;
};

ORTRAIN_METRIC(Close, {.name = "close",
                       .formula = "mean of |prediction - target| <= limit",
                       .source = "this test",
                       .options = {{"limit", 1, "the largest distance that counts", 0}},
                       .make = make_metric<CloseCounts>});

Tensor numbers(std::initializer_list<float> values) {
  Tensor made(DType::kFloat, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), made.elements<float>().begin());
  return made;
}

}  // namespace

TEST_CASE("A metric that one file declares counts batches, joins parts and continues") {
  Metric metric("close", "limit=2"), other("close", "limit=2"), later("close", "limit=2");
  const Tensor target = numbers({0, 0, 0}), near = numbers({2, -1, 3}), far = numbers({9, 9, 9});
  metric.update(&near, target, nullptr);
  CHECK(metric.result().elements<double>()[0] == 2.0 / 3);
  other.update(&far, target, nullptr);
  metric.merge(other);
  CHECK(metric.result().elements<double>()[0] == 2.0 / 6);
  const std::string state = metric.state();
  later.load_state(state.data(), state.size());
  CHECK(later.result().elements<double>()[0] == 2.0 / 6);
  CHECK_THROWS_WITH(Metric("close", "limit=-1"), Catch::Contains("limit"));
  CHECK_THROWS_WITH(Metric("clos", ""), Catch::Contains("close"));
  CHECK(find_metric("close") != nullptr);
}

}  // namespace ortrain
