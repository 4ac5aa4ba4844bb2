// The session option ortrain.check_finite: a run stops at the first node that produces a NaN or an infinity,
// and says what the node was given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "op/kernel.h"
#include "runtime/dtype.h"

namespace ortrain {

// A floating value that a node reads or makes: where it is stored, and as what.
struct CheckedValue {
  std::string name;
  DType dtype;  // of the stored elements
  int64_t count;
  Slot slot;
};

// What a value holds. Without finite elements `low` is above `high`.
struct ValueRange {
  double low = 0, high = 0;
  int64_t nans = 0, infinities = 0;
};

class FiniteCheck {
 public:
  FiniteCheck(std::vector<CheckedValue> inputs, std::vector<CheckedValue> outputs)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

  // Takes the ranges of the inputs, over which the node may write.
  void before(const Frame& frame);
  // Throws where an output has a NaN, or an infinity while no input has one: masks of attention hold
  // infinities that nodes pass on.
  void after(const Frame& frame, const Node& node) const;

 private:
  std::vector<CheckedValue> inputs_, outputs_;
  std::vector<ValueRange> ranges_;  // of the inputs
};

}  // namespace ortrain
