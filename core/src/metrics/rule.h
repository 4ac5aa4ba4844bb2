// A metric is a declaration, registered under a name.
//
// A file in rules/ declares a metric: its options, and its counts over batches. The names in every language,
// the command line, error messages and the table of the documentation follow from the declaration.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/registry.h"
#include "runtime/tensor.h"

namespace ortrain {

struct MetricOption {
  const char* name;
  double value;  // the default; for a choice, the index in `choices`
  const char* meaning;
  double least = -std::numeric_limits<double>::infinity(), most = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices = {};  // the names of the values; empty: the values are whole numbers
};

// The values of options by name.
using MetricOptions = std::map<std::string, double, std::less<>>;

// The arguments of an update. The prediction and the loss are null if the caller did not give them.
struct MetricBatch {
  const std::string& metric;  // its name, for messages
  const Tensor* prediction;
  const Tensor& target;
  const Tensor* loss;
};

// The counts and sums of a metric as numbers, from which a later run can continue.
using MetricNumbers = std::vector<std::vector<double>>;

// The counts of a metric. Sums do not depend on how rows are divided into batches.
class MetricCounts {
 public:
  virtual ~MetricCounts() = default;
  // A batch that is rejected does not change the counts.
  virtual void update(const MetricBatch& batch) = 0;
  // Adds the counts of another part of the rows. `other` has the class of this object.
  virtual void merge(const MetricCounts& other) = 0;
  // A double, or an array of them.
  virtual Tensor result() = 0;
  virtual MetricNumbers numbers() = 0;
  // Replaces the counts by a result of numbers(); returns false if the numbers cannot be such a result.
  virtual bool load(const MetricNumbers& numbers) = 0;
};

struct MetricRule {
  std::string name;  // in programs and on the command line: "accuracy"
  std::string formula;
  std::string source;
  bool reads_prediction = true;
  std::vector<MetricOption> options = {};
  // The counts before the first row.
  std::unique_ptr<MetricCounts> (*make)(const MetricOptions& options);
};

// The rule of a metric; null if no metric has that name.
const MetricRule* find_metric(std::string_view name);
// All rules, sorted by name.
std::vector<const MetricRule*> all_metrics();

bool register_metric(MetricRule rule, SourcePlace where);

// ORTRAIN_METRIC(Accuracy, {.name = "accuracy", ...})
#define ORTRAIN_METRIC(Title, ...)                 \
  [[maybe_unused]] const bool kRegistered##Title = \
      ::ortrain::register_metric(::ortrain::MetricRule __VA_ARGS__, ::ortrain::SourcePlace::here())

// The `make` of a rule whose counts are a T, made from the options.
template <class T>
std::unique_ptr<MetricCounts> make_metric(const MetricOptions& options) {
  return std::make_unique<T>(options);
}

inline MetricOption ignore_index_option() {
  return {"ignore_index", -100, "targets of this value do not count"};
}

}  // namespace ortrain
