// The area under the receiver operating characteristic, from how often each score was given to items inside
// and outside of a class.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "metrics/classes.h"
#include "runtime/error.h"

namespace ortrain {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The counts of scores in limited memory. A key is the bits of a float32, in an order in which larger scores
// have larger keys. If there are more different keys than memory for counts, keys that differ only in their
// last bits are counted together.
class Ranking {
 public:
  void add(double score, bool is_inside) {
    const auto bits = std::bit_cast<uint32_t>(static_cast<float>(score) + 0.0f);  // -0 becomes 0
    waiting_.push_back({bits >> 31 ? ~bits : bits | 1u << 31, is_inside ? 0.0 : 1.0, is_inside ? 1.0 : 0.0});
    if (waiting_.size() > std::max<size_t>(4096, counts_.size())) count_waiting();
  }
  void add(const Ranking& more) {
    dropped_ = std::max(dropped_, more.dropped_);
    for (const std::vector<Count>* part : {&more.counts_, &more.waiting_})
      waiting_.insert(waiting_.end(), part->begin(), part->end());
    count_waiting();
  }

  // The probability that an item inside has a larger score than an item outside; equal scores count half.
  double area() {
    count_waiting();
    double outside = 0, inside = 0, sum = 0;
    for (const Count& each : counts_) {
      sum += each.inside * (outside + each.outside / 2);
      outside += each.outside;
      inside += each.inside;
    }
    return outside > 0 && inside > 0 ? sum / (outside * inside) : kNone;
  }

  void append_to(MetricNumbers& numbers) {
    count_waiting();
    std::vector<double> flat{static_cast<double>(dropped_)};
    for (const Count& each : counts_)
      flat.insert(flat.end(), {static_cast<double>(each.key), each.outside, each.inside});
    numbers.push_back(std::move(flat));
  }
  bool load(const std::vector<double>& flat) {
    if (flat.empty() || flat.size() % 3 != 1 || !(flat[0] >= 0 && flat[0] < 32)) return false;
    dropped_ = static_cast<int>(flat[0]);
    for (size_t i = 1; i < flat.size(); i += 3)
      waiting_.push_back({cast_number<uint32_t>(flat[i]), flat[i + 1], flat[i + 2]});
    count_waiting();
    return true;
  }

 private:
  static constexpr size_t kMostScores = size_t{1} << 16;
  struct Count {
    uint32_t key;
    double outside, inside;  // exact up to 2^53
  };

  void count_waiting() {
    counts_.insert(counts_.end(), waiting_.begin(), waiting_.end());
    waiting_.clear();
    std::sort(counts_.begin(), counts_.end(), [](const Count& a, const Count& b) { return a.key < b.key; });
    for (join_equal(); counts_.size() > kMostScores; join_equal()) ++dropped_;
  }
  void join_equal() {
    size_t kept = 0;
    for (const Count& each : counts_) {
      const uint32_t key = each.key >> dropped_ << dropped_;
      if (kept > 0 && counts_[kept - 1].key == key) {
        counts_[kept - 1].outside += each.outside;
        counts_[kept - 1].inside += each.inside;
      } else {
        counts_[kept++] = {key, each.outside, each.inside};
      }
    }
    counts_.resize(kept);
  }

  int dropped_ = 0;  // number of last bits that keys ignore
  std::vector<Count> counts_, waiting_;
};

class AucCounts : public MetricCounts {
 public:
  explicit AucCounts(const MetricOptions& options)
      : is_multilabel_(options.find("multilabel")->second != 0),
        ignored_(static_cast<int64_t>(options.find("ignore_index")->second)) {}

  void update(const MetricBatch& batch) override { is_multilabel_ ? add_labels(batch) : add_classes(batch); }
  void merge(const MetricCounts& other) override {
    const std::vector<Ranking>& more = static_cast<const AucCounts&>(other).rankings_;
    grow(more.size());
    for (size_t c = 0; c < more.size(); ++c) rankings_[c].add(more[c]);
  }
  Tensor result() override {
    double sum = 0, known = 0;
    for (Ranking& each : rankings_) {
      const double area = each.area();
      if (std::isnan(area)) continue;
      sum += area;
      known += 1;
    }
    return Tensor::scalar(known > 0 ? sum / known : kNone);
  }
  MetricNumbers numbers() override {
    MetricNumbers numbers;
    for (Ranking& each : rankings_) each.append_to(numbers);
    return numbers;
  }
  bool load(const MetricNumbers& numbers) override {
    rankings_.resize(numbers.size());
    for (size_t c = 0; c < numbers.size(); ++c)
      if (!rankings_[c].load(numbers[c])) return false;
    return true;
  }

