// A metric, created by name: it takes batches one by one, and returns its value at any time.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "metrics/rule.h"

namespace ortrain {

class Metric {
 public:
  // `options` are separated by commas or blanks, such as "average=binary,ignore_index=-1"; options that are
  // not in the text have their defaults. top<k>, such as top5, is top_k with this k.
  Metric(const std::string& name, const std::string& options);

  void update(const Tensor* prediction, const Tensor& target, const Tensor* loss);
  // A tensor of double: a scalar, or an array.
  Tensor result() { return counts_->result(); }
  void reset();
  // Adds the counts of another metric of the same name and options.
  void merge(const Metric& other);

  // The state as bytes; load_state() of a metric with the same name and options continues from the state.
  std::string state();
  void load_state(const void* data, size_t size);

 private:
  const MetricRule* rule_;
  MetricOptions options_;
  std::unique_ptr<MetricCounts> counts_;

  // The name and all options, in the order of the declaration.
  std::string described() const;
};

}  // namespace ortrain
