// The session option ortrain.check_finite: a run stops at the first node that produces a NaN or an infinity,
// with an error that describes the node's inputs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "op/kernel.h"
#include "runtime/dtype.h"

namespace ortrain {

// A floating-point value that a node reads or produces: where and in which type it is stored.
struct CheckedValue {
  std::string name;
  DType dtype;  // of the stored elements
  int64_t count;
  Slot slot;
};

// The contents of a value. If no element is finite, `low` is greater than `high`.
struct ValueRange {
  double low = 0, high = 0;
  int64_t nans = 0, infinities = 0;
};

class FiniteCheck {
 public:
  FiniteCheck(std::vector<CheckedValue> inputs, std::vector<CheckedValue> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  // Determines the ranges of the inputs before the node runs, since it may overwrite them.
  void before(const Frame& frame);
  // Throws if an output has a NaN, or an infinity although no input has one: attention masks contain
  // infinities, which nodes pass on.
  void after(const Frame& frame, const Node& node) const;

 private:
  std::vector<CheckedValue> inputs_, outputs_;
  std::vector<ValueRange> ranges_;  // of the inputs
};

}  // namespace ortrain