 private:
  void grow(size_t classes) {
    if (rankings_.size() < classes) rankings_.resize(classes);
  }

  void add_labels(const MetricBatch& batch) {
    const Tensor& prediction = *batch.prediction;
    const Shape &shape = prediction.shape(), &given = batch.target.shape();
    require(
        !shape.empty() && !given.empty() && shape[0] == given[0] && prediction.size() == batch.target.size(),
        ErrorCode::kInvalidArgument, "metric ", batch.metric,
        ": expected a target of 0 or 1 for each score, found ", to_string(given), " for ", to_string(shape));
    if (prediction.size() == 0) return;
    const auto labels = static_cast<size_t>(prediction.size() / shape[0]);
    grow(labels);
    with_numbers(prediction, [&](const auto* x) {
      with_numbers(batch.target, [&](const auto* t) {
        for (size_t i = 0; i < static_cast<size_t>(prediction.size()); ++i)
          rankings_[i % labels].add(static_cast<double>(x[i]), t[i] > 0.5);
      });
    });
  }

  void add_classes(const MetricBatch& batch) {
    const ClassBatch given = class_batch(batch);
    const auto classes = static_cast<size_t>(given.layout.classes);
    // A row of scores for each item whose target is not ignored.
    std::vector<double> scores;
    std::vector<int64_t> targets;
    with_numbers(*batch.prediction, [&](const auto* x) {
      const int64_t inner = given.layout.inner;
      for (int64_t item = 0; item < given.layout.items(); ++item) {
        const int64_t target = given.targets[static_cast<size_t>(item)];
        if (target == ignored_) continue;
        targets.push_back(target);
        for (int64_t c = 0; c < given.layout.classes; ++c)
          scores.push_back(
              static_cast<double>(x[(item / inner * given.layout.classes + c) * inner + item % inner]));
      }
    });
    if (classes <= 2) {
      grow(1);
      for (size_t i = 0; i < targets.size(); ++i)
        rankings_[0].add(classes == 1 ? scores[i] : scores[2 * i + 1] - scores[2 * i], targets[i] > 0);
      return;
    }
    grow(classes);
    if (!are_probabilities(scores, classes)) to_probabilities(scores, classes);
    for (size_t i = 0; i < targets.size(); ++i)
      for (size_t c = 0; c < classes; ++c)
        rankings_[c].add(scores[i * classes + c], targets[i] == static_cast<int64_t>(c));
  }

  static bool are_probabilities(const std::vector<double>& scores, size_t classes) {
    for (size_t i = 0; i < scores.size(); i += classes) {
      double sum = 0;
      for (size_t c = 0; c < classes; ++c) {
        if (!(scores[i + c] >= 0)) return false;
        sum += scores[i + c];
      }
      if (!(std::abs(sum - 1) <= 1e-3 + 1e-5)) return false;
    }
    return true;
  }

  static void to_probabilities(std::vector<double>& scores, size_t classes) {
    for (size_t i = 0; i < scores.size(); i += classes) {
      double* row = scores.data() + i;
      const double largest = *std::max_element(row, row + classes);
      double sum = 0;
      for (size_t c = 0; c < classes; ++c) sum += row[c] = std::exp(row[c] - largest);
      for (size_t c = 0; c < classes; ++c) row[c] /= sum;
    }
  }

  bool is_multilabel_;
  int64_t ignored_;
  std::vector<Ranking> rankings_;  // one for each class; if there are two classes, only one, for class 1
};

MetricRule rule(const char* name, const char* formula, double multilabel) {
  return {
      .name = name,
      .formula = formula,
      .source = "scikit-learn, roc_auc_score",
      .options = {{"multilabel", multilabel, "1: an item may have several labels, 0: it has one class", 0, 1},
                  ignore_index_option()},
      .make = make_metric<AucCounts>};
}

[[maybe_unused]] const bool kRegisteredAuc =
    register_metric(
        rule("auc",
             "probability that an item of a class has a larger score for the class than an item of "
             "another class; equal scores count half. With two classes or a single logit, the value of "
             "class 1; with more classes, the mean over classes of each against all others, by softmax",
             0),
        SourcePlace::here()) &&
    register_metric(
        rule("auc_multilabel",
             "the mean over labels of the auc of each label, where targets are 0 or 1 for each score", 1),
        SourcePlace::here());

}  // namespace
}  // namespace ortrain
